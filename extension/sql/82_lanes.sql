-- A sample is taken when a lane needs it, and once; an object is looked up faster than a
-- list of a thousand lanes is read a thousand times.
CREATE VIEW pulse.lanes
WITH (security_barrier)
AS
WITH known AS MATERIALIZED (
    SELECT
        k.lane,
        pulse._count_up_to(count(*) OVER ()) AS most
    FROM pulse._known_lanes AS k
    WHERE k.lane > ''
),

ready_estimate AS MATERIALIZED (
    SELECT jsonb_object_agg(e.lane, e.jobs) AS jobs
    FROM pulse._ready_estimate AS e
),

waiting_estimate AS MATERIALIZED (
    SELECT jsonb_object_agg(e.lane, e.jobs) AS jobs
    FROM pulse._waiting_estimate AS e
),

blocked_estimate AS MATERIALIZED (
    SELECT jsonb_object_agg(e.lane, e.jobs) AS jobs
    FROM pulse._blocked_estimate AS e
)

SELECT
    o.lane AS name,
    s.max_slots,
    coalesce(u.used, 0) AS used,
    CASE
        WHEN n.ready <= o.most THEN n.ready
        ELSE
            greatest(
                n.ready,
                ((SELECT e.jobs FROM ready_estimate AS e) ->> o.lane)::bigint
            )
    END AS depth,
    n.ready > o.most AS depth_estimated,
    clock_timestamp() - pulse._oldest_ready_at(o.lane) AS oldest_ready_age,
    CASE
        WHEN n.delayed <= o.most THEN n.delayed
        ELSE
            greatest(
                n.delayed,
                ((SELECT e.jobs FROM waiting_estimate AS e) ->> o.lane)::bigint
            )
    END AS delayed,
    n.delayed > o.most AS delayed_estimated,
    coalesce(
        (
            SELECT
                round(
                    60 * sum(t.completed + t.dead + t.cancelled)
                    / extract(EPOCH FROM sum(t.took))::numeric, 1
                )
            FROM pulse.sample AS t
            WHERE t.lane = o.lane
                -- Once, or the index could not stop at it.
                AND t.at > (SELECT clock_timestamp() - interval '5 minutes')
        ),
        0
    ) AS throughput,
    coalesce(s.enabled, true) AS enabled,
    EXISTS (
        SELECT FROM pulse.hold AS h
        WHERE h.lane = o.lane
            AND h.holder = 'drain'
    ) AS drained,
    (
        SELECT
            array_agg(
                h.holder || coalesce(' (' || nullif(h.reason, '') || ')', '')
                ORDER BY h.lane, h.holder
            )
        FROM pulse.hold AS h
        WHERE h.lane IN (o.lane, '')
    ) AS paused_by,
    coalesce(jsonb_strip_nulls(to_jsonb(s) - '{lane,grouped}'::text []), '{}') AS settings,
    CASE
        WHEN n.blocked <= o.most THEN n.blocked
        ELSE
            greatest(
                n.blocked,
                ((SELECT e.jobs FROM blocked_estimate AS e) ->> o.lane)::bigint
            )
    END AS blocked
FROM known AS o
CROSS JOIN LATERAL pulse._counted(o.lane, o.most) AS n
LEFT JOIN pulse.lane AS s ON s.lane = o.lane
LEFT JOIN (
    SELECT
        l.lane,
        count(*) AS used
    FROM pulse.lease AS l
    GROUP BY l.lane
) AS u ON u.lane = o.lane
ORDER BY o.lane;

COMMENT ON VIEW pulse.lanes IS
'Every lane that has jobs, settings, kinds or holds, and default: slots, line, speed and who holds it. A role that may read this view sees all jobs in the other views.';

COMMENT ON COLUMN pulse.lanes.name IS
'The lane.';

COMMENT ON COLUMN pulse.lanes.max_slots IS
'How many of its jobs may run at once; NULL is no limit.';

COMMENT ON COLUMN pulse.lanes.used IS
'How many of its jobs run.';

COMMENT ON COLUMN pulse.lanes.depth IS
'How many of its jobs are ready: counted up to 10000 (of more than ten lanes about 100000 in all), estimated beyond.';

COMMENT ON COLUMN pulse.lanes.depth_estimated IS
'Whether depth is an estimate.';

COMMENT ON COLUMN pulse.lanes.oldest_ready_age IS
'How long the oldest ready job has stood in line; in a lane with groups, of the first thousand groups.';

COMMENT ON COLUMN pulse.lanes.delayed IS
'How many of its jobs are scheduled or retrying: counted up to 10000 (of more than ten lanes about 100000 in all), estimated beyond.';

COMMENT ON COLUMN pulse.lanes.delayed_estimated IS
'Whether delayed is an estimate.';

COMMENT ON COLUMN pulse.lanes.throughput IS
'How many of its jobs finished a minute, over the last five minutes, as sampled by tick.';

COMMENT ON COLUMN pulse.lanes.enabled IS
'Whether it may be claimed, as set by set_lane.';

COMMENT ON COLUMN pulse.lanes.drained IS
'Whether drain_lane stopped it.';

COMMENT ON COLUMN pulse.lanes.paused_by IS
'Every holder that keeps it, or everything, from being claimed, with its reason; NULL when none does.';

COMMENT ON COLUMN pulse.lanes.settings IS
'What set_lane was given; what is missing is the default.';

COMMENT ON COLUMN pulse.lanes.blocked IS
'How many of its jobs wait for other jobs: counted up to 10000 (of more than ten lanes about 100000 in all), estimated beyond.';
