-- The watchdog: entries in pg_cron that call tick. pg_cron is a driver, never a
-- dependency: it may be missing, be in another database, refuse. So everything in the
-- schema cron is reached by EXECUTE, and only while that schema is a member of
-- the extension pg_cron (anybody could have made a schema of that name, and we
-- run as the owner of pulse).
--
-- Two entries. "pulse watchdog" ticks: every few seconds where pg_cron takes
-- seconds (1.5 and later), else each minute a loop that ticks and sleeps until the
-- minute is nearly over. "pulse watchdog log" deletes what pg_cron writes down about
-- both and never deletes itself. After DROP EXTENSION pulse the first does nothing,
-- and the second goes on.

CREATE FUNCTION pulse._has_cron()
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

COMMENT ON FUNCTION pulse._has_cron() IS
'Whether pg_cron is installed in this database.';

CREATE FUNCTION pulse._cron_database()
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN current_setting('cron.database_name', true);
EXCEPTION WHEN insufficient_privilege THEN
    -- It is loaded, but only pg_read_all_settings may look.
    RETURN 'postgres';
END;
$$;

COMMENT ON FUNCTION pulse._cron_database() IS
'The database of the cluster in which pg_cron lives, as far as we may know; NULL when it is not loaded.';

-- The guard lets it outlive DROP EXTENSION; DO may COMMIT, as pg_cron sends it alone.
CREATE FUNCTION pulse._watchdog_command(routine text, call text)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        'DO $pulse$ BEGIN IF pg_catalog.to_regprocedure(%L) IS NOT NULL THEN %s; END IF; END $pulse$',
        _watchdog_command.routine,
        _watchdog_command.call
    )
$$;

COMMENT ON FUNCTION pulse._watchdog_command(text, text) IS
'The command of a pg_cron entry: call a routine of pulse if it is still there.';

CREATE FUNCTION pulse._watchdog_loop_command(every interval)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._watchdog_command(
        'pulse._watchdog_loop(integer)',
        format('CALL pulse._watchdog_loop(%s)', extract(epoch FROM every)::integer)
    )
$$;

COMMENT ON FUNCTION pulse._watchdog_loop_command(interval) IS
'The command that ticks for a minute.';

