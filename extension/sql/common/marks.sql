-- Low-water marks: never step over the dead.
--
-- Rows leave ready at the head of its index. While an old snapshot is held anywhere in
-- the cluster, vacuum cannot remove them, and a scan from the start would meet every
-- one. So for each level of a line (a rank) pulse keeps the smallest seq that can still
-- be live, and claims start there.
--
-- The trap: seq order is not commit order. A transaction may have drawn seq 5 and
-- still be open while 6 to 900 are committed, claimed and gone. A mark at 901 would lose
-- job 5 for ever. So a mark moves in two steps:
--
--   1. see_horizon() finds out up to which seq q every transaction that put jobs into the
--      lane has ended (common/horizon.sql).
--   2. In a later statement, and so with a newer snapshot, advance_line() looks for the
--      smallest live seq m; the mark is least(m, q + 1).
--
-- m comes from a plain SELECT: one with SKIP LOCKED would pass rows whose claim is
-- rolled back afterwards. A mark once right is right for ever, since no seq is drawn
-- twice, so two sessions that advance the same line do no harm. Where both read an old row
-- of mark and one session deletes it, the other skips it.
--
-- waiting has the same trap with time for seq: run_at is computed inside the INSERT as
-- greatest(wanted, clock_timestamp()), after the lane is announced. A clock may step
-- back: due_floor keeps what is inserted meanwhile from standing below a mark. Two other readers
-- stop at the same horizon: the sweep, which tells reap of new leases, reads leases up to lease_q
-- (maintenance/reap.sql), and the count reads tally up to tally_q (stats/count.sql).
--
-- claim/pick.sql and maintenance/advance_marks.sql move marks with advance_line; others only read
-- them. The conditions failures >= 0 and attempts >= 0 hold for every row: each names the index
-- that serves the statement (docs/decisions/pinned-plans.md).

CREATE FUNCTION pulse_internal.newest_mark(lane text, kind text)
RETURNS pulse_internal.mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse_internal.mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse_internal.mark AS m
    WHERE m.lane = newest_mark.lane
        AND m.kind = newest_mark.kind
    ORDER BY m.version DESC
    LIMIT 1;

    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_mark(text, text) IS
