-- The pick of a claim is one statement in it (40_claim.sql); here is the same for others, and
-- how a claim asks for newer marks (52_marks.sql).

-- Any kind: level by level from the top, each from its mark.
CREATE FUNCTION pulse._pick(
    lane text, need integer, mark pulse.mark
)
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ranks integer [] := (_pick.mark).ranks;
    v_seqs bigint [] := (_pick.mark).seqs;
    v_levels integer := coalesce(cardinality(v_ranks), 0);
    v_picked tid [];
    v_some tid [];
    v_read bigint;
    v_step bigint;
    v_stepped bigint;
BEGIN
    FOR v_level IN 0..v_levels LOOP
        -- As _entries_read, without a call.
        v_read := pg_stat_get_xact_tuples_returned('pulse.ready_for_claim'::regclass)
            + 100 * pg_stat_get_xact_blocks_fetched('pulse.ready_for_claim'::regclass);

        SELECT
            array_agg(s.tid),
            -- A level above all known ones has to be recorded.
            CASE
                WHEN v_level > 0 OR v_levels = 0 THEN min(s.seq) - coalesce(v_seqs[v_level], 0)
                WHEN min(s.seq) IS NOT NULL THEN 500
            END
        INTO v_some, v_step
        FROM (
            SELECT r.ctid AS tid, r.seq
            FROM pulse.ready AS r
            WHERE r.lane = _pick.lane
                AND r.failures >= 0
                AND (r.rank, r.seq)
                >= (coalesce(v_ranks[v_level], -2147483648), coalesce(v_seqs[v_level], 0))
                AND r.rank < coalesce(v_ranks[v_level + 1], 2147483647)
            ORDER BY r.rank, r.seq
            LIMIT _pick.need - coalesce(cardinality(v_picked), 0)
            FOR UPDATE SKIP LOCKED
        ) AS s;

        IF v_step IS NULL THEN
            v_step := pulse._entries_read('pulse.ready_for_claim') - v_read - 500;
        END IF;
        v_stepped := greatest(v_stepped, v_step);
        v_picked := v_picked || v_some;
        EXIT WHEN cardinality(v_picked) >= _pick.need;
    END LOOP;

    IF v_stepped >= 500 THEN
        PERFORM pulse._ask_for_marks(_pick.lane, '{}', _pick.mark, false);
    END IF;
    RETURN coalesce(v_picked, '{}');
END;
$$;

COMMENT ON FUNCTION pulse._pick(text, integer, pulse.mark) IS
'Lock the first jobs of a lane that nobody else has locked, at most need, and return their addresses; mark is the newest of the lane.';

-- What reading has cost, in entries of an index: those it returned, of dead rows as well,
-- and a hundred for each page, as a page of entries that are marked dead returns none.
-- Taken before and after, the difference says whether there was a pile to step over: not
-- even distances in seq do, since they count the rows of all lanes. A look at an empty
-- place costs a descent, 500 at most.
CREATE FUNCTION pulse._entries_read(index regclass)
RETURNS bigint
-- Not sql, which would be parsed and planned at each call.
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pg_stat_get_xact_tuples_returned(index)
        + 100 * pg_stat_get_xact_blocks_fetched(index);
END;
$$;

COMMENT ON FUNCTION pulse._entries_read(regclass) IS
'How many entries of an index this session has read lately, a page counted as a hundred.';

-- A claim that had to step over 500 places or more asks. It counts the entries of dead rows
-- that it has read, and pages; idle claims write nothing. The picks of other files take the
-- distance in seq where they found a job, which counts the rows of all lanes: they ask too
-- often rather than too seldom. Asking is cheap and not repeated within 20 ms.
CREATE FUNCTION pulse._ask_for_marks(
    lane text, kinds text [], mark pulse.mark, patchy boolean
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_horizon pulse.horizon;
    v_kind text;
BEGIN
    IF (
        (_ask_for_marks.mark).marked_at BETWEEN
        clock_timestamp() - interval '20 milliseconds' AND clock_timestamp()
        AND NOT _ask_for_marks.patchy
    )
        OR NOT pg_try_advisory_xact_lock(
            'pulse.mark'::regclass::oid::integer, hashtext(_ask_for_marks.lane)
        )
    THEN
        RETURN;
    END IF;

    v_horizon := pulse._see_horizon();
    PERFORM pulse._advance_line(
        _ask_for_marks.lane, '', v_horizon.ready_q,
        CASE WHEN _ask_for_marks.patchy THEN clock_timestamp() END
    );
    FOREACH v_kind IN ARRAY _ask_for_marks.kinds LOOP
        PERFORM pulse._advance_line(_ask_for_marks.lane, v_kind, v_horizon.ready_q);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._ask_for_marks(text, text [], pulse.mark, boolean) IS
'Advance the marks of a lane from inside a claim, when that pays.';
