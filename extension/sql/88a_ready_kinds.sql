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
