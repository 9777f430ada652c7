-- Which steps of tick ran out of time, and since when.

-- since is when the step first ran out of time; a gap of a minute begins anew.
CREATE FUNCTION pulse._note_cut(step text, part text, at timestamptz, is_cut boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text := 'cut:' || _note_cut.step;
    v_old pulse.upkeep_run := pulse._newest_upkeep_run(v_name);
BEGIN
    IF _note_cut.is_cut THEN
        PERFORM pulse._write_upkeep_run(
            v_old, v_name,
            jsonb_build_object(
                'part', _note_cut.part,
                'since', coalesce(pulse._behind_since(_note_cut.step), _note_cut.at)
            )
        );
    ELSIF v_old.version IS NOT NULL THEN
        PERFORM pulse._forget_upkeep_run(v_name);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._note_cut(text, text, timestamptz, boolean) IS
'Note that a step of tick ran out of time, or that it no longer does.';

CREATE FUNCTION pulse._cut_steps()
RETURNS TABLE (step text, part text, since timestamptz, noted_at timestamptz)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        substr(t.step, 5), t.state ->> 'part', (t.state ->> 'since')::timestamptz, t.taken_at
    FROM pulse.upkeep_run AS t
    WHERE t.step >= 'cut:'
        AND t.step < 'cut;'
    ORDER BY t.step, t.version DESC;
END;
$$;

COMMENT ON FUNCTION pulse._cut_steps() IS
'The steps of tick that ran out of time, their part of the upkeep, since when and when last.';

CREATE FUNCTION pulse._behind_since(step text)
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cut pulse.upkeep_run := pulse._newest_upkeep_run('cut:' || _behind_since.step);
BEGIN
    IF v_cut.taken_at > clock_timestamp() - interval '1 minute' THEN
        RETURN (v_cut.state ->> 'since')::timestamptz;
    END IF;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse._behind_since(text) IS
'Since when this step of tick has not come to its end, tick after tick; NULL when it does.';
