-- What is done to a schedule by its name, here and beside it. Each verb locks the row
-- first, so it waits for the tick that just fires it.

CREATE FUNCTION pulse.pause_schedule(name text, reason text DEFAULT NULL)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_pause_schedule(
        pulse._sign(), pause_schedule.name, pause_schedule.reason
    )
$$;

COMMENT ON FUNCTION pulse.pause_schedule(text, text) IS
'Keep a schedule from firing until resume_schedule; false when it is paused already. PU005 no such schedule. Writes schedule and audit_entry.';

CREATE FUNCTION pulse._do_pause_schedule(signature pulse._signature, name text, reason text)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_pause_schedule.signature);
    v_schedule pulse.schedule;
BEGIN
    PERFORM pulse._require_read_committed('pause_schedule');
    PERFORM pulse._require_reason(_do_pause_schedule.reason);
    v_schedule := pulse._require_schedule(_do_pause_schedule.name);
    IF v_schedule.paused_at IS NOT NULL THEN
        RETURN false;
    END IF;

    UPDATE pulse.schedule AS s
    SET paused_at = clock_timestamp(),
        paused_by = pulse._role_name(v_who),
        pause_reason = _do_pause_schedule.reason
    WHERE s.name = v_schedule.name;

    PERFORM pulse._audit(
        v_who, 'pause_schedule', NULL, NULL,
        NULL, jsonb_build_object('name', v_schedule.name), _do_pause_schedule.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._do_pause_schedule(pulse._signature, text, text) IS
'pause_schedule for the role that signed. Writes the same.';

CREATE FUNCTION pulse._require_schedule(name text)
RETURNS pulse.schedule
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse.schedule;
BEGIN
    -- Waits for the tick that just fires it.
    SELECT s.* INTO v_schedule
    FROM pulse.schedule AS s
    WHERE s.name = _require_schedule.name
    FOR UPDATE;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU005',
            format('schedule %L does not exist', left(_require_schedule.name, 200)),
            'It was never made, or was unscheduled.',
            'SELECT name FROM pulse.schedules lists them.'
        );
    END IF;
    RETURN v_schedule;
END;
$$;

COMMENT ON FUNCTION pulse._require_schedule(text) IS
'Lock a schedule and return it; PU005 when there is none of that name.';
