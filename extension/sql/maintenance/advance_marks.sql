-- tick_marks: move low-water marks up, line by line.
--
-- A line is a lane, or a lane and a kind, that has marks of its own (common/marks.sql). A call
-- moves the marks of up to 500 lines of ready and of up to 500 lanes of waiting; lanes that have
-- no marks yet get some. The next call goes on behind the last line. It stops after 100 lines
-- that have been empty for long and keep their marks only because of the dead rows of others.
-- Claims ask for the marks that they need themselves, so a late call costs no job.
--
-- It writes mark and due_mark, and in upkeep_run where it goes on. It waits for no lock.

CREATE FUNCTION pulse_internal.tick_marks(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse_internal.horizon := pulse_internal.see_horizon();
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('marks');
    v_from jsonb := coalesce(v_old.state, '{}');
    v_to jsonb := '{}'::jsonb;
    v_line record;
    v_lane text;
    v_lines bigint := 0;
    v_lanes bigint := 0;
    v_idle bigint := 0;
BEGIN
    -- Lines of ready, in pages of 100: the whole page is read before its first line is moved.
    SELECT coalesce(v_from ->> 'lane', '') AS lane, coalesce(v_from ->> 'kind', '') AS kind
    INTO v_line;
    <<lines>>
    LOOP
        FOR v_line IN
            SELECT l.* FROM pulse_internal.ready_lines(v_line.lane, v_line.kind, 100) AS l
        LOOP
            v_lines := v_lines + 1;
            IF pulse_internal.advance_line(
                v_line.lane, v_line.kind,
                (pulse_internal.decided_in_lane(v_horizon, v_line.lane)).seq
            ) THEN
                v_idle := v_idle + 1;
            END IF;
            IF v_lines = 500 OR v_idle = 100 OR pulse_internal.time_is_over(tick_marks.until) THEN
                v_to := jsonb_build_object('lane', v_line.lane, 'kind', v_line.kind);
                EXIT lines;
            END IF;
        END LOOP;
        EXIT WHEN NOT FOUND OR v_lines % 100 > 0;
    END LOOP;

    -- Lanes of waiting, in the same way.
    v_idle := 0;
    v_lane := coalesce(v_from ->> 'due', '');
    <<lanes>>
    LOOP
        FOR v_lane IN SELECT pulse_internal.waiting_lanes(v_lane, 100) LOOP
            v_lanes := v_lanes + 1;
            IF pulse_internal.advance_due(
                v_lane, (pulse_internal.decided_in_lane(v_horizon, v_lane)).due_at
            ) THEN
                v_idle := v_idle + 1;
            END IF;
            IF v_lanes = 500 OR v_idle = 100 OR pulse_internal.time_is_over(tick_marks.until) THEN
                v_to := v_to || jsonb_build_object('due', v_lane);
                EXIT lanes;
            END IF;
        END LOOP;
        EXIT WHEN NOT FOUND OR v_lanes % 100 > 0;
    END LOOP;

    IF v_to <> v_from THEN
        PERFORM pulse_internal.write_upkeep_run(v_old, 'marks', v_to);
    END IF;
    RETURN v_lines;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_marks(timestamptz) IS
'The step of tick: move low-water marks up. Returns how many lines of ready it has visited.';

CREATE FUNCTION pulse_internal.ready_lines(after_lane text, after_kind text, max_lines integer)
RETURNS TABLE (lane text, kind text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_lane text COLLATE "C" := ready_lines.after_lane;
    v_kind text COLLATE "C" := ready_lines.after_kind;
    -- The next line with marks, and a lane without marks that comes before it.
    v_marked record;
    v_unmarked text COLLATE "C";
BEGIN
    FOR v_line IN 1..ready_lines.max_lines LOOP
        SELECT m.lane, m.kind INTO v_marked
        FROM pulse_internal.mark AS m
        WHERE (m.lane, m.kind) > (v_lane, v_kind)
        ORDER BY m.lane, m.kind, m.version DESC
        LIMIT 1;

        -- Between two lines with marks: this steps over the dead rows of neither. Two statements,
        -- because an index scan does not stop at an OR.
        IF v_marked.lane IS NULL THEN
            SELECT r.lane INTO v_unmarked
            FROM pulse_internal.ready AS r
            WHERE r.lane > v_lane
                AND r.failures >= 0
                AND r.group_key IS NULL
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        ELSE
            SELECT r.lane INTO v_unmarked
            FROM pulse_internal.ready AS r
            WHERE r.lane > v_lane
                AND r.failures >= 0
                AND r.group_key IS NULL
                AND r.lane < v_marked.lane
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        END IF;

        IF v_unmarked IS NOT NULL THEN
            v_lane := v_unmarked;
            v_kind := '';
        ELSIF v_marked.lane IS NOT NULL THEN
            v_lane := v_marked.lane;
            v_kind := v_marked.kind;
        ELSE
            EXIT;
        END IF;

        ready_lines.lane := v_lane;
        ready_lines.kind := v_kind;
        RETURN NEXT;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.ready_lines(text, text, integer) IS
'The lines after this one that have marks, or jobs in ready, at most so many.';
