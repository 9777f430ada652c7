-- The checks of health that are about lanes and their jobs.

-- Lane by lane and kind by kind off the index, the oldest of each.
CREATE VIEW pulse._ready_kinds
WITH (security_barrier)
AS
WITH RECURSIVE line (lane, kind, ready_at, n) AS (
    (
        SELECT r.lane, r.kind, r.ready_at, 1
        FROM pulse.ready AS r
        WHERE r.attempts >= 0
        ORDER BY r.lane, r.kind, r.rank, r.seq
        LIMIT 1
    )
    UNION ALL
    SELECT x.lane, x.kind, x.ready_at, p.n + 1
    FROM line AS p
    CROSS JOIN
        LATERAL (
            SELECT r.lane, r.kind, r.ready_at
            FROM pulse.ready AS r
            WHERE (r.lane, r.kind) > (p.lane, p.kind)
                AND r.attempts >= 0
            ORDER BY r.lane, r.kind, r.rank, r.seq
            LIMIT 1
        ) AS x
    WHERE p.n < 10000
),

-- The same of groups, by the kind of their first job, since they had their turn.
head (lane, kind, ready_at, n) AS (
    (
        SELECT s.lane, s.kind, s.written_at, 1
        FROM pulse.group_state AS s
        WHERE s.turn IS NOT NULL
            AND s.place >= 0
        ORDER BY s.lane, s.kind, s.rank, s.turn
        LIMIT 1
    )
    UNION ALL
    SELECT x.lane, x.kind, x.written_at, p.n + 1
    FROM head AS p
    CROSS JOIN
        LATERAL (
            SELECT s.lane, s.kind, s.written_at
            FROM pulse.group_state AS s
            WHERE (s.lane, s.kind) > (p.lane, p.kind)
                AND s.turn IS NOT NULL
                AND s.place >= 0
            ORDER BY s.lane, s.kind, s.rank, s.turn
            LIMIT 1
        ) AS x
    WHERE p.n < 10000
)

SELECT i.lane, i.kind, i.ready_at, i.n
FROM line AS i
UNION ALL
SELECT h.lane, h.kind, h.ready_at, h.n
FROM head AS h;

COMMENT ON VIEW pulse._ready_kinds IS
'The kinds that are ready in each lane, at most 10,000, with the job that is claimed first.';

COMMENT ON COLUMN pulse._ready_kinds.lane IS
'The lane.';

COMMENT ON COLUMN pulse._ready_kinds.kind IS
'The kind.';

COMMENT ON COLUMN pulse._ready_kinds.ready_at IS
'When that job joined the line.';

COMMENT ON COLUMN pulse._ready_kinds.n IS
'Its number, in the order of lanes and kinds.';