CREATE FUNCTION pulse._raise_no_cron(detail text, statement text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._raise(
        'PU010',
        'the watchdog needs pg_cron',
        _raise_no_cron.detail,
        format(
            'Without it workers tick themselves. For a watchdog the administrator runs: %s',
            _raise_no_cron.statement
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse._raise_no_cron(text, text) IS
'Raise PU010 with what the administrator must run.';

-- In another database than that of pg_cron only the administrator can make an entry.
CREATE FUNCTION pulse._require_cron(every interval)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_database text := pulse._cron_database();
BEGIN
    IF NOT pulse._has_cron() THEN
        IF v_database IS NULL THEN
            PERFORM pulse._raise_no_cron(
                'The server has not loaded pg_cron.',
                format(
                    'ALTER SYSTEM SET shared_preload_libraries = ''pg_cron''; ALTER SYSTEM SET cron.database_name = %L; restarts the server, and then CREATE EXTENSION pg_cron;',
                    current_database()
                )
            );
        END IF;
        IF v_database = current_database() THEN
            PERFORM pulse._raise_no_cron(
                'The extension pg_cron is not installed in this database.',
                'CREATE EXTENSION pg_cron;'
            );
        END IF;
        PERFORM pulse._raise_no_cron(
            format('pg_cron lives in the database %I, this is %I.', v_database, current_database()),
            format(
                'in %I: SELECT cron.schedule_in_database(%L, ''* * * * *'', %L, %L, %L);',
                v_database,
                'pulse watchdog ' || current_database(),
                pulse._watchdog_loop_command(_require_cron.every),
                current_database(),
                current_user
            )
        );
    END IF;

    IF NOT has_schema_privilege('cron', 'USAGE') THEN
        PERFORM pulse._raise_no_cron(
            format('%I, who owns pulse, may not use the schema cron.', current_user),
            format('GRANT USAGE ON SCHEMA cron TO %I;', current_user)
        );
    END IF;
    IF NOT (SELECT r.rolcanlogin FROM pg_roles AS r WHERE r.rolname = current_user) THEN
        PERFORM pulse._raise_no_cron(
            format('%I, who owns pulse, cannot log in, so pg_cron cannot either.', current_user),
            format('ALTER ROLE %I LOGIN;', current_user)
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_cron(interval) IS
'Raise PU010 unless the owner of pulse can make pg_cron entries here.';

CREATE FUNCTION pulse._register(entry text, rhythm text, command text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE 'SELECT cron.schedule($1, $2, $3)'
    USING _register.entry, _register.rhythm, _register.command;
END;
$$;

COMMENT ON FUNCTION pulse._register(text, text, text) IS
'Make or replace one pg_cron entry.';

CREATE FUNCTION pulse.start_watchdog(every interval DEFAULT '10 seconds')
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_seconds integer;
    v_rhythm text;
    v_command text;
    v_before jsonb;
    v_after jsonb;
BEGIN
    PERFORM pulse._require_duration(
        'every', coalesce(start_watchdog.every, '0'), '1 second', '59 seconds'
    );
    v_seconds := extract(epoch FROM start_watchdog.every)::integer;
    PERFORM pulse._require_cron(start_watchdog.every);
    SELECT jsonb_build_object('schedule', e.rhythm, 'command', e.command) INTO v_before
    FROM pulse._cron_entries() AS e
    WHERE e.entry = 'pulse watchdog';

    -- Whether pg_cron takes seconds is found out by trying.
    BEGIN
        v_rhythm := format('%s seconds', v_seconds);
        v_command := pulse._watchdog_command('pulse.tick()', 'PERFORM pulse.tick()');
        PERFORM pulse._register('pulse watchdog', v_rhythm, v_command);
    EXCEPTION WHEN OTHERS THEN
        BEGIN
            v_rhythm := '* * * * *';
            v_command := pulse._watchdog_loop_command(start_watchdog.every);
            PERFORM pulse._register('pulse watchdog', v_rhythm, v_command);
        EXCEPTION WHEN OTHERS THEN
            PERFORM pulse._raise_no_cron(
                format('pg_cron refuses: %s', sqlerrm),
                format(
                    'SELECT cron.schedule_in_database(%L, %L, %L, %L, %L);',
                    'pulse watchdog', v_rhythm, v_command, current_database(), current_user
                )
            );
        END;
    END;

    PERFORM pulse._register('pulse watchdog log', '7 * * * *', $log$
        DELETE FROM cron.job_run_details AS d
        USING cron.job AS j
        WHERE j.jobid = d.jobid
            AND j.jobname IN ('pulse watchdog', 'pulse watchdog log')
            AND d.end_time < pg_catalog.clock_timestamp() - interval '1 hour'
    $log$);

    v_after := jsonb_build_object('schedule', v_rhythm, 'command', v_command);
    IF v_before IS DISTINCT FROM v_after THEN
        PERFORM pulse._audit('start_watchdog', NULL, NULL, v_before, v_after, NULL);
    END IF;
    RETURN format(
        'pg_cron ticks every %s seconds as %I (%s)',
        v_seconds,
        current_user,
        CASE v_rhythm
            WHEN '* * * * *' THEN 'a loop started each minute'
            ELSE 'scheduled by the second'
        END
    );
END;
$$;

COMMENT ON FUNCTION pulse.start_watchdog(interval) IS
'Let pg_cron call tick every so often (1 to 59 seconds), and say how. Calling it again changes the interval. PU002 bad interval; PU010 when pg_cron is missing, lives in another database or refuses, with the statement that mends it.';

CREATE FUNCTION pulse.stop_watchdog()
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_jobs bigint [] := ARRAY(SELECT e.jobid FROM pulse._cron_entries() AS e);
    v_job bigint;
BEGIN
    IF v_jobs = '{}' THEN
        RETURN 'pg_cron has no entries of pulse';
    END IF;

    FOREACH v_job IN ARRAY v_jobs LOOP
        EXECUTE 'SELECT cron.unschedule($1)' USING v_job;
    END LOOP;
    EXECUTE 'DELETE FROM cron.job_run_details WHERE jobid = ANY ($1)' USING v_jobs;

    PERFORM pulse._audit(
        'stop_watchdog', NULL, NULL, jsonb_build_object('entries', cardinality(v_jobs)), NULL, NULL
    );
    RETURN format('pg_cron entries removed: %s', cardinality(v_jobs));
END;
$$;

COMMENT ON FUNCTION pulse.stop_watchdog() IS
'Remove what start_watchdog registered, and say so; nothing to remove is fine too. Workers go on ticking.';

-- Nothing when pg_cron is not here or not for us.
CREATE FUNCTION pulse._cron_entries()
RETURNS TABLE (
    entry text, jobid bigint, rhythm text, command text, active boolean
)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pulse._has_cron() AND has_schema_privilege('cron', 'USAGE') THEN
        RETURN QUERY EXECUTE
        'SELECT j.jobname::text, j.jobid, j.schedule, j.command, j.active
        FROM cron.job AS j
        WHERE j.jobname IN (''pulse watchdog'', ''pulse watchdog log'')
            AND j.database = current_database()
        ORDER BY j.jobname';
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._cron_entries() IS
'The entries of pulse in pg_cron.';

CREATE FUNCTION pulse._watchdog()
RETURNS TABLE (present boolean, active boolean, detail text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_entry record;
    v_run record;
BEGIN
    SELECT e.jobid, e.rhythm, e.active INTO v_entry
    FROM pulse._cron_entries() AS e
    WHERE e.entry = 'pulse watchdog'
    ORDER BY e.active DESC, e.jobid DESC
    LIMIT 1;

    IF NOT FOUND THEN
        RETURN QUERY
        SELECT
            false,
            false,
            CASE
                WHEN pulse._has_cron() THEN 'pg_cron has no entry of pulse'
                ELSE 'pg_cron is not installed in this database'
            END;
        RETURN;
    END IF;

    -- The run that goes on (status running, starting) says nothing yet.
    EXECUTE
    'SELECT d.status, d.return_message
    FROM cron.job_run_details AS d
    WHERE d.jobid = $1
        AND d.status IN (''succeeded'', ''failed'')
    ORDER BY d.runid DESC
    LIMIT 1'
    INTO v_run
    USING v_entry.jobid;

    RETURN QUERY
    SELECT
        true,
        v_entry.active AND v_run.status IS DISTINCT FROM 'failed',
        CASE
            WHEN NOT v_entry.active THEN 'the entry in pg_cron is switched off'
            WHEN v_run.status = 'failed'
                THEN format('the last run failed: %s', left(v_run.return_message, 500))
            ELSE format('pg_cron runs it: %s', v_entry.rhythm)
        END;
END;
$$;

COMMENT ON FUNCTION pulse._watchdog() IS
'Whether pg_cron has an entry that ticks, whether it runs, and in words what is the matter.';

-- The loop runs as the role of its entry, so it sees it, whoever made it.
CREATE FUNCTION pulse._watchdog_stopped()
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_stopped boolean := false;
BEGIN
    IF pulse._has_cron() AND has_schema_privilege('cron', 'USAGE') THEN
        EXECUTE
        'SELECT NOT EXISTS (
            SELECT 1
            FROM cron.job AS j
            WHERE j.command LIKE ''%pulse.\_watchdog\_loop%''
                AND j.database = current_database()
        )'
        INTO v_stopped;
    END IF;
    RETURN v_stopped;
END;
$$;

COMMENT ON FUNCTION pulse._watchdog_stopped() IS
'Whether the loop runs on though its entry in pg_cron is gone.';

-- One round of the loop: tick if it is time, and say how long to sleep; NULL at the end.
-- Slept in slices of a second, so that it ends soon when the watchdog is stopped
-- and holds no snapshot for long.
CREATE FUNCTION pulse._watchdog_round(
    every integer, started_at timestamptz, INOUT ticks integer, OUT pause double precision
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_due timestamptz := _watchdog_round.started_at
        + make_interval(secs => _watchdog_round.every * _watchdog_round.ticks);
BEGIN
    IF v_due > _watchdog_round.started_at + interval '58 seconds'
        OR clock_timestamp() > _watchdog_round.started_at + interval '58 seconds'
        OR pulse._watchdog_stopped()
    THEN
        RETURN;
    END IF;

    IF v_due <= clock_timestamp() THEN
        PERFORM pulse.tick();
        -- After a long tick the next one waits for its turn; none is made up for.
        ticks := 1 + floor(
            extract(epoch FROM clock_timestamp() - _watchdog_round.started_at)
            / _watchdog_round.every
        );
        v_due := _watchdog_round.started_at
            + make_interval(secs => _watchdog_round.every * ticks);
    END IF;
    pause := least(1, greatest(0.01, extract(epoch FROM v_due - clock_timestamp())));
END;
$$;

COMMENT ON FUNCTION pulse._watchdog_round(integer, timestamptz, integer) IS
'Tick if it is time; returns the number of the next tick and how long to sleep, NULL when the minute is over or the watchdog was stopped.';

-- A procedure that COMMITs cannot have a SET clause, so it uses no operator and calls
-- everything by its full name.
CREATE PROCEDURE pulse._watchdog_loop(every integer)
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_ticks integer := 0;
    v_pause double precision;
BEGIN
    -- Dropping pulse while this sleeps must not make an error.
    WHILE pg_catalog.to_regprocedure('pulse._watchdog_loop(integer)') IS NOT NULL LOOP
        SELECT r.ticks, r.pause INTO v_ticks, v_pause
        FROM pulse._watchdog_round(_watchdog_loop.every, v_started_at, v_ticks) AS r;
        COMMIT;
        EXIT WHEN v_pause IS NULL;
        PERFORM pg_catalog.pg_sleep(v_pause);
        COMMIT;
    END LOOP;
END;
$$;

COMMENT ON PROCEDURE pulse._watchdog_loop (integer) IS
'Tick every so many seconds until the minute is nearly over: what pg_cron before 1.5 is given.';
