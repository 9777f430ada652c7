CREATE FUNCTION pulse_internal.health_flows()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_held bigint;
    v_by bigint;
BEGIN
    SELECT count(*), min(h.waits_for) INTO v_held, v_by
    FROM (
        SELECT b.waits_for
        FROM pulse_internal.blocked AS b
        -- With another policy the end releases or cancels them, at once or by a note.
        WHERE b.after_failed = 'hold'
            AND (
                SELECT f.state <> 'completed'
                FROM pulse_internal.finished AS f
                WHERE f.job = b.waits_for
            )
        LIMIT 1001
    ) AS h;

    RETURN QUERY
    SELECT
        'held_jobs',
        CASE WHEN v_held = 0 THEN 'ok' ELSE 'warn' END,
        CASE
            WHEN v_held = 0 THEN 'none waits for a job that has failed'
            WHEN v_held > 1000 THEN format('more than 1000 wait for jobs that have failed, such as %s', v_by)
            ELSE format('%s wait for jobs that have failed, such as %s', v_held, v_by)
        END,
        format('Fix the cause and retry it (SELECT pulse.retry(%s)), or cancel the jobs that wait: SELECT * FROM pulse.why(…) names them.', coalesce(v_by::text, '…'));

    RETURN QUERY
    SELECT
        'flow_notes',
        CASE WHEN n.since < clock_timestamp() - interval '1 minute' THEN 'warn' ELSE 'ok' END,
        coalesce(
            'the oldest is of ' || pulse_internal.duration(clock_timestamp() - n.since) || ' ago', 'all are settled'
        ),
        'Ends of jobs that nobody has looked at yet: a transaction stays open that enqueued or ended jobs of flows, or no tick runs; see last_tick and tick_budget.'
    FROM (
        SELECT least(
            (SELECT d.noted_at FROM pulse_internal.doubt AS d ORDER BY d.seq LIMIT 1),
            (SELECT w.noted_at FROM pulse_internal.wake AS w ORDER BY w.seq LIMIT 1)
        ) AS since
    ) AS n;

    RETURN QUERY
    SELECT
        'unreleased_jobs',
        CASE WHEN coalesce(n.found, 0) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(
            n.found || ' found by the sweep ' || pulse_internal.duration(clock_timestamp() - n.taken_at) || ' ago',
            'not swept yet'
        ),
        'Jobs waited for others that had ended; they were released. This is a bug in pulse: please report it with SELECT * FROM pulse.check().'
    FROM (VALUES (true)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT u.taken_at, (u.state ->> 'unreleased')::bigint AS found
        FROM pulse_internal.upkeep_run AS u
        WHERE u.step = 'backstop'
        ORDER BY u.version DESC
        LIMIT 1
    ) AS n ON true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.health_flows() IS
'Checks of jobs that wait for jobs.';
