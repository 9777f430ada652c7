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

SELECT i.lane, i.kind, i.ready_at, i.n, false AS grouped
FROM line AS i
UNION ALL
SELECT h.lane, h.kind, h.ready_at, h.n, true AS grouped
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

COMMENT ON COLUMN pulse._ready_kinds.grouped IS
'Whether it is that of a group.';

-- A function, for the settings that the counts need. No index has the kinds of groups: those
-- are in the sample alone.
CREATE FUNCTION pulse._ready_by_kind()
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
        FROM pulse._ready_kinds AS r
    ),

    -- Of very many pairs none is counted.
    budget AS MATERIALIZED (
        SELECT CASE WHEN count(*) <= 2000 THEN pulse._count_up_to(count(*)) ELSE 0 END AS most
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
                FROM pulse.ready AS r
                WHERE r.lane = i.lane
                    AND r.kind = i.kind
                    AND r.attempts >= 0
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
        FROM pulse._ready_sample AS s
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

COMMENT ON FUNCTION pulse._ready_by_kind() IS
'The kinds that are ready: how many, whether that is an estimate, the oldest that is claimed first in its lane, and the first 10,000 pairs of lane and kind.';
