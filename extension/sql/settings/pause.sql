-- A claim tries the hold lock shared and reads the holds in a later statement; pause
-- takes it exclusively and keeps it to its commit. So once pause has committed no
-- claim can commit that did not see the hold.

CREATE FUNCTION pulse.pause(
    holder text,
    reason text DEFAULT NULL,
    lane text DEFAULT NULL,
    new boolean DEFAULT false,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(pause.signature);
BEGIN
    PERFORM pulse_internal.require_holder(pause.holder);
    IF pause.lane IS NOT NULL THEN
        PERFORM pulse_internal.require_lane(pause.lane, pause.new);
    END IF;
    RETURN pulse_internal.add_hold(
        v_who, 'pause', coalesce(pause.lane, ''), pause.holder, pause.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse.pause(
    text, text, text, boolean, pulse_internal.caller_signature
) IS
'Stop all claims, or those of one lane: strict from the commit on. Pauses nest by holder. Enqueue, heartbeats, reports, reaping and schedules go on. Returns whether the hold is new. PU013 nothing has named this lane yet, unless new => true; PU106 when open claims do not end within 10 s. Writes hold and audit_entry.';

CREATE FUNCTION pulse.resume(
    holder text,
    lane text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(resume.signature);
BEGIN
    PERFORM pulse_internal.require_holder(resume.holder);
    IF resume.lane IS NOT NULL THEN
        PERFORM pulse_internal.require_lane(resume.lane);
    END IF;
    RETURN pulse_internal.unhold(v_who, 'resume', coalesce(resume.lane, ''), resume.holder, NULL);
END;
$$;

COMMENT ON FUNCTION pulse.resume(text, text, pulse_internal.caller_signature) IS
'Take back a pause of this holder with the same scope. Returns whether there was one. PU013 nothing has named this lane yet. Writes hold and audit_entry.';

CREATE FUNCTION pulse.pause_status()
RETURNS TABLE (lane text, holder text, reason text, held_by name, held_at timestamptz)
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
        h.held_at
    FROM pulse_internal.hold AS h
    ORDER BY h.held_at, h.lane, h.holder
$$;

COMMENT ON FUNCTION pulse.pause_status() IS
'Every hold: which lane (NULL: every lane), who, why, since when. The holder drain is a drained lane. Writes nothing.';

-- A drained lane is a hold of its own, by the holder drain.

CREATE FUNCTION pulse.drain_lane(
    lane text,
    reason text DEFAULT NULL,
    new boolean DEFAULT false,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(drain_lane.signature);
BEGIN
    PERFORM pulse_internal.require_lane(drain_lane.lane, drain_lane.new);
    RETURN pulse_internal.add_hold(v_who, 'drain_lane', drain_lane.lane, 'drain', drain_lane.reason);
END;
$$;

COMMENT ON FUNCTION pulse.drain_lane(
    text, text, boolean, pulse_internal.caller_signature
) IS
'Let what runs in a lane end and claim nothing more from it, until resume_lane. Returns whether it was not drained already. PU013 nothing has named this lane yet (a typo would drain a lane that nobody uses), unless new => true; PU106 when open claims do not end within 10 s. Writes hold and audit_entry.';

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

CREATE FUNCTION pulse.resume_lane(
    lane text,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(resume_lane.signature);
BEGIN
    PERFORM pulse_internal.require_lane(resume_lane.lane);
    RETURN pulse_internal.unhold(
        v_who, 'resume_lane', resume_lane.lane, 'drain', resume_lane.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse.resume_lane(text, text, pulse_internal.caller_signature) IS
'Let a drained lane be claimed again; pauses by other holders stay. Returns whether it was drained. PU013 nothing has named this lane yet. Writes hold and audit_entry.';

-- Holds as pause, resume and drain_lane write them.

CREATE FUNCTION pulse_internal.add_hold(
    who integer, verb text, lane text, holder text, reason text
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_read_committed(add_hold.verb);
    PERFORM pulse_internal.require_reason(add_hold.reason);

    -- Waits for open claims.
    PERFORM pulse_internal.lock_out_claims('pulse_internal.hold', 0, add_hold.verb);

    INSERT INTO pulse_internal.hold (lane, holder, reason, held_by)
    VALUES (add_hold.lane, add_hold.holder, add_hold.reason, pulse_internal.role_name(add_hold.who))
    ON CONFLICT ON CONSTRAINT hold_is_one_per_holder DO NOTHING;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM pulse_internal.audit(
        add_hold.who, add_hold.verb, NULL, nullif(add_hold.lane, ''),
        NULL, jsonb_build_object('holder', add_hold.holder), add_hold.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.add_hold(integer, text, text, text, text) IS
'Put a hold on a lane, or on all of them; false when this holder has it already.';

CREATE FUNCTION pulse_internal.unhold(
    who integer, verb text, lane text, holder text, reason text
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_read_committed(unhold.verb);
    PERFORM pulse_internal.require_reason(unhold.reason);

    DELETE FROM pulse_internal.hold AS h
    WHERE h.lane = unhold.lane
        AND h.holder = unhold.holder;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM pulse_internal.audit(
        unhold.who, unhold.verb, NULL, nullif(unhold.lane, ''),
        jsonb_build_object('holder', unhold.holder), NULL, unhold.reason
    );

    IF unhold.lane <> '' THEN
        PERFORM pulse_internal.ring(unhold.lane);
    END IF;

    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unhold(integer, text, text, text, text) IS
'Take a hold away; false when it was not there.';

-- So that a drained lane is resumed by resume_lane and by nothing else.
CREATE FUNCTION pulse_internal.require_holder(holder text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_name('holder', require_holder.holder);
    IF require_holder.holder = 'drain' THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'the holder ''drain'' belongs to drain_lane',
            'A drained lane is a hold of its own.',
            'Use drain_lane and resume_lane, or another holder.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_holder(text) IS
'Raise PU002 unless the value can be a holder.';

-- A lane works on first mention, so a name with a typo would be one more lane. A look by key
-- for each place that names lanes; those without an index are few rows.
CREATE FUNCTION pulse_internal.require_lane(lane text, new boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM pulse_internal.require_name('lane', require_lane.lane);
    IF require_lane.new
        OR require_lane.lane = 'default'
        OR EXISTS (SELECT FROM pulse_internal.lane AS l WHERE l.lane = require_lane.lane)
        OR EXISTS (SELECT FROM pulse_internal.hold AS h WHERE h.lane = require_lane.lane)
        OR EXISTS (
            SELECT FROM pulse_internal.stat AS s WHERE NOT s.total AND s.lane = require_lane.lane
        )
        OR EXISTS (
            SELECT FROM pulse_internal.ready AS r
            WHERE r.lane = require_lane.lane AND r.failures >= 0 AND r.group_key IS NULL
        )
        OR EXISTS (
            SELECT FROM pulse_internal.waiting AS w
            WHERE w.lane = require_lane.lane AND w.attempts >= 0
        )
        OR EXISTS (SELECT FROM pulse_internal.finished AS f WHERE f.lane = require_lane.lane)
        OR EXISTS (SELECT FROM pulse_internal.lease AS l WHERE l.lane = require_lane.lane)
        OR EXISTS (SELECT FROM pulse_internal.approval AS a WHERE a.lane = require_lane.lane)
        OR EXISTS (SELECT FROM pulse_internal.kind AS k WHERE k.lane = require_lane.lane)
        OR EXISTS (SELECT FROM pulse_internal.worker AS w WHERE require_lane.lane = ANY (w.lanes))
        OR EXISTS (
            SELECT FROM pulse_internal.schedule AS s WHERE s.options ->> 'lane' = require_lane.lane
        )
    THEN
        RETURN;
    END IF;

    PERFORM pulse_internal.raise(
        'PU013',
        format('there is no lane %L', require_lane.lane),
        'No job, setting, kind, worker, schedule or pause names it.',
        'SELECT name FROM pulse.lanes; to hold a lane before it is used: new => true.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_lane(text, boolean) IS
'Raise PU002 unless the value can be a lane, and PU013 unless something names it or it may be new.';
