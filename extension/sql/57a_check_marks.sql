-- By the index of each line, below its mark only: nothing is there but dead rows. Mark by mark
-- (OFFSET 0), whatever the statistics say: tick calls it (docs/decisions/pinned-plans.md).
CREATE FUNCTION pulse._below_marks(max_rows integer)
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    WITH newest_mark AS (
        SELECT DISTINCT ON (m.lane, m.kind) m.lane, m.kind, m.ranks, m.seqs
        FROM pulse.mark AS m
        ORDER BY m.lane, m.kind, m.version DESC
    ),

    newest_due_mark AS (
        SELECT DISTINCT ON (m.lane) m.lane, m.run_at, m.ranks, m.run_ats
        FROM pulse.due_mark AS m
        ORDER BY m.lane, m.version DESC
    )

    (
        SELECT
            'ready job is below its mark', r.job,
            format('Place %s, mark %s, lane %s, priority %s.', r.seq, v.seq, m.lane, -v.rank)
        FROM newest_mark AS m
        CROSS JOIN LATERAL unnest(m.ranks, m.seqs) AS v (rank, seq)
        CROSS JOIN LATERAL (
            SELECT o.job, o.seq
            FROM pulse.ready AS o
            WHERE o.lane = m.lane
                AND o.rank = v.rank
                AND o.failures >= 0
                AND o.seq < v.seq
                AND m.kind IN ('', o.kind)
            ORDER BY o.rank, o.seq
            OFFSET 0
        ) AS r
        LIMIT _below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'waiting job is below its mark', w.job,
            format('Due %s, mark %s, lane %s.', w.run_at, m.run_at, m.lane)
        FROM newest_due_mark AS m
        CROSS JOIN LATERAL (
            SELECT o.job, o.run_at
            FROM pulse.waiting AS o
            WHERE o.lane = m.lane
                AND o.run_at < m.run_at
                AND o.attempts >= 0
            ORDER BY o.run_at
            OFFSET 0
        ) AS w
        LIMIT _below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'waiting job is below its mark', w.job,
            format(
                'Due %s, mark %s, lane %s, priority %s.', w.run_at, v.run_at, m.lane, -v.rank
            )
        FROM newest_due_mark AS m
        CROSS JOIN LATERAL unnest(m.ranks, m.run_ats) AS v (rank, run_at)
        CROSS JOIN LATERAL (
            SELECT o.job, o.run_at
            FROM pulse.waiting AS o
            WHERE o.lane = m.lane
                AND o.rank = v.rank
                AND o.run_at < v.run_at
                AND o.run_at >= m.run_at
                AND o.failures >= 0
            ORDER BY o.rank, o.run_at
            OFFSET 0
        ) AS w
        WHERE v.run_at > m.run_at
        LIMIT _below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'lease is below its mark', l.job,
            format('Lease of worker %s, claimed %s.', l.worker, l.claimed_at)
        FROM pulse.lease AS l
        WHERE l.reap_at IS NULL
            AND l.lease < (
                SELECT (t.state ->> 'from')::bigint
                FROM pulse.upkeep_run AS t
                WHERE t.step = 'watch'
                ORDER BY t.version DESC
                LIMIT 1
            )
        LIMIT _below_marks.max_rows
    )
$$;

COMMENT ON FUNCTION pulse._below_marks(integer) IS
'Jobs that no claim or promotion would find because a mark has passed them: none, if pulse is right.';
