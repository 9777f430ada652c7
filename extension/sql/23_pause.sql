-- A claim tries the hold lock shared and reads the holds in a later statement; pause
-- takes it exclusively and keeps it to its commit. So once pause has committed no
-- claim can commit that did not see the hold.

CREATE FUNCTION pulse.pause(
    holder text,
    reason text DEFAULT NULL,
    lane text DEFAULT NULL,
    new boolean DEFAULT false,
    flow text DEFAULT NULL
)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_pause(
        pulse._sign(), pause.holder, pause.reason, pause.lane, pause.new, pause.flow
    )
$$;

COMMENT ON FUNCTION pulse.pause(text, text, text, boolean, text) IS
'Stop all claims, or those of one lane, or of the jobs of one flow: strict from the commit on. Pauses nest by holder. Enqueue, heartbeats, reports, reaping and schedules go on. Returns whether the hold is new. PU002 lane and flow together; PU013 nothing has named this lane or flow yet, unless new => true; PU106 when open claims do not end within 10 s. Writes hold or flow_hold, and audit_entry.';

CREATE FUNCTION pulse._do_pause(
    signature pulse._signature,
    holder text,
    reason text,
    lane text,
    new boolean,
    flow text
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_pause.signature);
BEGIN
    PERFORM pulse._require_holder(_do_pause.holder);
    IF _do_pause.flow IS NOT NULL THEN
        PERFORM pulse._require_lane_or_flow(_do_pause.lane);
        PERFORM pulse._require_flow(_do_pause.flow, _do_pause.new);
        RETURN pulse._hold_flow(v_who, _do_pause.flow, _do_pause.holder, _do_pause.reason);
    END IF;
    IF _do_pause.lane IS NOT NULL THEN
        PERFORM pulse._require_lane(_do_pause.lane, _do_pause.new);
    END IF;
    RETURN pulse._hold(
        v_who, 'pause', coalesce(_do_pause.lane, ''), _do_pause.holder, _do_pause.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse._do_pause(pulse._signature, text, text, text, boolean, text) IS
'pause for the role that signed. Writes the same.';

CREATE FUNCTION pulse.resume(
    holder text, lane text DEFAULT NULL, flow text DEFAULT NULL
)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_resume(pulse._sign(), resume.holder, resume.lane, resume.flow)
$$;

COMMENT ON FUNCTION pulse.resume(text, text, text) IS
'Take back a pause of this holder with the same scope. Returns whether there was one. Jobs of a flow that claims have met meanwhile rejoin at the end of their priority. PU002 lane and flow together; PU013 nothing has named this lane yet; PU106, for a flow, when open claims do not end within 10 s. Writes hold, or flow_hold and wake, and audit_entry.';

CREATE FUNCTION pulse._do_resume(
    signature pulse._signature, holder text, lane text, flow text
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_resume.signature);
BEGIN
    PERFORM pulse._require_holder(_do_resume.holder);
    IF _do_resume.flow IS NOT NULL THEN
        PERFORM pulse._require_lane_or_flow(_do_resume.lane);
        RETURN pulse._unhold_flow(v_who, _do_resume.flow, _do_resume.holder);
    END IF;
    IF _do_resume.lane IS NOT NULL THEN
        PERFORM pulse._require_lane(_do_resume.lane);
    END IF;
    RETURN pulse._unhold(v_who, 'resume', coalesce(_do_resume.lane, ''), _do_resume.holder, NULL);
END;
$$;

COMMENT ON FUNCTION pulse._do_resume(pulse._signature, text, text, text) IS
'resume for the role that signed. Writes the same.';

CREATE FUNCTION pulse.pause_status()
RETURNS TABLE (
    lane text, holder text, reason text, held_by name, held_at timestamptz, flow text
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        nullif(h.lane, '') AS lane,
        h.holder,
        h.reason,
        h.held_by,
        h.held_at,
        h.flow
    FROM (
        SELECT o.lane, o.holder, o.reason, o.held_by, o.held_at, NULL AS flow
        FROM pulse.hold AS o
        UNION ALL
        SELECT '', o.holder, o.reason, o.held_by, o.held_at, o.flow
        FROM pulse.flow_hold AS o
    ) AS h
    ORDER BY h.held_at, h.lane, h.flow, h.holder
$$;

COMMENT ON FUNCTION pulse.pause_status() IS
'Every hold: which lane or flow (both NULL: everything), who, why, since when. The holder drain is a drained lane. Writes nothing.';
