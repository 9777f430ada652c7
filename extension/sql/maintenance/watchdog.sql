-- start_watchdog, stop_watchdog: have pg_cron call tick.
--
-- pg_cron may be missing, be in another database or refuse. So all that is in the schema cron is
-- reached by EXECUTE, and only while that schema belongs to the extension pg_cron: any role could
-- have created a schema of that name, and these functions run as the owner of pulse.
--
-- There are two entries. "pulse watchdog" calls tick: every few seconds, or before pg_cron 1.5,
-- which knows no seconds, a loop each minute that ticks and sleeps until the minute is nearly
-- over. "pulse watchdog log" deletes the log that pg_cron writes about both; it is never removed
-- by itself. After DROP EXTENSION pulse the first entry does nothing, and the second goes on.
--
-- It writes audit_entry, upkeep_run and the tables of pg_cron. It takes no lock of pulse.

CREATE FUNCTION pulse.start_watchdog(
    every interval DEFAULT '10 seconds',
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(start_watchdog.signature);
    v_seconds integer;
    v_schedule text;
    v_command text;
    v_before jsonb;
    v_after jsonb;
BEGIN
    PERFORM pulse_internal.require_range(
        'start_watchdog', 'every', coalesce(start_watchdog.every, '0')
    );
    v_seconds := extract(epoch FROM start_watchdog.every)::integer;
    PERFORM pulse_internal.require_cron(start_watchdog.every);
    SELECT jsonb_build_object('schedule', e.schedule, 'command', e.command) INTO v_before
    FROM pulse_internal.cron_entries() AS e
    WHERE e.entry = 'pulse watchdog';

    -- No setting says whether pg_cron knows seconds, so try.
    BEGIN
        v_schedule := format('%s seconds', v_seconds);
        v_command := pulse_internal.watchdog_command('pulse_internal.watchdog_tick()', 'CALL pulse_internal.watchdog_tick()');
        PERFORM pulse_internal.register('pulse watchdog', v_schedule, v_command);
    EXCEPTION WHEN OTHERS THEN
        BEGIN
            v_schedule := '* * * * *';
            v_command := pulse_internal.watchdog_loop_command(start_watchdog.every);
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

COMMENT ON FUNCTION pulse.start_watchdog(interval, pulse_internal.caller_signature) IS
'Have pg_cron call tick at this interval. Returns what was registered. Another call changes the interval.

- every: 1 to 59 seconds.

Errors: PU002 bad interval; PU010 pg_cron is missing, is in another database or refuses. The HINT has the statement that the administrator has to run.';

CREATE FUNCTION pulse.stop_watchdog(
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(stop_watchdog.signature);
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

COMMENT ON FUNCTION pulse.stop_watchdog(pulse_internal.caller_signature) IS
'Remove what start_watchdog has registered. Returns what was removed; nothing to remove is no error. Workers go on to call tick.';

CREATE PROCEDURE pulse_internal.watchdog_tick()
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_part text;
    v_goes_on boolean;
BEGIN
    -- A procedure that COMMITs cannot have a SET clause. So this one uses no operators and calls
    -- everything by its full name.
    LOOP
        -- A transaction for each part, the urgent ones first: the jobs that were promoted, fired
        -- or reaped are seen before the parts that take long.
        FOREACH v_part IN ARRAY ARRAY[
            'due', 'sweep', 'groups', 'retention', 'count', 'sample', 'backstop'
        ] LOOP
            -- pulse may be dropped between two transactions: that must not be an error.
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
'What pg_cron calls: tick, each part in a transaction of its own, for up to eight seconds while there is more to do.';

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
'Whether a tick of the watchdog that started then has more to do, and the time for it.';

CREATE PROCEDURE pulse_internal.watchdog_loop(every integer)
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_ticks integer := 0;
    v_is_due boolean;
    v_pause double precision;
BEGIN
    -- pulse may be dropped while this sleeps: that must not be an error.
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
'What pg_cron before 1.5 calls: tick every so many seconds until the minute is nearly over.';

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
    -- The minute is over, the clock was set back, the watchdog was stopped, or statement_timeout
    -- leaves too little: to be cancelled would look like a fault.
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
        -- Ticks that a long tick has missed are left out.
        ticks := 1 + floor(
            extract(epoch FROM v_now - watchdog_round.started_at) / watchdog_round.every
        );
        v_due := watchdog_round.started_at
            + make_interval(secs => watchdog_round.every * ticks);
    END IF;
    -- At most a second: it has to end soon after the watchdog was stopped, and must not keep a
    -- snapshot for long.
    pause := least(1, greatest(0.01, extract(epoch FROM v_due - v_now)));
END;
$$;

COMMENT ON FUNCTION pulse_internal.watchdog_round(integer, timestamptz, integer) IS
'One round of the loop: whether it is time to tick, the number of the next tick, and how long to sleep; NULL ends the loop.';

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
'The command of an entry in pg_cron: call a routine of pulse if it still exists. DO may COMMIT, because pg_cron sends it alone.';

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
'The command of the loop that ticks for a minute.';

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

    -- The last run that has ended: one that is still running tells nothing.
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
'For health(): whether pg_cron has an entry that ticks, whether it runs, and a text that says what is wrong.';

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
'Whether the loop still runs though its entry in pg_cron is gone. The loop runs as the role of its entry, so it can see it.';
