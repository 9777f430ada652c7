-- Functions, for settings of their own: the planner, which knows little of a queue, would
-- sort a whole line, and compile the view around it.

-- Places grow with time inside a level, so the oldest job of a lane is the first of
-- one of its levels.
CREATE FUNCTION pulse_internal.oldest_ready_at(lane text, most_groups bigint DEFAULT 1000)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (
        WITH RECURSIVE level (rank, ready_at) AS (
            (
                SELECT r.rank, r.ready_at
                FROM pulse_internal.ready AS r
                WHERE r.lane = oldest_ready_at.lane
                    AND r.failures >= 0
                    AND r.group_key IS NULL
                ORDER BY r.rank, r.seq
                LIMIT 1
            )
            UNION ALL
            SELECT n.rank, n.ready_at
            FROM level AS v
            CROSS JOIN LATERAL (
                SELECT r.rank, r.ready_at
                FROM pulse_internal.ready AS r
                WHERE r.lane = oldest_ready_at.lane
                    AND r.rank > v.rank
                    AND r.failures >= 0
                    AND r.group_key IS NULL
                ORDER BY r.rank, r.seq
                LIMIT 1
            ) AS n
        )

        SELECT least(
            (SELECT min(v.ready_at) FROM level AS v),
            -- To enter a function costs more than this look, and few lanes have groups.
            CASE
                WHEN EXISTS (
                    SELECT
                    FROM pulse_internal.ready AS r
                    WHERE r.lane = oldest_ready_at.lane
                        AND r.group_key IS NOT NULL
                )
                    THEN pulse_internal.oldest_in_groups(
                        oldest_ready_at.lane, oldest_ready_at.most_groups
                    )
            END
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.oldest_ready_at(text, bigint) IS
'When the oldest ready job of a lane joined the line, of so many groups; NULL when none is ready.';

-- How many groups a look at so many lanes reads of each.
CREATE FUNCTION pulse_internal.groups_up_to(lanes bigint)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT least(1000, pulse_internal.count_up_to(groups_up_to.lanes))
$$;

COMMENT ON FUNCTION pulse_internal.groups_up_to(bigint) IS
'How many groups are looked at in each of so many lanes: 1000, and of more than a hundred lanes about 100,000 in all.';

-- As above, the first of each level of each group; groups may be very many.
CREATE FUNCTION pulse_internal.oldest_in_groups(lane text, most_groups bigint)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (
        WITH RECURSIVE line (group_key, rank, ready_at, n) AS (
            (
                SELECT r.group_key, r.rank, r.ready_at, 1
                FROM pulse_internal.ready AS r
                WHERE r.lane = oldest_in_groups.lane
                    AND r.group_key IS NOT NULL
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT 1
            )
            UNION ALL
            SELECT f.group_key, f.rank, f.ready_at, v.n + 1
            FROM line AS v
            CROSS JOIN LATERAL (
                SELECT r.group_key, r.rank, r.ready_at
                FROM pulse_internal.ready AS r
                WHERE r.lane = oldest_in_groups.lane
                    AND (r.group_key, r.rank) > (v.group_key, v.rank)
                    AND r.group_key IS NOT NULL
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT 1
            ) AS f
            WHERE v.n < oldest_in_groups.most_groups
        )

        SELECT min(v.ready_at)
        FROM line AS v
        WHERE NOT EXISTS (
            SELECT
            FROM pulse_internal.group_rule AS q
            WHERE q.lane = oldest_in_groups.lane
                AND q.group_key = v.group_key
                AND NOT q.enabled
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.oldest_in_groups(text, bigint) IS
'When the oldest job of so many groups of a lane, the first by name, joined its line, but for groups that set_group stopped; NULL when none is ready.';

-- Lines are counted as far as this, and estimated beyond: up to 10,000 jobs each, and of
-- many lines so many that a look reads about 100,000 in all.
CREATE FUNCTION pulse_internal.count_up_to(lines bigint)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(least(10000, 100000 / greatest(count_up_to.lines, 1)), 20)
$$;

COMMENT ON FUNCTION pulse_internal.count_up_to(bigint) IS
'How many jobs of each of so many lines are counted.';

CREATE FUNCTION pulse_internal.counted(lane text, most bigint)
RETURNS TABLE (ready bigint, delayed bigint, blocked bigint)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
ROWS 1
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse_internal.ready AS r
                WHERE r.lane = counted.lane
                    AND r.failures >= 0
                    AND r.group_key IS NULL
                ORDER BY r.rank, r.seq
                LIMIT counted.most + 1
            ) AS capped
        ) + (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse_internal.ready AS r
                WHERE r.lane = counted.lane
                    AND r.group_key IS NOT NULL
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT counted.most + 1
            ) AS capped
        ),
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse_internal.waiting AS w
                WHERE w.lane = counted.lane
                    AND w.attempts >= 0
                ORDER BY w.run_at
                LIMIT counted.most + 1
            ) AS capped
        ),
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse_internal.blocked AS b
                WHERE b.lane = counted.lane
                ORDER BY b.lane
                LIMIT counted.most + 1
            ) AS capped
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.counted(text, bigint) IS
'How many jobs of a lane are ready, how many delayed and how many blocked, each counted up to one more than most in every table.';

