-- Jobs that are due, or stand in ready, are sorted into their groups, under the roster lock.

CREATE FUNCTION pulse_internal.promote_to_groups(due tid [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    WITH due AS (
        DELETE FROM pulse_internal.waiting AS w
        WHERE w.ctid = ANY (promote_to_groups.due)
        RETURNING w.*
    ),

    named AS MATERIALIZED (
        SELECT
            d.*, pulse_internal.group_of(b.group_key) AS line,
            CASE WHEN l.in_order THEN d.place END AS place_kept
        FROM due AS d
        CROSS JOIN LATERAL (
            SELECT o.group_key FROM pulse_internal.body AS o WHERE o.job = d.job OFFSET 0
        ) AS b
        CROSS JOIN LATERAL (
            SELECT o.in_order FROM pulse_internal.lane AS o WHERE o.lane = d.lane OFFSET 0
        ) AS l
        ORDER BY d.run_at, d.job
    ),

    fresh AS (
        INSERT INTO pulse_internal.ready AS r (
            lane, group_key, rank, kind, job, attempts, failures, keyed, last_lease,
            last_verb
        )
        SELECT
            n.lane, n.line, n.rank, n.kind, n.job, n.attempts, n.failures, n.keyed,
            n.last_lease, n.last_verb
        FROM named AS n
        WHERE n.place_kept IS NULL
        RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
    ),

    -- Those for which their groups waited.
    again AS (
        INSERT INTO pulse_internal.ready AS r (
            lane, group_key, rank, seq, kind, job, attempts, failures, keyed, last_lease,
            last_verb
        )
        SELECT
            n.lane, n.line, n.rank, n.place_kept, n.kind, n.job, n.attempts, n.failures,
            n.keyed, n.last_lease, n.last_verb
        FROM named AS n
        WHERE n.place_kept IS NOT NULL
        RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
    ),

    placed AS (
        SELECT f.* FROM fresh AS f
        UNION ALL
        SELECT a.* FROM again AS a
    )

    INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
    SELECT n.lane, n.group_key, n.rank, n.place, n.kind
    FROM (
        SELECT
            p.lane, p.group_key, p.rank, min(p.seq) AS place,
            (array_agg(p.kind ORDER BY p.seq))[1] AS kind
        FROM placed AS p
        GROUP BY p.lane, p.group_key, p.rank
        UNION ALL
        SELECT DISTINCT a.lane, a.group_key, NULL::integer, NULL::bigint, NULL
        FROM again AS a
    ) AS n
    ORDER BY n.place;
END;
$$;

COMMENT ON FUNCTION pulse_internal.promote_to_groups(tid []) IS
'Move these rows of waiting into the lines of their groups.';

-- Jobs without a key, and those enqueued before the lane was grouped. They keep their
-- places, which may be below all that their groups have: the notices say so.
CREATE FUNCTION pulse_internal.sort_into_groups(
    lane text,
    max_jobs integer,
    mark pulse_internal.mark,
    OUT moved integer,
    OUT named integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_sort = off
SET enable_nestloop = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_tids tid [];
BEGIN
    v_tids := pulse_internal.pick(sort_into_groups.lane, sort_into_groups.max_jobs, mark);
    moved := cardinality(v_tids);
    named := 0;
    IF moved = 0 THEN
        RETURN;
    END IF;

    PERFORM pulse_internal.enter_lane(sort_into_groups.lane);
    WITH taken AS (
        DELETE FROM pulse_internal.ready AS r
        WHERE r.ctid = ANY (v_tids)
        RETURNING r.*
    ),

    placed AS (
        INSERT INTO pulse_internal.ready AS r (
            lane, group_key, rank, seq, kind, job, attempts, failures, keyed, ready_at,
            last_lease, last_verb
        )
        SELECT
            t.lane, pulse_internal.group_of(b.group_key), t.rank, t.seq, t.kind, t.job,
            t.attempts, t.failures, t.keyed, t.ready_at, t.last_lease, t.last_verb
        FROM taken AS t
        CROSS JOIN LATERAL (
            SELECT o.group_key FROM pulse_internal.body AS o WHERE o.job = t.job OFFSET 0
        ) AS b
        RETURNING r.group_key, r.rank, r.seq, r.kind
    ),

    announced AS (
        INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
        SELECT
            sort_into_groups.lane, p.group_key, p.rank, min(p.seq),
            (array_agg(p.kind ORDER BY p.seq))[1]
        FROM placed AS p
        GROUP BY p.group_key, p.rank
        ORDER BY min(p.seq)
    )

    SELECT count(*) INTO sort_into_groups.named
    FROM placed AS p
    WHERE p.group_key <> '';
END;
$$;

COMMENT ON FUNCTION pulse_internal.sort_into_groups(text, integer, pulse_internal.mark) IS
'Move jobs of a grouped lane from ready into the lines of their groups, at most so many; returns how many, and how many of these have a group_key.';
