-- Moves jobs that have become due from waiting into ready, oldest first, from the due
-- mark of their lane on.
CREATE FUNCTION pulse._promote(lane text, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse.due_mark := pulse._newest_due_mark(_promote.lane);
    -- A variable: the index cannot stop at clock_timestamp(), which is volatile.
    v_now timestamptz := clock_timestamp();
    v_due tid [];
BEGIN
    v_due := array(
        SELECT w.ctid
        FROM pulse.waiting AS w
        WHERE w.lane = _promote.lane
            AND w.run_at >= v_mark.run_at
            AND w.run_at <= v_now
        ORDER BY w.run_at
        LIMIT _promote.max_jobs
        FOR UPDATE SKIP LOCKED
    );

    IF v_due = '{}' THEN
        RETURN 0;
    END IF;

    WITH due AS (
        DELETE FROM pulse.waiting AS w
        WHERE w.ctid = ANY (v_due)
        RETURNING w.*
    )

    INSERT INTO pulse.ready (
        lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
    )
    SELECT
        d.lane, d.rank, d.kind, d.job, d.attempts, d.failures, d.keyed, d.last_lease,
        d.last_verb
    FROM due AS d
    ORDER BY d.run_at, d.job;

    -- Many in a short time leave a pile behind; a few do not matter until the next tick.
    IF cardinality(v_due) >= 20
        AND coalesce(v_mark.marked_at < clock_timestamp() - interval '20 milliseconds', true)
    THEN
        PERFORM pulse._advance_due(_promote.lane, (pulse._see_horizon()).waiting_t);
    END IF;

    RETURN cardinality(v_due);
END;
$$;

COMMENT ON FUNCTION pulse._promote(text, integer) IS
'Move at most max_jobs due jobs of a lane into line; returns how many.';

-- A step of tick.
CREATE FUNCTION pulse._tick_promote()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lane text;
    v_some integer;
    v_all bigint := 0;
BEGIN
    FOR v_lane IN SELECT pulse._waiting_lanes() LOOP
        -- Bounded: what is left is for the next tick, and for claims of that lane.
        FOR v_round IN 1..10 LOOP
            v_some := pulse._promote(v_lane, 1000);
            v_all := v_all + v_some;
            EXIT WHEN v_some < 1000;
        END LOOP;
        IF v_some > 0 THEN
            PERFORM pulse._ring(v_lane);
        END IF;
    END LOOP;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse._tick_promote() IS
'Move what is due into line, in every lane, at most 10,000 jobs of each.';

-- Lanes that have, or lately had, jobs in waiting. Known ones are those with a due mark;

-- others are looked for in the gaps between them, so that no lane's dead rows are met.
CREATE FUNCTION pulse._waiting_lanes()
RETURNS SETOF text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_lane text COLLATE "C" := '';
    v_known text COLLATE "C";
    v_new text COLLATE "C";
BEGIN
    LOOP
        SELECT m.lane INTO v_known
        FROM pulse.due_mark AS m
        WHERE m.lane > v_lane
        ORDER BY m.lane, m.version DESC
        LIMIT 1;

        -- Two statements: an OR would not be a bound of the index.
        IF v_known IS NULL THEN
            SELECT w.lane INTO v_new
            FROM pulse.waiting AS w
            WHERE w.lane > v_lane
            ORDER BY w.lane, w.run_at
            LIMIT 1;
        ELSE
            SELECT w.lane INTO v_new
            FROM pulse.waiting AS w
            WHERE w.lane > v_lane
                AND w.lane < v_known
            ORDER BY w.lane, w.run_at
            LIMIT 1;
        END IF;

        v_lane := coalesce(v_new, v_known);
        EXIT WHEN v_lane IS NULL;
        RETURN NEXT v_lane;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._waiting_lanes() IS
'The lanes that may have jobs in waiting.';
