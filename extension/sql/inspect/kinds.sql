-- Lane by lane and kind by kind off the index, the oldest of each.
CREATE VIEW pulse_internal.ready_kinds
WITH (security_barrier)
AS
WITH RECURSIVE line (lane, kind, ready_at, n) AS (
    (
        SELECT r.lane, r.kind, r.ready_at, 1
        FROM pulse_internal.ready AS r
        WHERE r.attempts >= 0
            AND r.group_key IS NULL
        ORDER BY r.lane, r.kind, r.rank, r.seq
        LIMIT 1
    )
    UNION ALL
    SELECT x.lane, x.kind, x.ready_at, p.n + 1
    FROM line AS p
    CROSS JOIN
        LATERAL (
            SELECT r.lane, r.kind, r.ready_at
            FROM pulse_internal.ready AS r
            WHERE (r.lane, r.kind) > (p.lane, p.kind)
                AND r.attempts >= 0
                AND r.group_key IS NULL
            ORDER BY r.lane, r.kind, r.rank, r.seq
            LIMIT 1
        ) AS x
    WHERE p.n < 10000
),

-- The same of groups, by the kind of their first job, since they had their turn.
head (lane, kind, ready_at, n) AS (
    (
        SELECT s.lane, s.kind, s.written_at, 1
        FROM pulse_internal.group_state AS s
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
            FROM pulse_internal.group_state AS s
            WHERE (s.lane, s.kind) > (p.lane, p.kind)
                AND s.turn IS NOT NULL
                AND s.place >= 0
            ORDER BY s.lane, s.kind, s.rank, s.turn
            LIMIT 1
        ) AS x
    WHERE p.n < 10000
)

SELECT i.lane, i.kind, i.ready_at, i.n, false AS grouped
FROM line AS i
UNION ALL
SELECT h.lane, h.kind, h.ready_at, h.n, true AS grouped
FROM head AS h;

COMMENT ON VIEW pulse_internal.ready_kinds IS
'The kinds that are ready in each lane, at most 10,000, with the job that is claimed first.';

COMMENT ON COLUMN pulse_internal.ready_kinds.lane IS
'The lane.';

COMMENT ON COLUMN pulse_internal.ready_kinds.kind IS
'The kind.';

COMMENT ON COLUMN pulse_internal.ready_kinds.ready_at IS
'When that job joined the line.';

COMMENT ON COLUMN pulse_internal.ready_kinds.n IS
'Its number, in the order of lanes and kinds.';

COMMENT ON COLUMN pulse_internal.ready_kinds.grouped IS
'Whether it is that of a group.';

-- A function, for the settings that the counts need. No index has the kinds of groups: those
-- are in the sample alone.
CREATE FUNCTION pulse_internal.ready_by_kind()
RETURNS TABLE (
    kind text, ready bigint, estimated boolean, oldest_ready_at timestamptz, lanes text []
)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
ROWS 100
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH line AS MATERIALIZED (
        SELECT r.lane, r.kind, r.ready_at, r.n, r.grouped
        FROM pulse_internal.ready_kinds AS r
    ),

    -- Of very many pairs none is counted.
    budget AS MATERIALIZED (
        SELECT
            CASE WHEN count(*) <= 2000 THEN pulse_internal.count_up_to(count(*)) ELSE 0 END AS most
        FROM line AS i
    ),

    counted AS MATERIALIZED (
        SELECT
            i.kind,
            sum(greatest(c.jobs, 1)) FILTER (WHERE NOT i.grouped) AS jobs,
            bool_or(c.jobs > b.most OR b.most = 0) AS more,
            min(i.ready_at) AS oldest_ready_at,
            array_agg(i.lane::text ORDER BY i.grouped, i.n) AS lanes
        FROM line AS i
        CROSS JOIN budget AS b
        CROSS JOIN LATERAL (
            SELECT count(*) AS jobs
            FROM (
                SELECT
                FROM pulse_internal.ready AS r
                WHERE r.lane = i.lane
                    AND r.kind = i.kind
                    AND r.attempts >= 0
                    AND r.group_key IS NULL
                    AND NOT i.grouped
                    AND b.most > 0
                ORDER BY r.rank, r.seq
                LIMIT b.most + 1
            ) AS capped
        ) AS c
        GROUP BY i.kind
    ),

    sampled AS MATERIALIZED (
        SELECT
            s.kind,
            coalesce(sum(s.jobs) FILTER (WHERE NOT s.grouped), 0)::bigint AS alone,
            coalesce(sum(s.jobs) FILTER (WHERE s.grouped), 0)::bigint AS grouped,
            bool_or(s.grouped AND s.jobs > 1) AS estimated
        FROM pulse_internal.ready_sample AS s
        GROUP BY s.kind
    )

    SELECT
        coalesce(c.kind, s.kind)::text,
        (
            CASE WHEN c.more IS FALSE THEN coalesce(c.jobs, 0) ELSE greatest(c.jobs, s.alone) END
            + coalesce(s.grouped, 0)
        )::bigint,
        coalesce(c.more, s.alone > 0) OR coalesce(s.estimated, false),
        c.oldest_ready_at,
        coalesce(c.lanes, '{}')
    FROM counted AS c
    FULL JOIN sampled AS s ON s.kind = c.kind;
