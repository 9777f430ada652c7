-- The lanes of jobs, read one by one off the indexes that begin with the lane: as
-- many looks as there are lanes, however many jobs. Running and unapproved jobs are
-- few and are simply read. Every name is above '': said here and below, it ends the walk
-- and lets the planner expect few lanes (else it compiles the query, for a second).
CREATE VIEW pulse_internal.known_lanes
WITH (security_barrier)
AS
WITH RECURSIVE ready_lane (lane) AS (
    (
        SELECT r.lane
        FROM pulse_internal.ready AS r
        WHERE r.failures >= 0
            AND r.group_key IS NULL
        ORDER BY r.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT r.lane
            FROM pulse_internal.ready AS r
            WHERE r.lane > n.lane
                AND r.failures >= 0
                AND r.group_key IS NULL
            ORDER BY r.lane
            LIMIT 1
        )
    FROM ready_lane AS n
    WHERE n.lane > ''
),

waiting_lane (lane) AS (
    (
        SELECT w.lane
        FROM pulse_internal.waiting AS w
        WHERE w.attempts >= 0
        ORDER BY w.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT w.lane
            FROM pulse_internal.waiting AS w
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
        FROM pulse_internal.blocked AS b
        ORDER BY b.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT b.lane
            FROM pulse_internal.blocked AS b
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
        FROM pulse_internal.finished AS f
        ORDER BY f.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT f.lane
            FROM pulse_internal.finished AS f
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
SELECT l.lane FROM pulse_internal.lease AS l
UNION
SELECT a.lane FROM pulse_internal.approval AS a
UNION
SELECT n.lane FROM blocked_lane AS n WHERE n.lane > ''
UNION
SELECT s.lane FROM pulse_internal.lane AS s
UNION
SELECT k.lane FROM pulse_internal.kind AS k WHERE k.lane IS NOT NULL
UNION
SELECT h.lane FROM pulse_internal.hold AS h WHERE h.lane <> ''
UNION
SELECT 'default'::text COLLATE "C";

COMMENT ON VIEW pulse_internal.known_lanes IS
'Every lane that has jobs, settings, kinds or holds, and default.';

COMMENT ON COLUMN pulse_internal.known_lanes.lane IS
'The lane.';
