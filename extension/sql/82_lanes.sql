-- The lanes of jobs, read one by one off the indexes that begin with the lane: as
-- many looks as there are lanes, however many jobs. Running and unapproved jobs are
-- few and are simply read. Every name is above '': said here and below, it ends the walk
-- and lets the planner expect few lanes (else it compiles the query, for a second).
CREATE VIEW pulse._known_lanes
WITH (security_barrier)
AS
WITH RECURSIVE ready_lane (lane) AS (
    (
        SELECT r.lane
        FROM pulse.ready AS r
        WHERE r.failures >= 0
        ORDER BY r.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT r.lane
            FROM pulse.ready AS r
            WHERE r.lane > n.lane
                AND r.failures >= 0
            ORDER BY r.lane
            LIMIT 1
        )
    FROM ready_lane AS n
    WHERE n.lane > ''
),

waiting_lane (lane) AS (
    (
        SELECT w.lane
        FROM pulse.waiting AS w
        WHERE w.attempts >= 0
        ORDER BY w.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT w.lane
            FROM pulse.waiting AS w
            WHERE w.lane > n.lane
                AND w.attempts >= 0
            ORDER BY w.lane
            LIMIT 1
        )
    FROM waiting_lane AS n
    WHERE n.lane > ''
),

blocked_lane (lane) AS (
    (
        SELECT b.lane
        FROM pulse.blocked AS b
        ORDER BY b.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT b.lane
            FROM pulse.blocked AS b
            WHERE b.lane > n.lane
            ORDER BY b.lane
            LIMIT 1
        )
    FROM blocked_lane AS n
    WHERE n.lane > ''
),

finished_lane (lane) AS (
    (
        SELECT f.lane
        FROM pulse.finished AS f
        ORDER BY f.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT f.lane
            FROM pulse.finished AS f
            WHERE f.lane > n.lane
            ORDER BY f.lane
            LIMIT 1
        )
    FROM finished_lane AS n
    WHERE n.lane > ''
)

SELECT n.lane FROM ready_lane AS n WHERE n.lane > ''
UNION
SELECT n.lane FROM waiting_lane AS n WHERE n.lane > ''
UNION
SELECT n.lane FROM finished_lane AS n WHERE n.lane > ''
UNION
SELECT l.lane FROM pulse.lease AS l
UNION
SELECT a.lane FROM pulse.approval AS a
UNION
SELECT n.lane FROM blocked_lane AS n WHERE n.lane > ''
UNION
SELECT s.lane FROM pulse.lane AS s
UNION
SELECT k.lane FROM pulse.kind AS k WHERE k.lane IS NOT NULL
UNION
SELECT h.lane FROM pulse.hold AS h WHERE h.lane <> ''
UNION
SELECT 'default'::text COLLATE "C";

COMMENT ON VIEW pulse._known_lanes IS
'Every lane that has jobs, settings, kinds or holds, and default.';

COMMENT ON COLUMN pulse._known_lanes.lane IS
'The lane.';

-- Functions, for settings of their own: the planner, which knows little of a queue, would
-- sort a whole line, and compile the view around it.

