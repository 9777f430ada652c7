-- A step of tick: marks are moved on, lane by lane.

-- Advances the marks of lines that have some, and of lanes that have none yet: five hundred
-- lines a tick, from where the last one stopped, and no more once a hundred of them were long
-- dry and kept for the dead rows of other lines. Claims ask for those they need.
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
    -- Page by page, as a page is found before the first of it is looked at.
    SELECT coalesce(v_from ->> 'lane', '') AS lane, coalesce(v_from ->> 'kind', '') AS kind
    INTO v_line;
    <<lines>>
    LOOP
        FOR v_line IN
            SELECT l.* FROM pulse_internal.ready_lines(v_line.lane, v_line.kind, 100) AS l
        LOOP
            v_lines := v_lines + 1;
            IF pulse_internal.advance_line(v_line.lane, v_line.kind, v_horizon.ready_q) THEN
                v_idle := v_idle + 1;
            END IF;
            IF v_lines = 500 OR v_idle = 100 OR pulse_internal.time_is_over(tick_marks.until) THEN
                v_to := jsonb_build_object('lane', v_line.lane, 'kind', v_line.kind);
                EXIT lines;
            END IF;
        END LOOP;
        EXIT WHEN NOT FOUND OR v_lines % 100 > 0;
    END LOOP;

    v_idle := 0;
    v_lane := coalesce(v_from ->> 'due', '');
    <<lanes>>
    LOOP
        FOR v_lane IN SELECT pulse_internal.waiting_lanes(v_lane, 100) LOOP
            v_lanes := v_lanes + 1;
            IF pulse_internal.advance_due(v_lane, v_horizon.waiting_t) THEN
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
'Advance low-water marks; returns how many lines of ready it looked at.';

-- Known lines are those with marks; lanes that have none are looked for in the gaps
-- between them, so that no lane's dead rows are met.
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
    v_known record;
    v_new text COLLATE "C";
BEGIN
    FOR v_line IN 1..ready_lines.max_lines LOOP
        SELECT m.lane, m.kind INTO v_known
        FROM pulse_internal.mark AS m
        WHERE (m.lane, m.kind) > (v_lane, v_kind)
        ORDER BY m.lane, m.kind, m.version DESC
        LIMIT 1;

        -- Two statements: an OR would not be a bound of the index.
        IF v_known.lane IS NULL THEN
            SELECT r.lane INTO v_new
            FROM pulse_internal.ready AS r
            WHERE r.lane > v_lane
                AND r.failures >= 0
                AND r.group_key IS NULL
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        ELSE
            SELECT r.lane INTO v_new
            FROM pulse_internal.ready AS r
            WHERE r.lane > v_lane
                AND r.failures >= 0
                AND r.group_key IS NULL
                AND r.lane < v_known.lane
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        END IF;

        IF v_new IS NOT NULL THEN
            v_lane := v_new;
            v_kind := '';
        ELSIF v_known.lane IS NOT NULL THEN
            v_lane := v_known.lane;
            v_kind := v_known.kind;
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
