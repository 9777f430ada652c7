-- The pick of a claim is one statement in it (claim/claim.sql); here is the same for others, and
-- how a claim asks for newer marks (common/marks.sql).

-- Any kind: level by level from the top, each from its mark.
CREATE FUNCTION pulse_internal.pick(
    lane text, need integer, mark pulse_internal.mark
)
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ranks integer [] := (pick.mark).ranks;
    v_seqs bigint [] := (pick.mark).seqs;
    v_levels integer := coalesce(cardinality(v_ranks), 0);
    v_picked tid [];
    v_some tid [];
    v_read bigint;
    v_step bigint;
    v_stepped bigint;
BEGIN
    FOR v_level IN 0..v_levels LOOP
        -- As entries_read, without a call.
        v_read := pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim'::regclass)
            + 100 * pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass);

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
            FROM pulse_internal.ready AS r
            WHERE r.lane = pick.lane
                AND r.failures >= 0
                AND r.group_key IS NULL
                AND (r.rank, r.seq)
                >= (coalesce(v_ranks[v_level], -2147483648), coalesce(v_seqs[v_level], 0))
                AND r.rank < coalesce(v_ranks[v_level + 1], 2147483647)
            ORDER BY r.rank, r.seq
            LIMIT pick.need - coalesce(cardinality(v_picked), 0)
            FOR UPDATE SKIP LOCKED
        ) AS s;

        IF v_step IS NULL THEN
            v_step := pulse_internal.entries_read('pulse_internal.ready_for_claim') - v_read - 500;
        END IF;
        v_stepped := greatest(v_stepped, v_step);
        v_picked := v_picked || v_some;
        EXIT WHEN cardinality(v_picked) >= pick.need;
    END LOOP;

    IF v_stepped >= 500 THEN
        PERFORM pulse_internal.ask_for_marks(pick.lane, '{}', pick.mark, false);
    END IF;
    RETURN coalesce(v_picked, '{}');
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick(text, integer, pulse_internal.mark) IS
'Lock the first jobs of a lane that nobody else has locked, at most need, and return their addresses; mark is the newest of the lane.';

-- What reading has cost, in entries of an index: those it returned, of dead rows as well,
-- and a hundred for each page, as a page of entries that are marked dead returns none.
-- Taken before and after, the difference says whether there was a pile to step over: not
-- even distances in seq do, since they count the rows of all lanes. A look at an empty
-- place costs a descent, 500 at most.
CREATE FUNCTION pulse_internal.entries_read(index regclass)
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

COMMENT ON FUNCTION pulse_internal.entries_read(regclass) IS
'How many entries of an index this session has read lately, a page counted as a hundred.';

