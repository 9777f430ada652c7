-- By the index of each line, below its mark only: nothing is there but dead rows.
CREATE FUNCTION pulse._below_marks(max_rows integer)
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
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
            format('Place %s, mark %s, lane %s, priority %s.', r.seq, v.seq, r.lane, -r.rank)
        FROM newest_mark AS m
        CROSS JOIN LATERAL unnest(m.ranks, m.seqs) AS v (rank, seq)
        INNER JOIN pulse.ready AS r
            ON r.lane = m.lane
            AND r.rank = v.rank
            AND r.failures >= 0
            AND r.seq < v.seq
            AND m.kind IN ('', r.kind)
        LIMIT _below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'waiting job is below its mark', w.job,
            format('Due %s, mark %s, lane %s.', w.run_at, m.run_at, w.lane)
        FROM newest_due_mark AS m
        INNER JOIN pulse.waiting AS w
            ON w.lane = m.lane
            AND w.run_at < m.run_at
            AND w.attempts >= 0
        LIMIT _below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'waiting job is below its mark', w.job,
            format(
                'Due %s, mark %s, lane %s, priority %s.', w.run_at, v.run_at, w.lane, -w.rank
            )
        FROM newest_due_mark AS m
        CROSS JOIN LATERAL unnest(m.ranks, m.run_ats) AS v (rank, run_at)
        INNER JOIN pulse.waiting AS w
            ON w.lane = m.lane
            AND w.rank = v.rank
            AND w.run_at < v.run_at
            AND w.failures >= 0
        WHERE v.run_at > m.run_at
            AND w.run_at >= m.run_at
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
