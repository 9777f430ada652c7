-- The watchdog: entries in pg_cron that call tick. pg_cron is a driver, never a
-- dependency: it may be missing, be in another database, refuse. So everything in the
-- schema cron is reached by EXECUTE, and only while that schema is a member of
-- the extension pg_cron (any role could have made a schema of that name, and we
-- run as the owner of pulse).
--
-- Two entries. "pulse watchdog" ticks: every few seconds where pg_cron takes
-- seconds (1.5 and later), else each minute a loop that ticks and sleeps until the
-- minute is nearly over. "pulse watchdog log" deletes what pg_cron writes down about
-- both and never deletes itself. After DROP EXTENSION pulse the first does nothing,
-- and the second goes on.

CREATE FUNCTION pulse.start_watchdog(every interval DEFAULT '10 seconds')
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.do_start_watchdog(pulse_internal.sign(), start_watchdog.every)
$$;

COMMENT ON FUNCTION pulse.start_watchdog(interval) IS
'Have pg_cron call tick at this interval (1 to 59 seconds); returns what was registered. Calling it again changes the interval. PU002 bad interval; PU010 when pg_cron is missing, is in another database or refuses, with the statement that fixes it. Writes audit_entry, and the tables of pg_cron.';

CREATE FUNCTION pulse_internal.do_start_watchdog(
    signature pulse_internal.caller_signature, every interval
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(do_start_watchdog.signature);
    v_seconds integer;
    v_schedule text;
    v_command text;
    v_before jsonb;
    v_after jsonb;
BEGIN
    PERFORM pulse_internal.require_range(
        'start_watchdog', 'every', coalesce(do_start_watchdog.every, '0')
    );
    v_seconds := extract(epoch FROM do_start_watchdog.every)::integer;
    PERFORM pulse_internal.require_cron(do_start_watchdog.every);
    SELECT jsonb_build_object('schedule', e.schedule, 'command', e.command) INTO v_before
    FROM pulse_internal.cron_entries() AS e
    WHERE e.entry = 'pulse watchdog';

    -- Whether pg_cron takes seconds is found out by trying.
    BEGIN
        v_schedule := format('%s seconds', v_seconds);
        v_command := pulse_internal.watchdog_command('pulse_internal.watchdog_tick()', 'CALL pulse_internal.watchdog_tick()');
        PERFORM pulse_internal.register('pulse watchdog', v_schedule, v_command);
    EXCEPTION WHEN OTHERS THEN
        BEGIN
            v_schedule := '* * * * *';
            v_command := pulse_internal.watchdog_loop_command(do_start_watchdog.every);
            PERFORM pulse_internal.register('pulse watchdog', v_schedule, v_command);
        EXCEPTION WHEN OTHERS THEN
            PERFORM pulse_internal.raise_no_cron(
                format('pg_cron refuses: %s', sqlerrm),
                format(
                    'SELECT cron.schedule_in_database(%L, %L, %L, %L, %L);',
                    'pulse watchdog', v_schedule, v_command, current_database(), current_user
                )
            );
        END;
    END;

    PERFORM pulse_internal.register('pulse watchdog log', '7 * * * *', $log$
        DELETE FROM cron.job_run_details AS d
        USING cron.job AS j
        WHERE j.jobid = d.jobid
            AND j.jobname IN ('pulse watchdog', 'pulse watchdog log')
            AND d.end_time < pg_catalog.clock_timestamp() - interval '1 hour'
    $log$);

    PERFORM pulse_internal.note_watchdog();
    v_after := jsonb_build_object('schedule', v_schedule, 'command', v_command);
    IF v_before IS DISTINCT FROM v_after THEN
        PERFORM pulse_internal.audit(v_who, 'start_watchdog', NULL, NULL, v_before, v_after, NULL);
    END IF;
    RETURN format(
        'pg_cron ticks every %s seconds as %I (%s)',
        v_seconds,
        current_user,
        CASE v_schedule
            WHEN '* * * * *' THEN 'a loop started each minute'
            ELSE 'scheduled by the second'
        END
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.do_start_watchdog(pulse_internal.caller_signature, interval) IS
'start_watchdog for the role that signed. Writes the same.';

CREATE FUNCTION pulse.stop_watchdog()
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.do_stop_watchdog(pulse_internal.sign())
$$;

COMMENT ON FUNCTION pulse.stop_watchdog() IS
'Remove what start_watchdog registered; returns what was removed. Nothing to remove is no error. Workers go on ticking. Writes audit_entry, and the tables of pg_cron.';

CREATE FUNCTION pulse_internal.do_stop_watchdog(signature pulse_internal.caller_signature)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(do_stop_watchdog.signature);
    v_jobs bigint [] := ARRAY(SELECT e.jobid FROM pulse_internal.cron_entries() AS e);
    v_job bigint;
BEGIN
    IF v_jobs = '{}' THEN
        RETURN 'pg_cron has no entries of pulse';
    END IF;

    FOREACH v_job IN ARRAY v_jobs LOOP
        EXECUTE 'SELECT cron.unschedule($1)' USING v_job;
    END LOOP;
    EXECUTE 'DELETE FROM cron.job_run_details WHERE jobid = ANY ($1)' USING v_jobs;

    PERFORM pulse_internal.audit(
        v_who, 'stop_watchdog', NULL, NULL,
        jsonb_build_object('entries', cardinality(v_jobs)), NULL, NULL
    );
    RETURN format('pg_cron entries removed: %s', cardinality(v_jobs));
END;
$$;

COMMENT ON FUNCTION pulse_internal.do_stop_watchdog(pulse_internal.caller_signature) IS
'stop_watchdog for the role that signed. Writes the same.';

-- What pg_cron is given to call (maintenance/watchdog.sql).

-- Each upkeep run in a transaction of its own, the urgent ones first: nothing that takes long
-- keeps what was promoted, fired or reaped from being seen. Again, while there is more to
-- do and a tick of ten seconds is not over. A procedure that COMMITs cannot have a SET
-- clause, so it uses no operator and calls everything by its full name.
CREATE PROCEDURE pulse_internal.watchdog_tick()
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_part text;
    v_goes_on boolean;
BEGIN
    LOOP
        FOREACH v_part IN ARRAY ARRAY[
            'due', 'sweep', 'groups', 'retention', 'count', 'sample', 'backstop'
        ] LOOP
            -- Dropping pulse between two upkeep runs must not make an error.
            IF pg_catalog.to_regprocedure('pulse_internal.tick(text[])') IS NULL THEN
                RETURN;
            END IF;
            PERFORM pulse_internal.note_watchdog();
            PERFORM pulse_internal.tick(ARRAY[v_part]);
            v_goes_on := pulse_internal.watchdog_goes_on(v_started_at);
            COMMIT;
        END LOOP;
        EXIT WHEN NOT v_goes_on;
        PERFORM pg_catalog.pg_sleep(0.9);
        COMMIT;
    END LOOP;
END;
$$;

COMMENT ON PROCEDURE pulse_internal.watchdog_tick () IS
'Tick, each part in a transaction of its own, for up to eight seconds while there is more to do: what pg_cron is given.';

CREATE FUNCTION pulse_internal.watchdog_goes_on(started_at timestamptz)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN clock_timestamp() BETWEEN watchdog_goes_on.started_at
        AND watchdog_goes_on.started_at + interval '8 seconds'
        AND pulse_internal.upkeep_budget() >= interval '2 seconds'
        AND EXISTS (
            SELECT 1
            FROM pulse_internal.cut_steps() AS c
            WHERE c.noted_at > watchdog_goes_on.started_at
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.watchdog_goes_on(timestamptz) IS
'Whether a tick of the watchdog that began then has more to do, and the time for it.';

CREATE PROCEDURE pulse_internal.watchdog_loop(every integer)
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_ticks integer := 0;
    v_is_due boolean;
    v_pause double precision;
BEGIN
    -- Dropping pulse while this sleeps must not make an error.
    WHILE pg_catalog.to_regprocedure('pulse_internal.watchdog_loop(integer)') IS NOT NULL LOOP
        SELECT r.ticks, r.is_due, r.pause INTO v_ticks, v_is_due, v_pause
        FROM pulse_internal.watchdog_round(watchdog_loop.every, v_started_at, v_ticks) AS r;
        COMMIT;
        EXIT WHEN v_pause IS NULL;
        IF v_is_due THEN
            CALL pulse_internal.watchdog_tick();
        END IF;
        PERFORM pg_catalog.pg_sleep(v_pause);
        COMMIT;
    END LOOP;
END;
$$;

COMMENT ON PROCEDURE pulse_internal.watchdog_loop (integer) IS
'Tick every so many seconds until the minute is nearly over: what pg_cron before 1.5 is given.';

-- One round of the loop: whether to tick, and how long to sleep afterwards; NULL at the
-- end of the minute, when the clock was set back, or at the end of what statement_timeout
-- leaves: to be cancelled would look like a fault. Slept in slices of a second, so that it
-- ends soon when the watchdog is stopped and holds no snapshot for long.
CREATE FUNCTION pulse_internal.watchdog_round(
    every integer,
    started_at timestamptz,
    INOUT ticks integer,
    OUT is_due boolean,
    OUT pause double precision
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_due timestamptz := watchdog_round.started_at
        + make_interval(secs => watchdog_round.every * watchdog_round.ticks);
BEGIN
    is_due := false;
    IF v_due > watchdog_round.started_at + interval '58 seconds'
        OR v_now > watchdog_round.started_at + interval '58 seconds'
        OR v_now < watchdog_round.started_at
        OR pulse_internal.upkeep_budget() < interval '1 second'
        OR pulse_internal.watchdog_stopped()
    THEN
        RETURN;
    END IF;

    IF v_due <= v_now THEN
        is_due := true;
        -- After a long tick the next one waits for its time; none is made up for.
        ticks := 1 + floor(
            extract(epoch FROM v_now - watchdog_round.started_at) / watchdog_round.every
        );
        v_due := watchdog_round.started_at
            + make_interval(secs => watchdog_round.every * ticks);
    END IF;
    pause := least(1, greatest(0.01, extract(epoch FROM v_due - v_now)));
END;
$$;

COMMENT ON FUNCTION pulse_internal.watchdog_round(integer, timestamptz, integer) IS
'Whether it is time to tick; returns the number of the next tick and how long to sleep, NULL when the minute is over or the watchdog was stopped.';

-- The guard lets it outlive DROP EXTENSION; DO may COMMIT, as pg_cron sends it alone.
CREATE FUNCTION pulse_internal.watchdog_command(routine text, call text)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        'DO $pulse$ BEGIN IF pg_catalog.to_regprocedure(%L) IS NOT NULL THEN %s; END IF; END $pulse$',
        watchdog_command.routine,
        watchdog_command.call
    )
$$;

COMMENT ON FUNCTION pulse_internal.watchdog_command(text, text) IS
'The command of a pg_cron entry: call a routine of pulse if it is still there.';

CREATE FUNCTION pulse_internal.watchdog_loop_command(every interval)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.watchdog_command(
        'pulse_internal.watchdog_loop(integer)',
        format('CALL pulse_internal.watchdog_loop(%s)', extract(epoch FROM every)::integer)
    )
$$;

COMMENT ON FUNCTION pulse_internal.watchdog_loop_command(interval) IS
'The command that ticks for a minute.';

-- How the watchdog is, for health.

CREATE FUNCTION pulse_internal.watchdog()
RETURNS TABLE (present boolean, active boolean, detail text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_entry record;
    v_run record;
    v_silent interval := clock_timestamp() - (pulse_internal.newest_upkeep_run('watchdog')).taken_at;
BEGIN
    SELECT e.jobid, e.schedule, e.active INTO v_entry
    FROM pulse_internal.cron_entries() AS e
    WHERE e.entry = 'pulse watchdog'
    ORDER BY e.active DESC, e.jobid DESC
    LIMIT 1;

    IF NOT FOUND THEN
        RETURN QUERY
        SELECT
            false,
            false,
            CASE
                WHEN pulse_internal.has_cron() THEN 'pg_cron has no entry of pulse'
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
        v_entry.active
        AND v_run.status IS DISTINCT FROM 'failed'
        AND (v_silent > interval '5 minutes') IS NOT TRUE,
        CASE
            WHEN NOT v_entry.active THEN 'the entry in pg_cron is switched off'
            WHEN v_run.status = 'failed'
                THEN format('the last run failed: %s', left(v_run.return_message, 500))
            WHEN v_silent > interval '5 minutes'
                THEN format('pg_cron has not run it for %s', pulse_internal.duration(v_silent))
            ELSE format('pg_cron runs it: %s', v_entry.schedule)
        END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.watchdog() IS
'Whether pg_cron has an entry that ticks, whether it runs, and in words what is the matter.';

-- The loop runs as the role of its entry, so it sees it, whoever made it.
CREATE FUNCTION pulse_internal.watchdog_stopped()
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_stopped boolean := false;
BEGIN
    IF pulse_internal.has_cron() AND has_schema_privilege('cron', 'USAGE') THEN
        EXECUTE
        'SELECT NOT EXISTS (
            SELECT 1
            FROM cron.job AS j
            WHERE j.command LIKE ''%pulse\_internal.watchdog\_loop%''
                AND j.database = current_database()
        )'
        INTO v_stopped;
    END IF;
    RETURN v_stopped;
END;
$$;

COMMENT ON FUNCTION pulse_internal.watchdog_stopped() IS
'Whether the loop runs on though its entry in pg_cron is gone.';
