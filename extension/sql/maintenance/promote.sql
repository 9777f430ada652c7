-- promote: move jobs that are due from waiting to ready.
--
-- The highest priority comes first, and within a priority the oldest job, so a wave of jobs with
-- a low priority delays no urgent one. promote reads the priority levels of a lane as a claim
-- does (claim/claim.sql): the levels with a due mark, each from its mark on, and between two of
-- them the levels that have none yet. It stops when the batch is full. After 100 levels it takes
-- the rest by time alone: else a producer could make each claim long with a priority for each job
-- (docs/decisions/due-waves.md).
--
-- Due marks are rows of due_mark: for a lane and for each of its levels a time before which no job
-- waits. advance_due moves them, so that no scan steps over the dead rows of promoted jobs.
--
-- It deletes from waiting and inserts into ready. Locks: rows of waiting, SKIP LOCKED.

CREATE FUNCTION pulse_internal.promote(lane text, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse_internal.due_mark := pulse_internal.newest_due_mark(promote.lane);
    -- A variable: an index scan cannot stop at clock_timestamp(), which is volatile.
    v_now timestamptz := clock_timestamp();
    v_levels integer := coalesce(cardinality(v_mark.ranks), 0);
    v_level integer := 0;
    -- Below and above every rank, as minus infinity and infinity.
    v_rank integer := -2147483648;
    v_rank_without_mark integer;
    v_from timestamptz;
    v_due tid [] := ARRAY[]::tid [];
    v_levels_read integer := 0;
BEGIN
    WHILE cardinality(v_due) < promote.max_jobs LOOP
        v_levels_read := v_levels_read + 1;
        IF v_levels_read > 100 THEN
            v_due := v_due || array(
                SELECT w.ctid
                FROM pulse_internal.waiting AS w
                WHERE w.lane = promote.lane
                    AND w.attempts >= 0
                    AND w.run_at >= v_mark.run_at
                    AND w.run_at <= v_now
                    AND w.rank > v_rank
                ORDER BY w.run_at
                LIMIT promote.max_jobs - cardinality(v_due)
                FOR UPDATE SKIP LOCKED
            );
            EXIT;
        END IF;

        -- The next level: one without a mark that comes before the next one with a mark, else
        -- that.
        SELECT w.rank INTO v_rank_without_mark
        FROM pulse_internal.waiting AS w
        WHERE w.lane = promote.lane
            AND w.failures >= 0
            AND w.rank > v_rank
            AND w.rank < coalesce(v_mark.ranks[v_level + 1], 2147483647)
        ORDER BY w.rank, w.run_at
        LIMIT 1;

        IF v_rank_without_mark IS NOT NULL THEN
            v_rank := v_rank_without_mark;
            v_from := v_mark.run_at;
        ELSE
            v_level := v_level + 1;
            EXIT WHEN v_level > v_levels;
            v_rank := v_mark.ranks[v_level];
            v_from := greatest(v_mark.run_at, v_mark.run_ats[v_level]);
        END IF;

        v_due := v_due || array(
            SELECT w.ctid
            FROM pulse_internal.waiting AS w
            WHERE w.lane = promote.lane
                AND w.failures >= 0
                AND w.rank = v_rank
                AND w.run_at >= v_from
                AND w.run_at <= v_now
            ORDER BY w.run_at
            LIMIT promote.max_jobs - cardinality(v_due)
            FOR UPDATE SKIP LOCKED
        );
    END LOOP;

    IF v_due = '{}' THEN
        RETURN 0;
    END IF;

    PERFORM pulse_internal.enter_lane(promote.lane);
    IF pulse_internal.is_grouped(promote.lane) THEN
        PERFORM pulse_internal.promote_to_groups(v_due);
    ELSE
        WITH due AS (
            DELETE FROM pulse_internal.waiting AS w
            WHERE w.ctid = ANY (v_due)
            RETURNING w.*
        )

        INSERT INTO pulse_internal.ready (
            lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
        )
        SELECT
            d.lane, d.rank, d.kind, d.job, d.attempts, d.failures, d.keyed, d.last_lease,
            d.last_verb
        FROM due AS d
        ORDER BY d.run_at, d.job;
    END IF;

    -- 20 jobs or more leave dead rows that the next scan would step over: move the due marks now,
    -- at most every 20 ms. Fewer can wait for the next tick.
    IF cardinality(v_due) >= 20
        AND (
            v_mark.marked_at BETWEEN v_now - interval '20 milliseconds' AND v_now
        ) IS NOT TRUE
    THEN
        PERFORM pulse_internal.advance_due(
            promote.lane,
            (
                pulse_internal.decided_in_lane(pulse_internal.see_horizon(), promote.lane)
            ).due_at
        );
    END IF;

    RETURN cardinality(v_due);
END;
$$;

COMMENT ON FUNCTION pulse_internal.promote(text, integer) IS
'Move at most max_jobs due jobs of a lane to ready, the most urgent first. Returns how many.';

CREATE FUNCTION pulse_internal.tick_promote(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('promote');
    v_after text := coalesce(v_old.state ->> 'after', '');
    v_piece integer := pulse_internal.upkeep_piece();
    v_stopped_at text;
    v_lane text;
    v_promoted integer;
    v_moved bigint;
    v_needs_another_round boolean;
    v_all bigint := 0;
BEGIN
    -- Each lane has a turn of ten pieces, up to 10,000 jobs. The next tick starts behind the lane
    -- at which this one stops. A round that began in the middle, or in which a lane had more jobs
    -- than its turn, is followed by another one.
    <<rounds>>
    LOOP
        v_needs_another_round := v_after <> '';
        FOR v_lane IN
            SELECT pulse_internal.waiting_lanes(v_after, due_by => clock_timestamp())
        LOOP
            v_moved := 0;
            FOR v_round IN 1..10 LOOP
                v_promoted := pulse_internal.promote(v_lane, v_piece);
                v_moved := v_moved + v_promoted;
                EXIT WHEN v_promoted < v_piece OR pulse_internal.time_is_over(tick_promote.until);
            END LOOP;
            v_all := v_all + v_moved;
            v_needs_another_round := v_needs_another_round OR v_promoted = v_piece;
            IF v_moved > 0 THEN
                PERFORM pulse_internal.ring(v_lane);
            END IF;
            IF pulse_internal.time_is_over(tick_promote.until) THEN
                v_stopped_at := v_lane;
                EXIT rounds;
            END IF;
        END LOOP;
        EXIT rounds WHEN NOT v_needs_another_round;
        v_after := '';
    END LOOP;

    IF v_stopped_at IS DISTINCT FROM v_old.state ->> 'after' THEN
        PERFORM pulse_internal.write_upkeep_run(
            v_old, 'promote', jsonb_strip_nulls(jsonb_build_object('after', v_stopped_at))
        );
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_promote(timestamptz) IS
'The step of tick: move due jobs to ready, in every lane, until none is left or the time is over. Returns how many.';

CREATE FUNCTION pulse_internal.waiting_lanes(
    after text DEFAULT '',
    max_lanes integer DEFAULT 2147483647,
    due_by timestamptz DEFAULT NULL
)
RETURNS SETOF text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_lane text COLLATE "C" := waiting_lanes.after;
    -- The next lane with a due mark, and a lane without one that comes before it.
    v_marked record;
    v_unmarked text COLLATE "C";
    v_from timestamptz;
BEGIN
    FOR v_n IN 1..waiting_lanes.max_lanes LOOP
        SELECT m.lane, m.run_at INTO v_marked
        FROM pulse_internal.due_mark AS m
        WHERE m.lane > v_lane
        ORDER BY m.lane, m.version DESC
        LIMIT 1;

        -- Between two lanes with a mark: this steps over the dead rows of neither. Two statements,
        -- because an index scan does not stop at an OR.
        IF v_marked.lane IS NULL THEN
            SELECT w.lane INTO v_unmarked
            FROM pulse_internal.waiting AS w
            WHERE w.lane > v_lane
                AND w.attempts >= 0
            ORDER BY w.lane, w.run_at
            LIMIT 1;
        ELSE
            SELECT w.lane INTO v_unmarked
            FROM pulse_internal.waiting AS w
            WHERE w.lane > v_lane
                AND w.lane < v_marked.lane
                AND w.attempts >= 0
            ORDER BY w.lane, w.run_at
            LIMIT 1;
        END IF;

        v_lane := coalesce(v_unmarked, v_marked.lane);
        EXIT WHEN v_lane IS NULL;
        IF waiting_lanes.due_by IS NOT NULL THEN
            v_from := CASE WHEN v_unmarked IS NULL THEN v_marked.run_at ELSE '-infinity' END;
            PERFORM
            FROM pulse_internal.waiting AS w
            WHERE w.lane = v_lane
                AND w.attempts >= 0
                AND w.run_at >= v_from
                AND w.run_at <= waiting_lanes.due_by
            ORDER BY w.run_at
            LIMIT 1;
            CONTINUE WHEN NOT FOUND;
        END IF;
        RETURN NEXT v_lane;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.waiting_lanes(text, integer, timestamptz) IS
'The lanes after this one that have or lately had jobs in waiting, at most so many; with due_by only those that have a job due by then.';

CREATE FUNCTION pulse_internal.advance_due(lane text, t timestamptz)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_old pulse_internal.due_mark := pulse_internal.newest_due_mark(advance_due.lane);
    -- A second of room for clocks. see_horizon notices a clock that is set back further: it then
    -- lowers t, and the marks become lower with it.
    v_last timestamptz := advance_due.t - interval '1 second';
    v_first timestamptz;
    v_new_mark timestamptz;
    v_levels integer := coalesce(cardinality(v_old.ranks), 0);
    v_level integer := 0;
    v_rank integer := -2147483648;
    v_ranks integer [] := ARRAY[]::integer [];
    v_run_ats timestamptz [] := ARRAY[]::timestamptz [];
    v_found record;
    v_lowered boolean;
    v_nothing_due_since timestamptz;
    v_entries_before bigint := pulse_internal.entries_read('pulse_internal.waiting_by_time')
        + pulse_internal.entries_read('pulse_internal.waiting_for_promotion');
BEGIN
    SELECT w.run_at INTO v_first
    FROM pulse_internal.waiting AS w
    WHERE w.lane = advance_due.lane
        AND w.attempts >= 0
        AND w.run_at >= v_old.run_at
    ORDER BY w.run_at
    LIMIT 1;

    v_new_mark := least(v_first, v_last);
    v_lowered := v_new_mark < v_old.run_at;

    -- The levels, as in advance_line (common/marks.sql): at most 100. Beyond 50 only those that
    -- have jobs.
    WHILE cardinality(v_ranks) < 100 LOOP
        SELECT w.rank, w.run_at INTO v_found
        FROM pulse_internal.waiting AS w
        WHERE w.lane = advance_due.lane
            AND w.failures >= 0
            AND w.rank > v_rank
            AND w.rank < coalesce(v_old.ranks[v_level + 1], 2147483647)
        ORDER BY w.rank, w.run_at
        LIMIT 1;

        IF v_found.rank IS NULL THEN
            v_level := v_level + 1;
            EXIT WHEN v_level > v_levels;
            SELECT w.rank, w.run_at INTO v_found
            FROM pulse_internal.waiting AS w
            WHERE w.lane = advance_due.lane
                AND w.failures >= 0
                AND w.rank = v_old.ranks[v_level]
                AND w.run_at >= greatest(v_old.run_at, v_old.run_ats[v_level])
            ORDER BY w.run_at
            LIMIT 1;

            v_rank := v_old.ranks[v_level];
            CONTINUE WHEN v_found.rank IS NULL AND cardinality(v_ranks) >= 50;
        ELSE
            v_rank := v_found.rank;
        END IF;

        v_ranks := v_ranks || v_rank;
        v_run_ats := v_run_ats || least(v_found.run_at, v_last);
        v_lowered := v_lowered
            OR (v_rank = v_old.ranks[v_level] AND v_last < v_old.run_ats[v_level]);
    END LOOP;

    IF (v_first <= v_last) IS NOT TRUE THEN
        v_nothing_due_since := coalesce(v_old.dry_at, clock_timestamp());
    END IF;

    -- Nothing was due for a minute, and there are few dead rows to step over: forget the marks. If
    -- jobs wait for a later time, or the table has many dead rows, keep them as they are: else
    -- they would be written anew with every tick, because the clock goes on.
    IF v_nothing_due_since < clock_timestamp() - interval '1 minute'
        AND NOT v_lowered
        AND pulse_internal.entries_read('pulse_internal.waiting_by_time')
        + pulse_internal.entries_read('pulse_internal.waiting_for_promotion') - v_entries_before
        <= 500 * (2 * v_levels + 2)
    THEN
        IF v_first IS NOT NULL
            OR pg_stat_get_dead_tuples('pulse_internal.waiting'::regclass) >= 10000
        THEN
            RETURN true;
        END IF;
        DELETE FROM pulse_internal.due_mark AS m
        WHERE m.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.due_mark AS o
                WHERE o.lane = v_old.lane
                FOR UPDATE SKIP LOCKED
            ));
        RETURN false;
    END IF;

    IF (v_old.lane IS NULL AND (v_first IS NULL OR v_new_mark = '-infinity'))
        OR (v_new_mark, v_ranks, v_run_ats, v_nothing_due_since IS NULL)
        IS NOT DISTINCT FROM (v_old.run_at, v_old.ranks, v_old.run_ats, v_old.dry_at IS NULL)
    THEN
        RETURN false;
    END IF;

    INSERT INTO pulse_internal.due_mark (lane, run_at, marked_at, ranks, run_ats, dry_at)
    VALUES (
        advance_due.lane, v_new_mark, clock_timestamp(), v_ranks, v_run_ats,
        v_nothing_due_since
    );

    DELETE FROM pulse_internal.due_mark AS m
    WHERE m.lane = v_old.lane
        AND m.version = (
            SELECT o.version
            FROM pulse_internal.due_mark AS o
            WHERE o.lane = v_old.lane
                AND o.version = v_old.version
            FOR UPDATE SKIP LOCKED
        );
    RETURN false;
END;
$$;

COMMENT ON FUNCTION pulse_internal.advance_due(text, timestamptz) IS
'Move the due marks of a lane up to its first live row, and to that of each priority level, never beyond t. Returns true if it has kept marks though nothing was due for a minute.';

CREATE FUNCTION pulse_internal.due_floor()
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    -- No due mark is above next_waiting_t minus the second of room, and a clock that goes forward
    -- is never below it.
    v_floor timestamptz := (
        SELECT h.next_waiting_t - interval '1 second'
        FROM pulse_internal.horizon AS h
        ORDER BY h.version DESC
        LIMIT 1
    );
BEGIN
    -- The clock was set back by up to a minute: the job is due when the clock is there again.
    -- After a larger step see_horizon lowers the marks at the next tick.
    IF v_floor <= clock_timestamp() + interval '1 minute' THEN
        RETURN v_floor;
    END IF;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.due_floor() IS
'The earliest run_at that is not below a due mark, also when the clock was just set back; NULL if it was set back by more than a minute.';