-- A sample is taken when a lane needs it, and once; an object is looked up faster than a
-- list of a thousand lanes is read a thousand times.
CREATE VIEW pulse.lanes
WITH (security_barrier)
AS
WITH known AS MATERIALIZED (
    SELECT
        k.lane,
        pulse_internal.count_up_to(count(*) OVER ()) AS most,
        pulse_internal.groups_up_to(count(*) OVER ()) AS most_groups
    FROM pulse_internal.known_lanes AS k
    WHERE k.lane > ''
),

ready_estimate AS MATERIALIZED (
    SELECT jsonb_object_agg(e.lane, e.jobs) AS jobs
    FROM pulse_internal.ready_estimate AS e
),

waiting_estimate AS MATERIALIZED (
    SELECT jsonb_object_agg(e.lane, e.jobs) AS jobs
    FROM pulse_internal.waiting_estimate AS e
),

blocked_estimate AS MATERIALIZED (
    SELECT jsonb_object_agg(e.lane, e.jobs) AS jobs
    FROM pulse_internal.blocked_estimate AS e
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
    -- Of many lanes most are idle, and they are not asked.
    CASE
        WHEN n.ready > 0
            THEN clock_timestamp() - pulse_internal.oldest_ready_at(o.lane, o.most_groups)
    END AS oldest_ready_age,
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
            SELECT round((newest.finished - coalesce(b.finished, 0)) / 5.0, 1)
            FROM (
                SELECT t.at, t.completed + t.dead + t.cancelled AS finished
                FROM pulse_internal.stat AS t
                WHERE t.total
                    AND t.lane = o.lane
                    AND t.kind = ''
                ORDER BY t.at DESC
                LIMIT 1
            ) AS newest
            LEFT JOIN LATERAL (
                SELECT t.completed + t.dead + t.cancelled AS finished
                FROM pulse_internal.stat AS t
                WHERE t.total
                    AND t.lane = o.lane
                    AND t.kind = ''
                    -- A scalar subquery: an index scan cannot stop at a volatile value.
                    AND t.at <= (SELECT clock_timestamp() - interval '5 minutes')
                ORDER BY t.at DESC
                LIMIT 1
            ) AS b ON true
            WHERE newest.at > clock_timestamp() - interval '5 minutes'
        ),
        0
    ) AS throughput,
    coalesce(s.enabled, true) AS enabled,
    EXISTS (
        SELECT FROM pulse_internal.hold AS h
        WHERE h.lane = o.lane
            AND h.holder = 'drain'
    ) AS drained,
    (
        SELECT
            array_agg(
                h.holder || coalesce(' (' || nullif(h.reason, '') || ')', '')
                ORDER BY h.lane, h.holder
            )
        FROM pulse_internal.hold AS h
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
CROSS JOIN LATERAL pulse_internal.counted(o.lane, o.most) AS n
LEFT JOIN pulse_internal.lane AS s ON s.lane = o.lane
LEFT JOIN (
    SELECT
        l.lane,
        count(*) AS used
    FROM pulse_internal.lease AS l
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
'How long the oldest ready job has stood in line; in a lane with groups, of the first 1000 groups (of more than a hundred lanes about 100000 in all).';

COMMENT ON COLUMN pulse.lanes.delayed IS
'How many of its jobs are scheduled or retrying: counted up to 10000 (of more than ten lanes about 100000 in all), estimated beyond.';

COMMENT ON COLUMN pulse.lanes.delayed_estimated IS
'Whether delayed is an estimate.';

COMMENT ON COLUMN pulse.lanes.throughput IS
'How many of its jobs finished a minute, over the last five minutes, as far as tick has counted them.';

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
