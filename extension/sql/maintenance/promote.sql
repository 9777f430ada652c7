-- Moves jobs that have become due from waiting into ready: the highest priority first,
-- the oldest first inside it, so that a wave of low-priority jobs holds up no urgent one.
--
-- The levels of a lane are read like those of a line (claim/claim.sql): the known ones, each
-- from its due mark, and between two known ones whatever nobody has recorded yet. As
-- soon as the batch is full the rest is not looked at. A lane with more than 100 levels
-- goes on by time alone, so that no producer can make a claim long by spreading its jobs
-- over priorities (docs/decisions/due-waves.md).
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
    -- A variable: the index cannot stop at clock_timestamp(), which is volatile.
    v_now timestamptz := clock_timestamp();
    v_levels integer := coalesce(cardinality(v_mark.ranks), 0);
    v_level integer := 0;
    v_rank integer := -2147483648;
    v_new integer;
    v_from timestamptz;
    v_due tid [] := ARRAY[]::tid [];
    v_rounds integer := 0;
BEGIN
    WHILE cardinality(v_due) < promote.max_jobs LOOP
        v_rounds := v_rounds + 1;
        IF v_rounds > 100 THEN
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

        SELECT w.rank INTO v_new
        FROM pulse_internal.waiting AS w
        WHERE w.lane = promote.lane
            AND w.failures >= 0
            AND w.rank > v_rank
            AND w.rank < coalesce(v_mark.ranks[v_level + 1], 2147483647)
        ORDER BY w.rank, w.run_at
        LIMIT 1;

        IF v_new IS NOT NULL THEN
            v_rank := v_new;
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

    -- Many in a short time leave a pile behind; a few do not matter until the next tick.
    IF cardinality(v_due) >= 20
        AND (
            v_mark.marked_at BETWEEN v_now - interval '20 milliseconds' AND v_now
        ) IS NOT TRUE
    THEN
        PERFORM pulse_internal.advance_due(promote.lane, (pulse_internal.see_horizon()).waiting_t);
    END IF;

    RETURN cardinality(v_due);
END;
$$;

COMMENT ON FUNCTION pulse_internal.promote(text, integer) IS
'Move at most max_jobs due jobs of a lane into line, the most urgent first; returns how many.';

-- A step of tick. Lanes take turns of 10,000 jobs, the next tick goes on with the lane
-- after the last one served.
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
    v_some integer;
    v_moved bigint;
    v_full boolean;
    v_all bigint := 0;
BEGIN
    <<rounds>>
    LOOP
        v_full := v_after <> '';
        FOR v_lane IN
            SELECT pulse_internal.waiting_lanes(v_after, due_by => clock_timestamp())
        LOOP
            v_moved := 0;
            FOR v_round IN 1..10 LOOP
                v_some := pulse_internal.promote(v_lane, v_piece);
                v_moved := v_moved + v_some;
                EXIT WHEN v_some < v_piece OR pulse_internal.time_is_over(tick_promote.until);
            END LOOP;
            v_all := v_all + v_moved;
            v_full := v_full OR v_some = v_piece;
            IF v_moved > 0 THEN
                PERFORM pulse_internal.ring(v_lane);
            END IF;
            IF pulse_internal.time_is_over(tick_promote.until) THEN
                v_stopped_at := v_lane;
                EXIT rounds;
            END IF;
        END LOOP;
        EXIT rounds WHEN NOT v_full;
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
'Move what is due into line, in every lane, until it is done or the time is over.';

-- Lanes that have, or lately had, jobs in waiting. Known ones are those with a due mark;
-- others are looked for in the gaps between them, so that no lane's dead rows are met.
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
    v_known record;
    v_new text COLLATE "C";
    v_from timestamptz;