'The marks of a line; kind '''' is the whole lane.';

-- The first live row of a line in a range; a plain SELECT on purpose.
CREATE FUNCTION pulse_internal.first_live(
    lane text,
    kind text,
    from_rank integer,
    from_seq bigint,
    to_rank integer,
    OUT rank integer,
    OUT seq bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF first_live.kind = '' THEN
        SELECT r.rank, r.seq INTO first_live.rank, first_live.seq
        FROM pulse_internal.ready AS r
        WHERE r.lane = first_live.lane
            AND r.failures >= 0
            AND r.group_key IS NULL
            AND (r.rank, r.seq) >= (first_live.from_rank, first_live.from_seq)
            AND r.rank < first_live.to_rank
        ORDER BY r.rank, r.seq
        LIMIT 1;
    ELSE
        SELECT r.rank, r.seq INTO first_live.rank, first_live.seq
        FROM pulse_internal.ready AS r
        WHERE r.lane = first_live.lane
            AND r.kind = first_live.kind
            AND r.attempts >= 0
            AND r.group_key IS NULL
            AND (r.rank, r.seq) >= (first_live.from_rank, first_live.from_seq)
            AND r.rank < first_live.to_rank
        ORDER BY r.rank, r.seq
        LIMIT 1;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.first_live(text, text, integer, bigint, integer) IS
'The first row of a line, from a place on and before a rank, that the newest snapshot can see.';

-- Walks the line: known levels from their marks, and whatever stands in the gaps between
-- them. At most 100 levels are recorded; what is not recorded is a gap, which is
-- right and only slower. Returns true if the line has been empty for over a minute and its
-- marks were left as they are.
CREATE FUNCTION pulse_internal.advance_line(
    lane text, kind text, q bigint, patchy_at timestamptz DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_last constant bigint := 9223372036854775807;
    v_old pulse_internal.mark := pulse_internal.newest_mark(advance_line.lane, advance_line.kind);
    v_levels integer := coalesce(cardinality(v_old.ranks), 0);
    v_level integer := 1;
    v_ranks integer [] := ARRAY[]::integer [];
    v_seqs bigint [] := ARRAY[]::bigint [];
    v_from_rank integer := -2147483648;
    v_from_seq bigint := 0;
    v_found record;
    v_dry boolean := true;
    v_dry_at timestamptz;
    v_index regclass := CASE
        WHEN advance_line.kind = '' THEN 'pulse_internal.ready_for_claim'::regclass
        ELSE 'pulse_internal.ready_for_claim_by_kind'::regclass
    END;
    v_read bigint := pulse_internal.entries_read(v_index);
BEGIN
    LOOP
        EXIT WHEN cardinality(v_ranks) >= 100;

        SELECT f.* INTO v_found
        FROM pulse_internal.first_live(
            advance_line.lane, advance_line.kind, v_from_rank, v_from_seq,
            coalesce(v_old.ranks[v_level], 2147483647)
        ) AS f;

        IF v_found.rank IS NOT NULL THEN
            v_dry := false;
            v_ranks := v_ranks || v_found.rank;
            v_seqs := v_seqs || least(v_found.seq, advance_line.q + 1);
            v_from_rank := v_found.rank;
            v_from_seq := v_last;
            CONTINUE;
        END IF;

        EXIT WHEN v_level > v_levels;

        SELECT f.* INTO v_found
        FROM pulse_internal.first_live(
            advance_line.lane, advance_line.kind,
            v_old.ranks[v_level], v_old.seqs[v_level], v_old.ranks[v_level] + 1
        ) AS f;

        v_dry := v_dry AND v_found.rank IS NULL;
        -- A level that ran dry is remembered while there are few: its dead rows may
        -- still stand in the index.
        IF v_found.rank IS NOT NULL OR cardinality(v_ranks) < 50 THEN
            v_ranks := v_ranks || v_old.ranks[v_level];
            v_seqs := v_seqs || greatest(
                v_old.seqs[v_level],
                least(coalesce(v_found.seq, v_last), advance_line.q + 1)
            );
        END IF;
        v_from_rank := v_old.ranks[v_level];
        v_from_seq := v_last;
        v_level := v_level + 1;
    END LOOP;

    IF v_dry THEN
        v_dry_at := coalesce(v_old.dry_at, clock_timestamp());
    END IF;

    -- A line that has been dry for a minute is left as it is, unless there was a pile to step
    -- over, and forgotten when few dead rows stand in the whole table: no mark means from
    -- the start.
    IF v_dry_at < clock_timestamp() - interval '1 minute'
        AND advance_line.patchy_at IS NULL
        AND pulse_internal.entries_read(v_index) - v_read <= 500 * (2 * v_levels + 1)
    THEN
        IF pg_stat_get_dead_tuples('pulse_internal.ready'::regclass) >= 10000 THEN
            RETURN true;
        END IF;
        DELETE FROM pulse_internal.mark AS m
        WHERE m.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.mark AS o
                WHERE o.lane = v_old.lane
                    AND o.kind = v_old.kind
                FOR UPDATE SKIP LOCKED
            ));
        RETURN false;
    END IF;

    IF advance_line.patchy_at IS NULL
        AND v_ranks = coalesce(v_old.ranks, '{}')
        AND v_seqs = coalesce(v_old.seqs, '{}')
        AND (v_old.lane IS NULL OR (v_dry_at IS NULL) = (v_old.dry_at IS NULL))
    THEN
        RETURN false;
    END IF;

    INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at, patchy_at, dry_at)
    VALUES (
        advance_line.lane, advance_line.kind, v_ranks, v_seqs, clock_timestamp(),
        coalesce(advance_line.patchy_at, v_old.patchy_at), v_dry_at
    );

    DELETE FROM pulse_internal.mark AS m
    WHERE m.lane = v_old.lane
        AND m.kind = v_old.kind
        AND m.version = (
            SELECT o.version
            FROM pulse_internal.mark AS o
            WHERE o.lane = v_old.lane
                AND o.kind = v_old.kind
                AND o.version = v_old.version
            FOR UPDATE SKIP LOCKED
        );
    RETURN false;
END;
$$;

COMMENT ON FUNCTION pulse_internal.advance_line(text, text, bigint, timestamptz) IS
'Move the marks of a line up to the first live row of each level, never past q + 1; true where they are kept though the line has long been dry.';

CREATE FUNCTION pulse_internal.newest_due_mark(lane text)
RETURNS pulse_internal.due_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse_internal.due_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse_internal.due_mark AS m
    WHERE m.lane = newest_due_mark.lane
    ORDER BY m.version DESC
    LIMIT 1;

    v_mark.run_at := coalesce(v_mark.run_at, '-infinity');
    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_due_mark(text) IS
'From when on there can be live rows of this lane in waiting.';