CREATE FUNCTION pulse._health_lanes()
RETURNS TABLE (check_name text, status text, figure text, advice text, jobs jsonb)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        'oldest_ready_job',
        CASE
            WHEN max(o.age) > interval '1 hour' THEN 'fail'
            WHEN max(o.age) > interval '5 minutes' THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            (
                array_agg(
                    format('%s in lane %s', pulse._duration(o.age), o.lane) ORDER BY o.age DESC
                )
            ) [1],
            'nothing waits'
        ),
        'Jobs wait in lanes that nobody holds: start more workers, raise max_slots, or ask pulse.why(job_id).',
        jsonb_build_array(
            jsonb_build_object(
                'state', 'ready', 'lane', (array_agg(o.lane ORDER BY o.age DESC)) [1]
            )
        )
    FROM (
        SELECT
            r.lane,
            clock_timestamp() - pulse._oldest_ready_at(r.lane) AS age
        FROM pulse._known_lanes AS r
        WHERE pulse._oldest_ready_at(r.lane) IS NOT NULL
            AND NOT EXISTS (SELECT FROM pulse._lane_holds(r.lane))
    ) AS o;

    RETURN QUERY
    SELECT
        'stuck_lanes',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(string_agg(o.lane, ', ' ORDER BY o.lane), 'none'),
        'Jobs are ready for over 5 minutes, nobody holds the lane, and nothing was claimed: start a worker that takes these lanes.',
        jsonb_path_query_array(
            jsonb_agg(jsonb_build_object('state', 'ready', 'lane', o.lane) ORDER BY o.lane),
            '$[0 to 9]'
        )
    FROM pulse._known_lanes AS o
    WHERE pulse._oldest_ready_at(o.lane) < clock_timestamp() - interval '5 minutes'
        AND NOT EXISTS (SELECT FROM pulse._lane_holds(o.lane))
        AND NOT EXISTS (SELECT FROM pulse._slot_obstacle(o.lane))
        AND NOT EXISTS (SELECT FROM pulse._rate_obstacle(o.lane))
        -- Every group is held: by its runs, by a job it waits for, by set_group.
        AND NOT EXISTS (
            SELECT
            FROM pulse.lane AS s
            WHERE s.lane = o.lane
                AND s.grouped
                AND EXISTS (
                    SELECT FROM pulse.group_state AS g
                    WHERE g.lane = s.lane AND g.rank IS NOT NULL
                )
                AND NOT EXISTS (
                    SELECT FROM pulse.group_state AS g
                    WHERE g.lane = s.lane AND g.turn IS NOT NULL AND g.version > 0
                )
        )
        AND NOT EXISTS (
            SELECT FROM pulse.lease AS l
            WHERE l.lane = o.lane
                AND l.claimed_at > clock_timestamp() - interval '5 minutes'
        )
        AND NOT EXISTS (
            SELECT
            FROM unnest(enum_range(NULL::pulse.outcome)) AS s (state)
            -- A million may have been cancelled before they ran.
            CROSS JOIN LATERAL (
                SELECT n.claimed_at
                FROM pulse.finished AS n
                WHERE n.lane = o.lane
                    AND n.state = s.state
                    AND n.finished_at > (SELECT clock_timestamp() - interval '5 minutes')
                ORDER BY n.finished_at DESC
                LIMIT 1000
            ) AS f
            WHERE f.claimed_at IS NOT NULL
        );

    RETURN QUERY
    WITH
    -- What live workers take, once for all lines; kind '' is every kind. Workers of one
    -- deployment take the same.
    handled AS MATERIALIZED (
        SELECT DISTINCT l.lane COLLATE "C" AS lane, k.kind COLLATE "C" AS kind
        FROM (
            SELECT DISTINCT w.lanes, w.kinds
            FROM pulse.workers AS w
            WHERE w.seen_at > clock_timestamp() - interval '2 minutes'
        ) AS t
        CROSS JOIN LATERAL unnest(t.lanes) AS l (lane)
        CROSS JOIN LATERAL unnest(coalesce(t.kinds, '{""}')) AS k (kind)
        WHERE k.kind IS NOT NULL
    )

    SELECT
        'unhandled_kinds',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        coalesce(
            (
                string_agg(format('%s in lane %s', p.kind, p.lane), ', ' ORDER BY p.n)
                FILTER (WHERE p.place <= 10)
            ) || CASE WHEN count(*) > 10 THEN format(' and %s more', count(*) - 10) ELSE '' END,
            'none'
        ),
        'No worker that was seen in the last 2 minutes takes them: start one, correct its kinds, or move_where the jobs. Workers that never say hello are known only by what they run.',
        jsonb_agg(
            jsonb_build_object('state', 'ready', 'lane', p.lane, 'kind', p.kind) ORDER BY p.n
        ) FILTER (WHERE p.place <= 10)
    FROM (
        SELECT
            i.lane,
            i.kind,
            i.n,
            row_number() OVER (ORDER BY i.n) AS place
        FROM pulse._ready_kinds AS i
        WHERE i.ready_at < clock_timestamp() - interval '2 minutes'
            -- NOT IN is hashed whatever the planner thinks of their number.
            AND (i.lane, i.kind) NOT IN (SELECT h.lane, h.kind FROM handled AS h)
            AND i.lane NOT IN (SELECT h.lane FROM handled AS h WHERE h.kind = '')
    ) AS p;

    RETURN QUERY
    SELECT
        'group_notices',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        coalesce(string_agg(u.lane, ', ' ORDER BY u.lane), 'none waits'),
        'Jobs were put into groups over a minute ago, workers take these lanes, and no claim has looked at them: a claim in an open transaction holds the lane (see pg_stat_activity), or the lane is full.',
        NULL::jsonb
    FROM (
        SELECT l.lane
        FROM pulse.lane AS l
        WHERE l.grouped
            AND NOT EXISTS (SELECT FROM pulse._lane_holds(l.lane))
            AND NOT EXISTS (SELECT FROM pulse._slot_obstacle(l.lane))
            AND EXISTS (SELECT FROM pulse._live_workers(l.lane))
            AND EXISTS (
                SELECT
                FROM pulse.group_notice AS n
                INNER JOIN pulse.group_ready AS r
                    ON r.lane = n.lane
                    AND r.group_key = n.group_key
                    AND r.rank = n.rank
                    AND r.seq = n.place
                    AND r.failures >= 0
                WHERE n.lane = l.lane
                    AND r.ready_at < clock_timestamp() - interval '1 minute'
            )
    ) AS u;

    RETURN QUERY
    SELECT
        'dead_jobs',
        CASE WHEN d.lately > 0 OR d.total >= 1000 THEN 'warn' ELSE 'ok' END,
        format(
            '%s%s, %s of them in the last hour',
            d.total, CASE WHEN d.total >= 100000 THEN ' or more' ELSE '' END, d.lately
        ),
        'SELECT * FROM pulse.dead says why; pulse.retry_where puts them back in line.',
        '[{"state": "dead"}]'::jsonb
    FROM (
        SELECT
            count(*) AS total,
            count(*) FILTER (
                WHERE c.finished_at > clock_timestamp() - interval '1 hour'
            ) AS lately
        FROM (
            SELECT f.finished_at
            FROM pulse.finished AS f
            WHERE f.state = 'dead'
                AND f.failures >= 0
            ORDER BY f.finished_at DESC, f.job DESC
            LIMIT 100000
        ) AS c
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse._health_lanes() IS
'Checks of whether jobs get through.';
