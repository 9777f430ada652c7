CREATE FUNCTION pulse._advance_due(lane text, t timestamptz)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_old pulse.due_mark := pulse._newest_due_mark(_advance_due.lane);
    -- A second of room for clocks; one that steps back further is noticed by
    -- _see_horizon, which then lowers t, and these marks with it.
    v_last timestamptz := _advance_due.t - interval '1 second';
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
    v_read bigint := pulse._entries_read('pulse.waiting_by_time')
        + pulse._entries_read('pulse.waiting_for_promotion');
BEGIN
    SELECT w.run_at INTO v_first
    FROM pulse.waiting AS w
    WHERE w.lane = _advance_due.lane
        AND w.attempts >= 0
        AND w.run_at >= v_old.run_at
    ORDER BY w.run_at
    LIMIT 1;

    v_new := least(v_first, v_last);
    v_lowered := v_new < v_old.run_at;

    -- The levels, as in _advance_line.
    WHILE cardinality(v_ranks) < 100 LOOP
        SELECT w.rank, w.run_at INTO v_found
        FROM pulse.waiting AS w
        WHERE w.lane = _advance_due.lane
            AND w.failures >= 0
            AND w.rank > v_rank
            AND w.rank < coalesce(v_old.ranks[v_level + 1], 2147483647)
        ORDER BY w.rank, w.run_at
        LIMIT 1;

        IF v_found.rank IS NULL THEN
            v_level := v_level + 1;
            EXIT WHEN v_level > v_levels;
            SELECT w.rank, w.run_at INTO v_found
            FROM pulse.waiting AS w
            WHERE w.lane = _advance_due.lane
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

    -- As in _advance_line; here the marks would go on with the clock.
    IF v_dry_at < clock_timestamp() - interval '1 minute'
        AND NOT v_lowered
        AND pulse._entries_read('pulse.waiting_by_time')
        + pulse._entries_read('pulse.waiting_for_promotion') - v_read
        <= 500 * (2 * v_levels + 2)
    THEN
        IF v_first IS NOT NULL
            OR pg_stat_get_dead_tuples('pulse.waiting'::regclass) >= 10000
        THEN
            RETURN true;
        END IF;
        DELETE FROM pulse.due_mark AS m
        WHERE m.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.due_mark AS o
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

    INSERT INTO pulse.due_mark (lane, run_at, marked_at, ranks, run_ats, dry_at)
    VALUES (_advance_due.lane, v_new, clock_timestamp(), v_ranks, v_run_ats, v_dry_at);

    DELETE FROM pulse.due_mark AS m
    WHERE m.lane = v_old.lane
        AND m.version = (
            SELECT o.version
            FROM pulse.due_mark AS o
            WHERE o.lane = v_old.lane
                AND o.version = v_old.version
            FOR UPDATE SKIP LOCKED
        );
    RETURN false;
END;
$$;

COMMENT ON FUNCTION pulse._advance_due(text, timestamptz) IS
'Move the due marks of a lane up to the first live row of the lane and of each level, never past t; true where they are kept though nothing has been due for long.';

-- No time mark is ever above next_waiting_t less the second of room, and no clock that
-- goes forward is below it. One that stepped back is, by up to a minute here: a job that
-- would be due in between is due when the clock is there again. A larger step is noticed
-- by _see_horizon, at the next tick, and lowers the marks.
CREATE FUNCTION pulse._due_floor()
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_floor timestamptz := (
        SELECT h.next_waiting_t - interval '1 second'
        FROM pulse.horizon AS h
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

COMMENT ON FUNCTION pulse._due_floor() IS
'The earliest due time that no time mark can have passed, also when the clock has just stepped back.';