-- A claim that had to step over 500 places or more asks. It counts the entries of dead rows
-- that it has read, and pages; idle claims write nothing. The picks of other files take the
-- distance in seq where they found a job, which counts the rows of all lanes: they ask too
-- often rather than too seldom. Asking is cheap and not repeated within 20 ms.
CREATE FUNCTION pulse_internal.ask_for_marks(
    lane text, kinds text [], mark pulse_internal.mark, patchy boolean
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_decided bigint;
    v_kind text;
BEGIN
    IF (
        (ask_for_marks.mark).marked_at BETWEEN
        clock_timestamp() - interval '20 milliseconds' AND clock_timestamp()
        AND NOT ask_for_marks.patchy
    )
        OR NOT pg_try_advisory_xact_lock(
            'pulse_internal.mark'::regclass::oid::integer, hashtext(ask_for_marks.lane)
        )
    THEN
        RETURN;
    END IF;

    v_decided := (
        pulse_internal.decided_in_lane(pulse_internal.see_horizon(), ask_for_marks.lane)
    ).seq;
    PERFORM pulse_internal.advance_line(
        ask_for_marks.lane, '', v_decided,
        CASE WHEN ask_for_marks.patchy THEN clock_timestamp() END
    );
    FOREACH v_kind IN ARRAY ask_for_marks.kinds LOOP
        PERFORM pulse_internal.advance_line(ask_for_marks.lane, v_kind, v_decided);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.ask_for_marks(text, text [], pulse_internal.mark, boolean) IS
'Advance the marks of a lane from inside a claim, when that pays.';

-- The picks of a claim that names kinds: the essay is above the claim (claim/claim.sql).

-- Some kinds: windows of the same line, filtered; see the essay above.
CREATE FUNCTION pulse_internal.pick_kinds(
    lane text,
    kinds text [],
    need integer,
    mark pulse_internal.mark,
    without text []
)
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ranks integer [] := (pick_kinds.mark).ranks;
    v_levels integer := coalesce(cardinality(v_ranks), 0);
    v_level integer := 0;
    v_from_rank integer := -2147483648;
    v_from_seq bigint := 0;
    v_to_rank integer := coalesce(v_ranks[1], 2147483647);
    v_window integer := pick_kinds.need;
    v_picked tid [] := ARRAY[]::tid [];
    v_seen integer;
    v_wanted integer;
    v_all_seen bigint := 0;
    v_all_wanted bigint := 0;
    v_some tid [];
    v_first_seq bigint;
    v_last_rank integer;
    v_last_seq bigint;
    v_read bigint;
    v_stepped bigint := 0;
    v_patchy boolean := false;
BEGIN
    IF (pick_kinds.mark).patchy_at
        BETWEEN clock_timestamp() - interval '10 seconds' AND clock_timestamp()
    THEN
        RETURN pulse_internal.pick_by_kind(
            pick_kinds.lane, pick_kinds.kinds, pick_kinds.need, v_picked,
            pick_kinds.without
        );
    END IF;

    LOOP
        -- As entries_read, without a call.
        v_read := pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim'::regclass)
            + 100 * pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass);
        -- One statement, so one snapshot: a row address seen here cannot be reused for
        -- another row before it is locked.
        WITH seen AS MATERIALIZED (
            SELECT
                r.ctid AS tid, r.rank, r.seq,
                coalesce(r.kind = ANY (pick_kinds.kinds), r.kind <> ALL (pick_kinds.without))
                AS wanted
            FROM pulse_internal.ready AS r
            WHERE r.lane = pick_kinds.lane
                AND r.failures >= 0
                AND r.group_key IS NULL
                AND (r.rank, r.seq) >= (v_from_rank, v_from_seq)
                AND r.rank < v_to_rank
            ORDER BY r.rank, r.seq
            LIMIT v_window
        ),

        counted AS (
            SELECT
                count(*) AS n,
                count(*) FILTER (WHERE s.wanted) AS wanted,
                min(s.seq) AS first_seq,
                max(s.rank) AS last_rank
            FROM seen AS s
        )

        SELECT
            c.n,
            c.wanted,
            c.first_seq,
            c.last_rank,
            (SELECT max(s.seq) FROM seen AS s WHERE s.rank = c.last_rank),
            array(
                SELECT r.ctid
                FROM pulse_internal.ready AS r
                WHERE r.ctid = ANY (array(SELECT s.tid FROM seen AS s WHERE s.wanted))
                ORDER BY r.rank, r.seq
                LIMIT pick_kinds.need - cardinality(v_picked)
                FOR UPDATE SKIP LOCKED
            )
        INTO v_seen, v_wanted, v_first_seq, v_last_rank, v_last_seq, v_some
        FROM counted AS c;

        v_picked := v_picked || v_some;
        v_all_seen := v_all_seen + v_seen;
        v_all_wanted := v_all_wanted + v_wanted;
        IF v_seen < v_window THEN
            v_read := pulse_internal.entries_read('pulse_internal.ready_for_claim') - v_read - 500;
        END IF;
        IF v_first_seq IS NULL THEN
            v_stepped := greatest(v_stepped, v_read);
        ELSIF v_level > 0 OR v_levels = 0 THEN
            v_stepped := greatest(v_stepped, v_first_seq - v_from_seq);
        ELSE
            -- A level above all known ones has to be recorded.
            v_stepped := 500;
        END IF;
        EXIT WHEN cardinality(v_picked) >= pick_kinds.need;

        IF v_seen < v_window THEN
            -- The end of the segment. Far more was read than rows seen, behind a row that
            -- is not ours: the mark stands there and cannot help.
            v_patchy := v_patchy OR (v_wanted < v_seen AND v_read > 2000 + 8 * v_seen);
            v_level := v_level + 1;
            EXIT WHEN v_level > v_levels;
            v_from_rank := v_ranks[v_level];
            v_from_seq := (pick_kinds.mark).seqs[v_level];
            v_to_rank := coalesce(v_ranks[v_level + 1], 2147483647);
        ELSE
            v_patchy := v_all_seen >= 100 AND v_all_wanted * 8 < v_all_seen;
            EXIT WHEN v_patchy;
            v_window := pick_kinds.need + 100;
            v_from_rank := v_last_rank;
            v_from_seq := v_last_seq + 1;
        END IF;
    END LOOP;

    IF v_patchy AND cardinality(v_picked) < pick_kinds.need THEN
        v_picked := v_picked || pulse_internal.pick_by_kind(
            pick_kinds.lane, pick_kinds.kinds,
            pick_kinds.need - cardinality(v_picked), v_picked, pick_kinds.without
        );
    END IF;

    IF v_stepped >= 500 OR v_patchy THEN
        PERFORM pulse_internal.ask_for_marks(
            pick_kinds.lane, '{}', pick_kinds.mark, v_patchy
        );
    END IF;
    RETURN v_picked;
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick_kinds(
    text, text [], integer, pulse_internal.mark, text []
) IS
'Like pick, for some kinds only, or where kinds is NULL for all without some.';

