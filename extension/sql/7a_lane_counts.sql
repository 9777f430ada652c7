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

        SELECT min(v.ready_at)
        FROM line AS v
        WHERE NOT EXISTS (
            SELECT
            FROM pulse.group_rule AS q
            WHERE q.lane = _oldest_in_groups.lane
                AND q.group_key = v.group_key
                AND NOT q.enabled
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse._oldest_in_groups(text) IS
'When the oldest job of the first thousand groups of a lane joined its line, but for groups that set_group stopped; NULL when none is ready.';

-- Lines are counted as far as this, and estimated beyond: up to 10,000 jobs each, and of
-- many lines so many that a look reads about 100,000 in all.
CREATE FUNCTION pulse._count_up_to(lines bigint)
RETURNS bigint
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(least(10000, 100000 / greatest(_count_up_to.lines, 1)), 20)
$$;

COMMENT ON FUNCTION pulse._count_up_to(bigint) IS
'How many jobs of each of so many lines are counted.';

CREATE FUNCTION pulse._counted(lane text, most bigint)
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
                LIMIT _counted.most + 1
            ) AS capped
        ) + (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.group_ready AS r
                WHERE r.lane = _counted.lane
                    AND r.failures >= 0
                ORDER BY r.group_key, r.rank, r.seq
                LIMIT _counted.most + 1
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
                LIMIT _counted.most + 1
            ) AS capped
        ),
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.blocked AS b
                WHERE b.lane = _counted.lane
                ORDER BY b.lane
                LIMIT _counted.most + 1
            ) AS capped
        );
END;
$$;

COMMENT ON FUNCTION pulse._counted(text, bigint) IS
'How many jobs of a lane are ready, how many delayed and how many blocked, each counted up to one more than most in every table.';
