-- A drained lane is a hold of its own, by the holder drain.

CREATE FUNCTION pulse.drain_lane(
    lane text, reason text DEFAULT NULL, new boolean DEFAULT false
)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_drain_lane(
        pulse._sign(), drain_lane.lane, drain_lane.reason, drain_lane.new
    )
$$;

COMMENT ON FUNCTION pulse.drain_lane(text, text, boolean) IS
'Let what runs in a lane end and claim nothing more from it, until resume_lane. Returns whether it was not drained already. PU013 nothing has named this lane yet (a typo would drain a lane that nobody uses), unless new => true; PU106 when open claims do not end within 10 s. Writes hold and audit_entry.';

CREATE FUNCTION pulse._do_drain_lane(
    signature pulse._signature, lane text, reason text, new boolean
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_drain_lane.signature);
BEGIN
    PERFORM pulse._require_lane(_do_drain_lane.lane, _do_drain_lane.new);
    RETURN pulse._hold(v_who, 'drain_lane', _do_drain_lane.lane, 'drain', _do_drain_lane.reason);
END;
$$;

COMMENT ON FUNCTION pulse._do_drain_lane(pulse._signature, text, text, boolean) IS
'drain_lane for the role that signed. Writes the same.';

CREATE FUNCTION pulse.pause_lane(
    lane text, reason text DEFAULT NULL, new boolean DEFAULT false
)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse.drain_lane(pause_lane.lane, pause_lane.reason, pause_lane.new)
$$;

COMMENT ON FUNCTION pulse.pause_lane(text, text, boolean) IS
'The same as drain_lane. Writes hold and audit_entry.';

CREATE FUNCTION pulse.resume_lane(lane text, reason text DEFAULT NULL)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_resume_lane(pulse._sign(), resume_lane.lane, resume_lane.reason)
$$;

COMMENT ON FUNCTION pulse.resume_lane(text, text) IS
'Let a drained lane be claimed again; pauses by other holders stay. Returns whether it was drained. PU013 nothing has named this lane yet. Writes hold and audit_entry.';

CREATE FUNCTION pulse._do_resume_lane(signature pulse._signature, lane text, reason text)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_resume_lane.signature);
BEGIN
    PERFORM pulse._require_lane(_do_resume_lane.lane);
    RETURN pulse._unhold(
        v_who, 'resume_lane', _do_resume_lane.lane, 'drain', _do_resume_lane.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse._do_resume_lane(pulse._signature, text, text) IS
'resume_lane for the role that signed. Writes the same.';