BEGIN
    FOR v_n IN 1..waiting_lanes.max_lanes LOOP
        SELECT m.lane, m.run_at INTO v_known
        FROM pulse_internal.due_mark AS m
        WHERE m.lane > v_lane
        ORDER BY m.lane, m.version DESC
        LIMIT 1;

        -- Two statements: an OR would not be a bound of the index.
        IF v_known.lane IS NULL THEN
            SELECT w.lane INTO v_new
            FROM pulse_internal.waiting AS w
            WHERE w.lane > v_lane
                AND w.attempts >= 0
            ORDER BY w.lane, w.run_at
            LIMIT 1;
        ELSE
            SELECT w.lane INTO v_new
            FROM pulse_internal.waiting AS w
            WHERE w.lane > v_lane
                AND w.lane < v_known.lane
                AND w.attempts >= 0
            ORDER BY w.lane, w.run_at
            LIMIT 1;
        END IF;

        v_lane := coalesce(v_new, v_known.lane);
        EXIT WHEN v_lane IS NULL;
        IF waiting_lanes.due_by IS NOT NULL THEN
            v_from := CASE WHEN v_new IS NULL THEN v_known.run_at ELSE '-infinity' END;
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
'The lanes after this one that may have jobs in waiting, at most so many; with due_by, those that have one due.';

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
    -- A second of room for clocks; one that steps back further is noticed by
    -- see_horizon, which then lowers t, and these marks with it.
    v_last timestamptz := advance_due.t - interval '1 second';
    v_first timestamptz;
    v_new timestamptz;
    v_levels integer := coalesce(cardinality(v_old.ranks), 0);
    v_level integer := 0;
    v_rank integer := -2147483648;
    v_ranks integer [] := ARRAY[]::integer [];
    v_run_ats timestamptz [] := ARRAY[]::timestamptz [];
    v_found record;
    v_lowered boolean;
    v_dry_at timestamptz;
    v_read bigint := pulse_internal.entries_read('pulse_internal.waiting_by_time')
        + pulse_internal.entries_read('pulse_internal.waiting_for_promotion');
BEGIN
    SELECT w.run_at INTO v_first
    FROM pulse_internal.waiting AS w
    WHERE w.lane = advance_due.lane
        AND w.attempts >= 0
        AND w.run_at >= v_old.run_at
    ORDER BY w.run_at
    LIMIT 1;

    v_new := least(v_first, v_last);
    v_lowered := v_new < v_old.run_at;

    -- The levels, as in advance_line.
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
        v_dry_at := coalesce(v_old.dry_at, clock_timestamp());
    END IF;

    -- As in advance_line; here the marks would go on with the clock.
    IF v_dry_at < clock_timestamp() - interval '1 minute'
        AND NOT v_lowered
        AND pulse_internal.entries_read('pulse_internal.waiting_by_time')
        + pulse_internal.entries_read('pulse_internal.waiting_for_promotion') - v_read
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

    IF (v_old.lane IS NULL AND (v_first IS NULL OR v_new = '-infinity'))
        OR (v_new, v_ranks, v_run_ats, v_dry_at IS NULL)
        IS NOT DISTINCT FROM (v_old.run_at, v_old.ranks, v_old.run_ats, v_old.dry_at IS NULL)
    THEN
        RETURN false;
    END IF;

    INSERT INTO pulse_internal.due_mark (lane, run_at, marked_at, ranks, run_ats, dry_at)
    VALUES (advance_due.lane, v_new, clock_timestamp(), v_ranks, v_run_ats, v_dry_at);

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
'Move the due marks of a lane up to the first live row of the lane and of each level, never past t; true where they are kept though nothing has been due for long.';

-- No time mark is ever above next_waiting_t less the second of room, and no clock that
-- goes forward is below it. One that stepped back is, by up to a minute here: a job that
-- would be due in between is due when the clock is there again. A larger step is noticed
-- by see_horizon, at the next tick, and lowers the marks.
CREATE FUNCTION pulse_internal.due_floor()
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_floor timestamptz := (
        SELECT h.next_waiting_t - interval '1 second'
        FROM pulse_internal.horizon AS h
        ORDER BY h.version DESC
        LIMIT 1
    );
BEGIN
    IF v_floor <= clock_timestamp() + interval '1 minute' THEN
        RETURN v_floor;
    END IF;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.due_floor() IS
'The earliest due time that no time mark can have passed, also when the clock has just stepped back.';
