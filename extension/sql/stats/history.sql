-- Every slot has a row, also those in which nothing happened: a chart over time.
CREATE FUNCTION pulse.history(
    since interval DEFAULT '1 hour',
    step interval DEFAULT '1 minute',
    lane text DEFAULT NULL,
    kind text DEFAULT NULL
)
RETURNS TABLE (
    at timestamptz,
    enqueued bigint,
    started bigint,
    completed bigint,
    failed bigint,
    dead bigint,
    retried bigint,
    cancelled bigint,
    reaped bigint,
    wait_p50 double precision,
    wait_p95 double precision,
    wait_p99 double precision,
    run_p50 double precision,
    run_p95 double precision,
    run_p99 double precision,
    ready bigint,
    running bigint
)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_origin constant timestamptz := timestamptz '2000-01-01 00:00:00+00';
    v_step interval := coalesce(history.step, '1 minute');
    v_since interval := coalesce(history.since, '1 hour');
    v_last timestamptz;
    v_first timestamptz;
BEGIN
    PERFORM pulse_internal.require_range('history', 'step', v_step);
    PERFORM pulse_internal.require_duration(
        v_since, ROW('since', 'duration', NULL, NULL, v_step, v_step * 1000, NULL)
    );
    v_last := date_bin(v_step, clock_timestamp(), v_origin);
    v_first := date_bin(v_step, clock_timestamp() - v_since, v_origin);

    RETURN QUERY
    WITH seen AS MATERIALIZED (
        SELECT date_bin(v_step, s.at, v_origin) AS slot, s.*
        FROM pulse_internal.stats AS s
        WHERE s.total = (history.lane IS NULL OR history.kind IS NULL)
            AND s.lane = coalesce(history.lane, '')
            AND s.kind = coalesce(history.kind, '')
            AND s.at >= v_first
    ),

    summed AS (
        SELECT
            s.slot,
            sum(s.enqueued)::bigint AS enqueued,
            sum(s.started)::bigint AS started,
            sum(s.completed)::bigint AS completed,
            sum(s.failed)::bigint AS failed,
            sum(s.dead)::bigint AS dead,
            sum(s.retried)::bigint AS retried,
            sum(s.cancelled)::bigint AS cancelled,
            sum(s.reaped)::bigint AS reaped,
            max(s.ready) AS ready,
            max(s.running) AS running
        FROM seen AS s
        GROUP BY s.slot
    ),

    spread AS (
        SELECT
            p.slot,
            array_agg(p.waits ORDER BY p.place) AS wait_counts,
            array_agg(p.runs ORDER BY p.place) AS run_counts
        FROM (
            SELECT
                s.slot, u.place, sum(u.waits)::bigint AS waits, sum(u.runs)::bigint AS runs
            FROM seen AS s
            CROSS JOIN LATERAL unnest(s.wait_counts, s.run_counts)
            WITH ORDINALITY AS u (waits, runs, place)
            GROUP BY s.slot, u.place
        ) AS p
        GROUP BY p.slot
    ),

    -- Everything has a row for each minute in which a sample was taken.
    sampled AS (
        SELECT DISTINCT date_bin(v_step, e.at, v_origin) AS slot
        FROM pulse_internal.stat AS e
        WHERE e.total
            AND e.lane = ''
            AND e.kind = ''
            AND e.at >= v_first
    )

    SELECT
        g.slot,
        coalesce(s.enqueued, 0),
        coalesce(s.started, 0),
        coalesce(s.completed, 0),
        coalesce(s.failed, 0),
        coalesce(s.dead, 0),
        coalesce(s.retried, 0),
        coalesce(s.cancelled, 0),
        coalesce(s.reaped, 0),
        pulse.histogram_quantile(h.wait_counts, 0.5),
        pulse.histogram_quantile(h.wait_counts, 0.95),
        pulse.histogram_quantile(h.wait_counts, 0.99),
        pulse.histogram_quantile(h.run_counts, 0.5),
        pulse.histogram_quantile(h.run_counts, 0.95),
        pulse.histogram_quantile(h.run_counts, 0.99),
        CASE WHEN d.slot IS NOT NULL THEN coalesce(s.ready, 0) END,
        CASE WHEN d.slot IS NOT NULL THEN coalesce(s.running, 0) END
    FROM generate_series(v_first, v_last, v_step) AS g (slot)
    LEFT JOIN summed AS s ON s.slot = g.slot
    LEFT JOIN spread AS h ON h.slot = g.slot
    -- Of a kind in a lane no depth is kept.
    LEFT JOIN sampled AS d
        ON d.slot = g.slot
        AND (history.lane IS NULL OR history.kind IS NULL)
    ORDER BY g.slot;
END;
$$;

COMMENT ON FUNCTION pulse.history(interval, interval, text, text) IS
'What happened over time, of everything or of a lane, a kind or both: a row for each step (1 minute to 1 day, at most 1,000 steps), oldest first, also where nothing happened. at is the start of the step; wait_ and run_ are quantiles in seconds, NULL where there are none; ready and running the most at a sample that is kept (NULL with both a lane and a kind, and where no sample was taken). PU002 for a step or since out of bounds. Writes nothing.';
