-- The kinds that are known: set, in line, running, scheduled, or taken by a worker. Jobs that
-- have ended name no kind here.

CREATE VIEW pulse.kinds
WITH (security_barrier)
AS
WITH ready AS MATERIALIZED (
    SELECT
        r.kind COLLATE "C" AS kind,
        r.ready,
        r.estimated,
        r.oldest_ready_at,
        r.lanes COLLATE "C" AS lanes
    FROM pulse._ready_by_kind() AS r
),

running AS MATERIALIZED (
    SELECT l.kind, count(*) AS jobs
    FROM pulse.lease AS l
    GROUP BY l.kind
),

-- Workers of one deployment take the same. Kind '' is every kind.
taken AS MATERIALIZED (
    SELECT
        k.kind,
        sum(t.workers)::bigint AS workers
    FROM (
        SELECT w.kinds, count(*) AS workers
        FROM pulse.workers AS w
        WHERE w.live
        GROUP BY w.kinds
    ) AS t
    CROSS JOIN
        LATERAL (
            SELECT DISTINCT u.kind COLLATE "C" AS kind
            FROM unnest(coalesce(t.kinds, '{""}')) AS u (kind)
            WHERE u.kind IS NOT NULL
        ) AS k
    GROUP BY k.kind
),

scheduled AS MATERIALIZED (
    SELECT s.kind COLLATE "C" AS kind, count(*) AS schedules
    FROM pulse.schedule AS s
    GROUP BY s.kind COLLATE "C"
)

SELECT
    o.kind AS name,
    coalesce(u.jobs, 0) AS running,
    r.oldest_ready_at,
    coalesce(r.lanes, '{}') AS ready_in,
    coalesce(t.workers, 0)
    + coalesce((SELECT e.workers FROM taken AS e WHERE e.kind = ''), 0) AS workers,
    coalesce(s.schedules, 0) AS schedules,
    coalesce(jsonb_strip_nulls(to_jsonb(k) - 'kind'), '{}') AS settings,
    coalesce(r.ready, 0) AS ready,
    coalesce(r.estimated, false) AS ready_estimated
FROM (
    SELECT x.kind FROM pulse.kind AS x
    UNION
    SELECT x.kind FROM ready AS x
    UNION
    SELECT x.kind FROM running AS x
    UNION
    SELECT x.kind FROM taken AS x
    UNION
    SELECT x.kind FROM scheduled AS x
) AS o
LEFT JOIN pulse.kind AS k ON k.kind = o.kind
LEFT JOIN ready AS r ON r.kind = o.kind
LEFT JOIN running AS u ON u.kind = o.kind
LEFT JOIN taken AS t ON t.kind = o.kind
LEFT JOIN scheduled AS s ON s.kind = o.kind
WHERE o.kind <> '';

COMMENT ON VIEW pulse.kinds IS
'Every kind that has settings, waits in line, runs, is scheduled or is named by a live worker.';

COMMENT ON COLUMN pulse.kinds.name IS
'The kind.';

COMMENT ON COLUMN pulse.kinds.running IS
'How many of its jobs run.';

COMMENT ON COLUMN pulse.kinds.oldest_ready_at IS
'When the job of it that is claimed next joined the line; NULL when none is ready.';

COMMENT ON COLUMN pulse.kinds.ready_in IS
'The lanes in which jobs of it are ready.';

COMMENT ON COLUMN pulse.kinds.workers IS
'How many live workers take it, those that take every kind included.';

COMMENT ON COLUMN pulse.kinds.schedules IS
'How many schedules enqueue it.';

COMMENT ON COLUMN pulse.kinds.settings IS
'What set_kind was given; what is missing is the default.';

COMMENT ON COLUMN pulse.kinds.ready IS
'How many of its jobs are ready: counted up to 10000 in a lane (of more than ten pairs of lane and kind about 100000 in all; in groups, where these are few), estimated beyond.';

COMMENT ON COLUMN pulse.kinds.ready_estimated IS
'Whether ready is an estimate.';