-- Places grow with time inside a level, so the oldest job of a lane is the first of
-- one of its levels.
CREATE FUNCTION pulse._oldest_ready_at(lane text)
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
                FROM pulse.ready AS r
                WHERE r.lane = _oldest_ready_at.lane
                    AND r.failures >= 0
                ORDER BY r.rank, r.seq
                LIMIT 1
            )
            UNION ALL
            SELECT n.rank, n.ready_at
            FROM level AS v
            CROSS JOIN LATERAL (
                SELECT r.rank, r.ready_at
                FROM pulse.ready AS r
                WHERE r.lane = _oldest_ready_at.lane
                    AND r.rank > v.rank
                    AND r.failures >= 0
                ORDER BY r.rank, r.seq
                LIMIT 1
            ) AS n
        )

        SELECT least(
            (SELECT min(v.ready_at) FROM level AS v),
            pulse._oldest_in_groups(_oldest_ready_at.lane)
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse._oldest_ready_at(text) IS
'When the oldest ready job of a lane joined the line; NULL when none is ready.';

-- As above, the first of each level of each group; groups may be very many.
CREATE FUNCTION pulse._oldest_in_groups(lane text)
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
                FROM pulse.group_ready AS r
                WHERE r.lane = _oldest_in_groups.lane
                    AND r.failures >= 0
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT 1
            )
            UNION ALL
            SELECT f.group_key, f.rank, f.ready_at, v.n + 1
            FROM line AS v
            CROSS JOIN LATERAL (
                SELECT r.group_key, r.rank, r.ready_at
                FROM pulse.group_ready AS r
                WHERE r.lane = _oldest_in_groups.lane
                    AND (r.group_key, r.rank) > (v.group_key, v.rank)
                    AND r.failures >= 0
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT 1
            ) AS f
            WHERE v.n < 1000
        )

        SELECT min(v.ready_at) FROM line AS v
    );
END;
$$;

COMMENT ON FUNCTION pulse._oldest_in_groups(text) IS
'When the oldest job of the first thousand groups of a lane joined its line; NULL when none is ready.';

CREATE FUNCTION pulse._counted(lane text)
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
                FROM pulse.ready AS r
                WHERE r.lane = _counted.lane
                    AND r.failures >= 0
                ORDER BY r.rank, r.seq
                LIMIT 10001
            ) AS capped
        ) + (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.group_ready AS r
                WHERE r.lane = _counted.lane
                    AND r.failures >= 0
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT 10001
            ) AS capped
        ),
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.waiting AS w
                WHERE w.lane = _counted.lane
                    AND w.attempts >= 0
                ORDER BY w.run_at
                LIMIT 10001
            ) AS capped
        ),
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.blocked AS b
                WHERE b.lane = _counted.lane
                ORDER BY b.lane
                LIMIT 10001
            ) AS capped
        );
END;
$$;

COMMENT ON FUNCTION pulse._counted(text) IS
'How many jobs of a lane are ready, how many delayed and how many blocked, each counted up to 10001 in every table.';

-- Long lines are not counted but estimated, from the rows on some 400 pages; the same
-- pages each time, so that the figure does not flicker.
CREATE VIEW pulse._ready_estimate
WITH (security_barrier)
AS
SELECT
    e.lane,
    sum(e.jobs)::bigint AS jobs
FROM (
    SELECT
        s.lane,
        (count(*) * 100 / p.percent)::bigint AS jobs
    FROM (
        SELECT
            least(
                100,
                40000.0 * current_setting('block_size')::integer
                / greatest(pg_relation_size('pulse.ready'), 1)
            ) AS percent
    ) AS p
    CROSS JOIN
        LATERAL (
            SELECT r.lane
            FROM pulse.ready AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
        ) AS s
    GROUP BY s.lane, p.percent
    UNION ALL
    SELECT
        s.lane,
        (count(*) * 100 / p.percent)::bigint AS jobs
    FROM (
        SELECT
            least(
                100,
                40000.0 * current_setting('block_size')::integer
                / greatest(pg_relation_size('pulse.group_ready'), 1)
            ) AS percent
    ) AS p
    CROSS JOIN
        LATERAL (
            SELECT r.lane
            FROM pulse.group_ready AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
        ) AS s
    GROUP BY s.lane, p.percent
) AS e
GROUP BY e.lane;

COMMENT ON VIEW pulse._ready_estimate IS
'About how many jobs of each lane are ready, from a sample of the table.';

COMMENT ON COLUMN pulse._ready_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._ready_estimate.jobs IS
'About how many.';

CREATE VIEW pulse._waiting_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            40000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.waiting'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse.waiting AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._waiting_estimate IS
'About how many jobs of each lane are waiting, from a sample of the table.';

COMMENT ON COLUMN pulse._waiting_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._waiting_estimate.jobs IS
'About how many.';

