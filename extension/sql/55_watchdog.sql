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
    SELECT pulse._do_start_watchdog(pulse._sign(), start_watchdog.every)
$$;

COMMENT ON FUNCTION pulse.start_watchdog(interval) IS
'Have pg_cron call tick at this interval (1 to 59 seconds); returns what was registered. Calling it again changes the interval. PU002 bad interval; PU010 when pg_cron is missing, is in another database or refuses, with the statement that fixes it. Writes audit_entry, and the tables of pg_cron.';

CREATE FUNCTION pulse._do_start_watchdog(signature pulse._signature, every interval)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_start_watchdog.signature);
    v_seconds integer;
    v_schedule text;
    v_command text;
    v_before jsonb;
    v_after jsonb;
BEGIN
    PERFORM pulse._require_duration(
        'every', coalesce(_do_start_watchdog.every, '0'), '1 second', '59 seconds'
    );
    v_seconds := extract(epoch FROM _do_start_watchdog.every)::integer;
    PERFORM pulse._require_cron(_do_start_watchdog.every);
    SELECT jsonb_build_object('schedule', e.schedule, 'command', e.command) INTO v_before
    FROM pulse._cron_entries() AS e
    WHERE e.entry = 'pulse watchdog';

    -- Whether pg_cron takes seconds is found out by trying.
    BEGIN
        v_schedule := format('%s seconds', v_seconds);
        v_command := pulse._watchdog_command('pulse._watchdog_tick()', 'CALL pulse._watchdog_tick()');
        PERFORM pulse._register('pulse watchdog', v_schedule, v_command);
    EXCEPTION WHEN OTHERS THEN
        BEGIN
            v_schedule := '* * * * *';
            v_command := pulse._watchdog_loop_command(_do_start_watchdog.every);
            PERFORM pulse._register('pulse watchdog', v_schedule, v_command);
        EXCEPTION WHEN OTHERS THEN
            PERFORM pulse._raise_no_cron(
                format('pg_cron refuses: %s', sqlerrm),
                format(
                    'SELECT cron.schedule_in_database(%L, %L, %L, %L, %L);',
                    'pulse watchdog', v_schedule, v_command, current_database(), current_user
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

    PERFORM pulse._note_watchdog();
    v_after := jsonb_build_object('schedule', v_schedule, 'command', v_command);
    IF v_before IS DISTINCT FROM v_after THEN
        PERFORM pulse._audit(v_who, 'start_watchdog', NULL, NULL, v_before, v_after, NULL);
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

COMMENT ON FUNCTION pulse._do_start_watchdog(pulse._signature, interval) IS
'start_watchdog for the role that signed. Writes the same.';

CREATE FUNCTION pulse.stop_watchdog()
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_stop_watchdog(pulse._sign())
$$;

COMMENT ON FUNCTION pulse.stop_watchdog() IS
'Remove what start_watchdog registered; returns what was removed. Nothing to remove is no error. Workers go on ticking. Writes audit_entry, and the tables of pg_cron.';

CREATE FUNCTION pulse._do_stop_watchdog(signature pulse._signature)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_stop_watchdog.signature);
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
        v_who, 'stop_watchdog', NULL, NULL,
        jsonb_build_object('entries', cardinality(v_jobs)), NULL, NULL
    );
    RETURN format('pg_cron entries removed: %s', cardinality(v_jobs));
END;
$$;

COMMENT ON FUNCTION pulse._do_stop_watchdog(pulse._signature) IS
'stop_watchdog for the role that signed. Writes the same.';