END;
$$;

COMMENT ON FUNCTION pulse_internal.ready_by_kind() IS
'The kinds that are ready: how many, whether that is an estimate, the oldest that is claimed first in its lane, and the first 10,000 pairs of lane and kind.';

-- From the totals of each kind: the newest, and the last one before that time.
CREATE FUNCTION pulse.failing_kinds(since interval DEFAULT '15 minutes')
RETURNS TABLE (kind text, failed bigint, started bigint, dead bigint)
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
    PERFORM pulse_internal.require_range('failing_kinds', 'since', failing_kinds.since);
    v_from := clock_timestamp() - coalesce(failing_kinds.since, '15 minutes');

    RETURN QUERY
    WITH RECURSIVE known (kind) AS (
        (
            SELECT s.kind
            FROM pulse_internal.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind > ''
            ORDER BY s.kind
            LIMIT 1
        )
        UNION ALL
        SELECT n.kind
        FROM known AS k
        CROSS JOIN LATERAL (
            SELECT s.kind
            FROM pulse_internal.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind > k.kind
            ORDER BY s.kind
            LIMIT 1
        ) AS n
    ),

    happened AS (
        SELECT
            k.kind,
            n.failed - coalesce(o.failed, 0) AS failed,
            n.started - coalesce(o.started, 0) AS started,
            n.dead - coalesce(o.dead, 0) AS dead
        FROM known AS k
        CROSS JOIN LATERAL (
            SELECT s.*
            FROM pulse_internal.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind = k.kind
            ORDER BY s.at DESC
            LIMIT 1
        ) AS n
        LEFT JOIN LATERAL (
            SELECT s.*
            FROM pulse_internal.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind = k.kind
                AND s.at <= v_from
            ORDER BY s.at DESC
            LIMIT 1
        ) AS o ON true
        WHERE n.at > v_from
    )

    SELECT h.kind::text, h.failed, h.started, h.dead
    FROM happened AS h
    WHERE h.failed >= 3
        AND h.failed * 20 >= h.started
    ORDER BY h.failed DESC, h.kind;
END;
$$;

COMMENT ON FUNCTION pulse.failing_kinds(interval) IS
'Kinds of which three runs or more failed lately, and one in twenty or more: how many failed and began, and how many jobs died; the most failures first. PU002 since outside the bounds. Writes nothing.';

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
    FROM pulse_internal.ready_by_kind() AS r
),

running AS MATERIALIZED (
    SELECT l.kind, count(*) AS jobs
    FROM pulse_internal.lease AS l
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
    FROM pulse_internal.schedule AS s
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
    SELECT x.kind FROM pulse_internal.kind AS x
    UNION
    SELECT x.kind FROM ready AS x
    UNION
    SELECT x.kind FROM running AS x
    UNION
    SELECT x.kind FROM taken AS x
    UNION
    SELECT x.kind FROM scheduled AS x
) AS o
LEFT JOIN pulse_internal.kind AS k ON k.kind = o.kind
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