CREATE VIEW pulse._blocked_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            40000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.blocked'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse.blocked AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._blocked_estimate IS
'About how many jobs of each lane are blocked, from a sample of the table.';

COMMENT ON COLUMN pulse._blocked_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._blocked_estimate.jobs IS
'About how many.';

-- A sample is taken when a lane needs it, and once.
CREATE VIEW pulse.lanes
WITH (security_barrier)
AS
WITH ready_estimate AS MATERIALIZED (
    SELECT e.lane, e.jobs
    FROM pulse._ready_estimate AS e
),

waiting_estimate AS MATERIALIZED (
    SELECT e.lane, e.jobs
    FROM pulse._waiting_estimate AS e
),

blocked_estimate AS MATERIALIZED (
    SELECT e.lane, e.jobs
    FROM pulse._blocked_estimate AS e
)

SELECT
    o.lane AS name,
    s.max_slots,
    coalesce(u.used, 0) AS used,
    CASE
        WHEN n.ready <= 10000 THEN n.ready
        ELSE
            greatest(
                n.ready,
                (
                    SELECT e.jobs
                    FROM ready_estimate AS e
                    WHERE e.lane = o.lane
                )
            )
    END AS depth,
    n.ready > 10000 AS depth_estimated,
    clock_timestamp() - pulse._oldest_ready_at(o.lane) AS oldest_ready_age,
    CASE
        WHEN n.delayed <= 10000 THEN n.delayed
        ELSE
            greatest(
                n.delayed,
                (
                    SELECT e.jobs
                    FROM waiting_estimate AS e
                    WHERE e.lane = o.lane
                )
            )
    END AS delayed,
    n.delayed > 10000 AS delayed_estimated,
    coalesce(
        (
            SELECT
                round(
                    60 * sum(t.completed + t.dead + t.cancelled)
                    / extract(EPOCH FROM sum(t.took))::numeric, 1
                )
            FROM pulse.sample AS t
            WHERE t.lane = o.lane
                AND t.at > clock_timestamp() - interval '5 minutes'
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
        WHEN n.blocked <= 10000 THEN n.blocked
        ELSE
            greatest(
                n.blocked,
                (
                    SELECT e.jobs
                    FROM blocked_estimate AS e
                    WHERE e.lane = o.lane
                )
            )
    END AS blocked
FROM pulse._known_lanes AS o
CROSS JOIN LATERAL pulse._counted(o.lane) AS n
LEFT JOIN pulse.lane AS s ON s.lane = o.lane
LEFT JOIN (
    SELECT
        l.lane,
        count(*) AS used
    FROM pulse.lease AS l
    GROUP BY l.lane
) AS u ON u.lane = o.lane
WHERE o.lane > ''
ORDER BY o.lane;

COMMENT ON VIEW pulse.lanes IS
'Every lane that has jobs, settings, kinds or holds, and default: slots, line, speed and who holds it. Who may read this view sees the jobs of everybody in the others.';

COMMENT ON COLUMN pulse.lanes.name IS
'The lane.';

COMMENT ON COLUMN pulse.lanes.max_slots IS
'How many of its jobs may run at once; NULL is no limit.';

COMMENT ON COLUMN pulse.lanes.used IS
'How many of its jobs run.';

COMMENT ON COLUMN pulse.lanes.depth IS
'How many of its jobs are ready: counted up to 10000, estimated beyond.';

COMMENT ON COLUMN pulse.lanes.depth_estimated IS
'Whether depth is an estimate.';

COMMENT ON COLUMN pulse.lanes.oldest_ready_age IS
'How long the oldest ready job has stood in line; in a lane with groups, of the first thousand groups.';

COMMENT ON COLUMN pulse.lanes.delayed IS
'How many of its jobs are scheduled or retrying: counted up to 10000, estimated beyond.';

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
'How many of its jobs wait for other jobs: counted up to 10000, estimated beyond.';
