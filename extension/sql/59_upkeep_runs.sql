-- When tick last did which part of the upkeep, and where it stopped: appended to
-- upkeep_run and read newest first.

CREATE FUNCTION pulse._start_upkeep_run(step text, every interval)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last pulse.upkeep_run;
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        'pulse.upkeep_run'::regclass::oid::integer, hashtext(_start_upkeep_run.step)
    ) THEN
        RETURN false;
    END IF;

    -- A later statement than the lock, so that it sees the run just committed. A run
    -- in the future means that the clock stepped back.
    v_last := pulse._newest_upkeep_run(_start_upkeep_run.step);
    IF v_last.taken_at > clock_timestamp() - _start_upkeep_run.every
        AND v_last.taken_at <= clock_timestamp()
    THEN
        RETURN false;
    END IF;

    PERFORM pulse._write_upkeep_run(v_last, _start_upkeep_run.step, v_last.state);
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._start_upkeep_run(text, interval) IS
'Whether this session is the one to do a part of the upkeep now.';

CREATE FUNCTION pulse._newest_upkeep_run(step text)
RETURNS pulse.upkeep_run
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_run pulse.upkeep_run;
BEGIN
    SELECT t.* INTO v_run
    FROM pulse.upkeep_run AS t
    WHERE t.step = _newest_upkeep_run.step
    ORDER BY t.version DESC
    LIMIT 1;

    RETURN v_run;
END;
$$;

COMMENT ON FUNCTION pulse._newest_upkeep_run(text) IS
'When a part of the upkeep was last done.';

CREATE FUNCTION pulse._write_upkeep_run(previous pulse.upkeep_run, step text, state jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO pulse.upkeep_run (step, taken_at, state)
    VALUES (_write_upkeep_run.step, clock_timestamp(), _write_upkeep_run.state);

    DELETE FROM pulse.upkeep_run AS t
    WHERE t.step = (_write_upkeep_run.previous).step
        AND t.version = (
            SELECT o.version
            FROM pulse.upkeep_run AS o
            WHERE o.step = (_write_upkeep_run.previous).step
                AND o.version = (_write_upkeep_run.previous).version
            FOR UPDATE SKIP LOCKED
        );
END;
$$;

COMMENT ON FUNCTION pulse._write_upkeep_run(pulse.upkeep_run, text, jsonb) IS
'Note that a part of the upkeep is being done, in place of the previous note.';

-- What another session is just removing or replacing is left to that one.
CREATE FUNCTION pulse._forget_upkeep_run(step text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM pulse.upkeep_run AS t
    WHERE t.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse.upkeep_run AS o
            WHERE o.step = _forget_upkeep_run.step
            FOR UPDATE SKIP LOCKED
        ));
END;
$$;

COMMENT ON FUNCTION pulse._forget_upkeep_run(text) IS
'Remove what was noted of a step.';

CREATE FUNCTION pulse._note_took(took jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse.upkeep_run := pulse._newest_upkeep_run('took');
BEGIN
    PERFORM pulse._write_upkeep_run(v_old, 'took', coalesce(v_old.state, '{}') || _note_took.took);
END;
$$;

COMMENT ON FUNCTION pulse._note_took(jsonb) IS
'Note how many seconds each part of tick took.';