-- Kind by kind: a window of candidates of each level of each kind, not locked, merged in
-- claim order; the first ones are locked. Again, further down, while short.
CREATE FUNCTION pulse_internal.pick_by_kind(
    lane text, kinds text [], need integer, already tid [], without text []
)
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kinds text [] := coalesce(
        pick_by_kind.kinds, pulse_internal.kinds_in_line(pick_by_kind.lane, pick_by_kind.without)
    );
    -- A few more than needed: other claimers have locked some.
    v_window integer := pick_by_kind.need + 32;
    v_after_rank integer := -2147483648;
    v_after_seq bigint := -1;
    v_picked tid [] := ARRAY[]::tid [];
    v_some tid [];
    v_seen integer;
    v_last_rank integer;
    v_last_seq bigint;
    v_stepped bigint := 0;
    v_step bigint;
    v_segments integer;
    v_read bigint := pulse_internal.entries_read('pulse_internal.ready_for_claim_by_kind');
    v_dead bigint := pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim_by_kind'::regclass)
        - pg_stat_get_xact_tuples_fetched('pulse_internal.ready_for_claim_by_kind'::regclass);
BEGIN
    LOOP
        WITH line AS (
            SELECT
                u.kind,
                m.ranks,
                m.seqs
            FROM (SELECT DISTINCT k.kind FROM unnest(v_kinds) AS k (kind)) AS u
            CROSS JOIN LATERAL pulse_internal.newest_mark(pick_by_kind.lane, u.kind) AS m
        ),

        segment AS (
            SELECT
                l.kind,
                CASE WHEN f.further THEN v_after_rank ELSE f.rank END AS from_rank,
                CASE WHEN f.further THEN v_after_seq + 1 ELSE f.seq END AS from_seq,
                f.to_rank
            FROM line AS l
            CROSS JOIN LATERAL (
                SELECT
                    b.*,
                    (v_after_rank, v_after_seq) >= (b.rank, b.seq) AS further
                FROM (
                    SELECT
                        coalesce(l.ranks[nullif(n.level, 0)], -2147483648) AS rank,
                        coalesce(l.seqs[nullif(n.level, 0)], 0) AS seq,
                        coalesce(l.ranks[n.level + 1], 2147483647) AS to_rank
                    FROM generate_series(0, coalesce(cardinality(l.ranks), 0)) AS n (level)
                ) AS b
                WHERE b.to_rank > v_after_rank
            ) AS f
        ),

        candidate AS MATERIALIZED (
            SELECT
                c.tid,
                c.rank,
                c.seq,
                CASE
                    WHEN c.place = 1 AND c.rank = s.from_rank THEN c.seq - s.from_seq
                END AS stepped
            FROM segment AS s
            CROSS JOIN LATERAL (
                SELECT f.*, row_number() OVER () AS place
                FROM (
                    SELECT r.ctid AS tid, r.rank, r.seq
                    FROM pulse_internal.ready AS r
                    WHERE r.lane = pick_by_kind.lane
                        AND r.kind = s.kind
                        AND r.attempts >= 0
                        AND r.group_key IS NULL
                        AND (r.rank, r.seq) >= (s.from_rank, s.from_seq)
                        AND r.rank < s.to_rank
                    ORDER BY r.rank, r.seq
                    LIMIT v_window
                ) AS f
            ) AS c
            ORDER BY c.rank, c.seq
            LIMIT v_window
        )

        SELECT
            count(*),
            max(c.rank),
            (
                SELECT max(x.seq)
                FROM candidate AS x
                WHERE x.rank = (SELECT max(y.rank) FROM candidate AS y)
            ),
            max(c.stepped),
            (SELECT count(*) FROM segment AS s),
            array(
                SELECT r.ctid
                FROM pulse_internal.ready AS r
                WHERE r.ctid = ANY (array(SELECT x.tid FROM candidate AS x))
                    AND r.ctid <> ALL (pick_by_kind.already)
                ORDER BY r.rank, r.seq
                LIMIT pick_by_kind.need - cardinality(v_picked)
                FOR UPDATE SKIP LOCKED
            )
        INTO v_seen, v_last_rank, v_last_seq, v_step, v_segments, v_some
        FROM candidate AS c;

        v_picked := v_picked || v_some;
        v_stepped := greatest(v_stepped, v_step);
        EXIT WHEN cardinality(v_picked) >= pick_by_kind.need
            OR v_seen < v_window;
        v_after_rank := v_last_rank;
        v_after_seq := v_last_seq;
        v_window := least(v_window * 2, 10000);
    END LOOP;

    -- Entries of dead rows, as in the claim: also of a level that nobody has recorded yet.
    v_stepped := greatest(
        v_stepped,
        pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim_by_kind'::regclass)
        - pg_stat_get_xact_tuples_fetched('pulse_internal.ready_for_claim_by_kind'::regclass) - v_dead
    );
    IF cardinality(v_picked) = 0 THEN
        v_read := pulse_internal.entries_read('pulse_internal.ready_for_claim_by_kind') - v_read;
        v_stepped := greatest(v_stepped, v_read - 500 * v_segments);
    END IF;
    IF v_stepped >= 500 THEN
        PERFORM pulse_internal.ask_for_marks(
            pick_by_kind.lane, v_kinds, pulse_internal.newest_mark(pick_by_kind.lane, v_kinds[1]),
            false
        );
    END IF;
    RETURN v_picked;
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick_by_kind(text, text [], integer, tid [], text []) IS
'Like pick_kinds, when jobs of other kinds pile up at the head of the line.';
