-- What was counted, as people and programs read it: since the start (counters) and over
-- time (93a_stats.sql).

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
FROM pulse._series AS s
CROSS JOIN LATERAL (
    SELECT n.*
    FROM pulse.stat AS n
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
