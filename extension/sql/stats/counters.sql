-- What was counted, as people and programs read it: since the start (counters) and over
-- time (stats/stats.sql).

CREATE VIEW pulse.counters
WITH (security_barrier)
AS
SELECT
    t.lane,
    t.kind,
    t.at,
    t.enqueued,
    t.started,
    t.completed,
    t.failed,
    t.dead,
    t.retried,
    t.cancelled,
    t.reaped,
    t.wait_seconds,
    t.wait_counts,
    t.run_seconds,
    t.run_counts
FROM pulse_internal.series AS s
CROSS JOIN LATERAL (
    SELECT n.*
    FROM pulse_internal.stat AS n
    WHERE NOT n.total
        AND n.lane = s.lane
        AND n.kind = s.kind
    ORDER BY n.at DESC
    LIMIT 1
) AS t;

COMMENT ON VIEW pulse.counters IS
'What happened to jobs since the start, for each lane and kind: counters that only grow, a few seconds behind. Beyond the first 2,000 pairs of lane and kind a new kind is counted as kind '''' of its lane, or as lane '''' if the lane has no counters yet. A pair that was not used for 30 days is forgotten, and starts at 0 when it comes back.';

COMMENT ON COLUMN pulse.counters.lane IS
'The lane; empty for lanes beyond the limit.';

COMMENT ON COLUMN pulse.counters.kind IS
'The kind; empty for kinds beyond the limit.';

COMMENT ON COLUMN pulse.counters.at IS
'When this was last counted.';

COMMENT ON COLUMN pulse.counters.enqueued IS
'Jobs that were enqueued into this lane.';

COMMENT ON COLUMN pulse.counters.started IS
'Runs that began; one that still runs is counted when a sweep has seen it.';

COMMENT ON COLUMN pulse.counters.completed IS
'Jobs that completed.';

COMMENT ON COLUMN pulse.counters.failed IS
'Runs that failed, those of lost workers included.';

COMMENT ON COLUMN pulse.counters.dead IS
'Jobs that died of their last failure.';

COMMENT ON COLUMN pulse.counters.retried IS
'Jobs that were put back to run again: after a failure, or by retry.';

COMMENT ON COLUMN pulse.counters.cancelled IS
'Jobs that were cancelled.';

COMMENT ON COLUMN pulse.counters.reaped IS
'Runs that were ended because their lease lapsed or max_runtime was over.';

COMMENT ON COLUMN pulse.counters.wait_seconds IS
'The sum of waits: from being ready to the start of the run.';

COMMENT ON COLUMN pulse.counters.wait_counts IS
'How many waited how long, at the places of histogram_bounds().';

COMMENT ON COLUMN pulse.counters.run_seconds IS
'The sum of the time that completed and failed runs took.';

COMMENT ON COLUMN pulse.counters.run_counts IS
'How many took how long, at the places of histogram_bounds().';

-- The newest of each series and the last one before that time: two looks for each, however
-- many minutes lie between them.
CREATE FUNCTION pulse.counters_since(since interval DEFAULT '1 hour')
RETURNS TABLE (
    lane text,
    kind text,
    at timestamptz,
    enqueued bigint,
    started bigint,
    completed bigint,
    failed bigint,
    dead bigint,
    retried bigint,
    cancelled bigint,
    reaped bigint,
    wait_seconds double precision,
    wait_counts bigint [],
    run_seconds double precision,
    run_counts bigint []
)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_from timestamptz;
BEGIN
    PERFORM pulse_internal.require_range('counters_since', 'since', counters_since.since);
    v_from := clock_timestamp() - coalesce(counters_since.since, '1 hour');

    RETURN QUERY
    SELECT
        n.lane,
        n.kind,
        n.at,
        n.enqueued - coalesce(o.enqueued, 0),
        n.started - coalesce(o.started, 0),
        n.completed - coalesce(o.completed, 0),
        n.failed - coalesce(o.failed, 0),
        n.dead - coalesce(o.dead, 0),
        n.retried - coalesce(o.retried, 0),
        n.cancelled - coalesce(o.cancelled, 0),
        n.reaped - coalesce(o.reaped, 0),
        n.wait_seconds - coalesce(o.wait_seconds, 0),
        array(
            SELECT u.jobs - coalesce(u.before, 0)
            FROM unnest(n.wait_counts, o.wait_counts) WITH ORDINALITY AS u (jobs, before, place)
            ORDER BY u.place
        ),
        n.run_seconds - coalesce(o.run_seconds, 0),
        array(
            SELECT u.jobs - coalesce(u.before, 0)
            FROM unnest(n.run_counts, o.run_counts) WITH ORDINALITY AS u (jobs, before, place)
            ORDER BY u.place
        )
    FROM pulse.counters AS n
    LEFT JOIN LATERAL (
        SELECT s.*
        FROM pulse_internal.stat AS s
        WHERE NOT s.total
            AND s.lane = n.lane
            AND s.kind = n.kind
            AND s.at <= v_from
        ORDER BY s.at DESC
        LIMIT 1
    ) AS o ON true
    WHERE n.at > v_from;
END;
$$;

COMMENT ON FUNCTION pulse.counters_since(interval) IS
'What happened to jobs in the last while (1 minute to 400 days), for each lane and kind of which something did: the columns of counters, as differences. PU002 for a time out of bounds. Writes nothing.';
