-- What a sample counts, lane by lane and within bounds.

-- Every lease is either known to reap or at the numbers that the sweep has yet to see;
-- between the two stand those of short jobs that have ended (51_reap.sql).
CREATE FUNCTION pulse._running_now()
RETURNS TABLE (lane text, kind text, running bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_from bigint := coalesce(((pulse._newest_upkeep_run('watch')).state ->> 'from')::bigint, 0);
BEGIN
    RETURN QUERY
    SELECT u.lane, u.kind, count(*)
    FROM (
        (
            SELECT n.lane, n.kind
            FROM pulse.lease AS n
            WHERE n.lease >= v_from
            ORDER BY n.lease
        )
        UNION ALL
        (
            SELECT k.lane, k.kind
            FROM pulse.lease AS k
            WHERE k.reap_at > '-infinity'
                AND k.lease < v_from
            ORDER BY k.reap_at
        )
    ) AS u
    GROUP BY u.lane, u.kind;
END;
$$;

COMMENT ON FUNCTION pulse._running_now() IS
'How many jobs run of each lane and kind.';

-- Level by level, each from its mark, as a claim reads them (40_claim.sql).
CREATE FUNCTION pulse._count_ready(lane text, max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse.mark := pulse._newest_mark(_count_ready.lane, '');
    v_some integer;
    v_all integer := 0;
BEGIN
    FOR v_level IN 0..coalesce(cardinality(v_mark.ranks), 0) LOOP
        SELECT count(*) INTO v_some
        FROM (
            SELECT
            FROM pulse.ready AS r
            WHERE r.lane = _count_ready.lane
                AND r.failures >= 0
                AND (r.rank, r.seq) >= (
                    coalesce(v_mark.ranks[nullif(v_level, 0)], -2147483648),
                    coalesce(v_mark.seqs[nullif(v_level, 0)], 0)
                )
                AND r.rank < coalesce(v_mark.ranks[v_level + 1], 2147483647)
            ORDER BY r.rank, r.seq
            LIMIT _count_ready.max_rows - v_all
        ) AS capped;
        v_all := v_all + v_some;
        EXIT WHEN v_all >= _count_ready.max_rows;
    END LOOP;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse._count_ready(text, integer) IS
'How many jobs of a lane stand in ready, counted up to max_rows.';

CREATE FUNCTION pulse._count_in_groups(lane text, max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT count(*)
        FROM (
            SELECT
            FROM pulse.group_ready AS r
            WHERE r.lane = _count_in_groups.lane
                AND r.failures >= 0
            ORDER BY r.group_key, r.rank, r.seq
            LIMIT _count_in_groups.max_rows
        ) AS capped
    );
END;
$$;

COMMENT ON FUNCTION pulse._count_in_groups(text, integer) IS
'How many jobs of a lane stand in its groups, counted up to max_rows.';
