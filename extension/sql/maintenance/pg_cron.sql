-- What the watchdog asks of pg_cron (maintenance/watchdog.sql): whether it is here, its entries,
-- and why an entry cannot be made. It writes the tables of pg_cron and upkeep_run.

CREATE FUNCTION pulse_internal.has_cron()
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT 1
        FROM pg_extension AS e
        INNER JOIN pg_depend AS d
            ON d.refclassid = 'pg_extension'::regclass
            AND d.refobjid = e.oid
            AND d.classid = 'pg_namespace'::regclass
            AND d.deptype = 'e'
        INNER JOIN pg_namespace AS n ON n.oid = d.objid
        WHERE e.extname = 'pg_cron'
            AND n.nspname = 'cron'
    )
$$;

COMMENT ON FUNCTION pulse_internal.has_cron() IS
'Whether pg_cron is installed in this database.';

CREATE FUNCTION pulse_internal.cron_database()
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN current_setting('cron.database_name', true);
EXCEPTION WHEN insufficient_privilege THEN
    -- pg_cron is loaded, but only pg_read_all_settings may read the setting: its default.
    RETURN 'postgres';
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_database() IS
'The database of this server that has pg_cron, as far as this role may know; NULL if pg_cron is not loaded.';

CREATE FUNCTION pulse_internal.cron_entries()
RETURNS TABLE (
    entry text, jobid bigint, schedule text, command text, active boolean
)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pulse_internal.has_cron() AND has_schema_privilege('cron', 'USAGE') THEN
        RETURN QUERY EXECUTE
        'SELECT j.jobname::text, j.jobid, j.schedule, j.command, j.active
        FROM cron.job AS j
        WHERE j.jobname IN (''pulse watchdog'', ''pulse watchdog log'')
            AND j.database = current_database()
        ORDER BY j.jobname';
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_entries() IS
'The entries of pulse in pg_cron; none if pg_cron is not in this database or this role may not use it.';

CREATE FUNCTION pulse_internal.register(entry text, schedule text, command text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE 'SELECT cron.schedule($1, $2, $3)'
    USING register.entry, register.schedule, register.command;
END;
$$;

COMMENT ON FUNCTION pulse_internal.register(text, text, text) IS
'Create or replace an entry in pg_cron.';

CREATE FUNCTION pulse_internal.require_cron(every interval)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_database text := pulse_internal.cron_database();
BEGIN
    IF NOT pulse_internal.has_cron() THEN
        IF v_database IS NULL THEN
            PERFORM pulse_internal.raise_no_cron(
                'The server has not loaded pg_cron.',
                format(
                    'ALTER SYSTEM SET shared_preload_libraries = ''pg_cron''; ALTER SYSTEM SET cron.database_name = %L; restarts the server, and then CREATE EXTENSION pg_cron;',
                    current_database()
                )
            );
        END IF;
        IF v_database = current_database() THEN
            PERFORM pulse_internal.raise_no_cron(
                'The extension pg_cron is not installed in this database.',
                'CREATE EXTENSION pg_cron;'
            );
        END IF;
        -- Only the administrator can make an entry for another database than that of pg_cron.
        PERFORM pulse_internal.raise_no_cron(
            format('pg_cron is in the database %I, this is %I.', v_database, current_database()),
            format(
                'in %I: SELECT cron.schedule_in_database(%L, ''* * * * *'', %L, %L, %L);',
                v_database,
                'pulse watchdog ' || current_database(),
                pulse_internal.watchdog_loop_command(require_cron.every),
                current_database(),
                current_user
            )
        );
    END IF;

    IF NOT has_schema_privilege('cron', 'USAGE') THEN
        PERFORM pulse_internal.raise_no_cron(
            format('%I, who owns pulse, may not use the schema cron.', current_user),
            format('GRANT USAGE ON SCHEMA cron TO %I;', current_user)
        );
    END IF;
    IF NOT (SELECT r.rolcanlogin FROM pg_roles AS r WHERE r.rolname = current_user) THEN
        PERFORM pulse_internal.raise_no_cron(
            format('%I, who owns pulse, cannot log in, so pg_cron cannot either.', current_user),
            format('ALTER ROLE %I LOGIN;', current_user)
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_cron(interval) IS
'Raise PU010 unless the owner of pulse can make entries in pg_cron for this database.';

CREATE FUNCTION pulse_internal.raise_no_cron(detail text, statement text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU010',
        'the watchdog needs pg_cron',
        raise_no_cron.detail,
        format(
            'Without it workers tick themselves. For a watchdog the administrator runs: %s',
            raise_no_cron.statement
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_no_cron(text, text) IS
'Raise PU010, with the statement that the administrator has to run.';

CREATE FUNCTION pulse_internal.note_watchdog()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('watchdog');
BEGIN
    -- An entry does not prove that pg_cron runs it: pg_cron overlooks an entry that is made while
    -- it reads the others, and its launcher may have stopped. So each run is noted, and an entry
    -- when it is made.
    IF (
        v_last.taken_at BETWEEN clock_timestamp() - interval '30 seconds' AND clock_timestamp()
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.write_upkeep_run(v_last, 'watchdog', NULL);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_watchdog() IS
'Note that pg_cron runs the watchdog, or was just asked to.';
