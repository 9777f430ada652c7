-- How the watchdog is, for health.

CREATE FUNCTION pulse._watchdog()
RETURNS TABLE (present boolean, active boolean, detail text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_entry record;
    v_run record;
    v_silent interval := clock_timestamp() - (pulse._newest_upkeep_run('watchdog')).taken_at;
BEGIN
    SELECT e.jobid, e.schedule, e.active INTO v_entry
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
        v_entry.active
        AND v_run.status IS DISTINCT FROM 'failed'
        AND (v_silent > interval '5 minutes') IS NOT TRUE,
        CASE
            WHEN NOT v_entry.active THEN 'the entry in pg_cron is switched off'
            WHEN v_run.status = 'failed'
                THEN format('the last run failed: %s', left(v_run.return_message, 500))
            WHEN v_silent > interval '5 minutes'
                THEN format('pg_cron has not run it for %s', pulse._duration(v_silent))
            ELSE format('pg_cron runs it: %s', v_entry.schedule)
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
