-- Holds as pause, resume and drain_lane write them.

CREATE FUNCTION pulse._hold(
    who integer, verb text, lane text, holder text, reason text
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_read_committed(_hold.verb);
    PERFORM pulse._require_reason(_hold.reason);

    -- Waits for open claims.
    PERFORM pulse._lock_out_claims('pulse.hold', 0, _hold.verb);

    INSERT INTO pulse.hold (lane, holder, reason, held_by)
    VALUES (_hold.lane, _hold.holder, _hold.reason, pulse._role_name(_hold.who))
    ON CONFLICT ON CONSTRAINT hold_is_one_per_holder DO NOTHING;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM pulse._audit(
        _hold.who, _hold.verb, NULL, nullif(_hold.lane, ''),
        NULL, jsonb_build_object('holder', _hold.holder), _hold.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._hold(integer, text, text, text, text) IS
'Put a hold on a lane, or on all of them; false when this holder has it already.';

CREATE FUNCTION pulse._unhold(
    who integer, verb text, lane text, holder text, reason text
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_read_committed(_unhold.verb);
    PERFORM pulse._require_reason(_unhold.reason);

    DELETE FROM pulse.hold AS h
    WHERE h.lane = _unhold.lane
        AND h.holder = _unhold.holder;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM pulse._audit(
        _unhold.who, _unhold.verb, NULL, nullif(_unhold.lane, ''),
        jsonb_build_object('holder', _unhold.holder), NULL, _unhold.reason
    );

    IF _unhold.lane <> '' THEN
        PERFORM pulse._ring(_unhold.lane);
    END IF;

    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._unhold(integer, text, text, text, text) IS
'Take a hold away; false when it was not there.';

-- So that a drained lane is resumed by resume_lane and by nothing else.
CREATE FUNCTION pulse._require_holder(holder text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_name('holder', _require_holder.holder);
    IF _require_holder.holder = 'drain' THEN
        PERFORM pulse._raise(
            'PU002',
            'the holder ''drain'' belongs to drain_lane',
            'A drained lane is a hold of its own.',
            'Use drain_lane and resume_lane, or another holder.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_holder(text) IS
'Raise PU002 unless the value can be a holder.';

-- A lane works on first mention, so a name with a typo would be one more lane. A look by key
-- for each place that names lanes; those without an index are few rows.
CREATE FUNCTION pulse._require_lane(lane text, new boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM pulse._require_name('lane', _require_lane.lane);
    IF _require_lane.new
        OR _require_lane.lane = 'default'
        OR EXISTS (SELECT FROM pulse.lane AS l WHERE l.lane = _require_lane.lane)
        OR EXISTS (SELECT FROM pulse.hold AS h WHERE h.lane = _require_lane.lane)
        OR EXISTS (SELECT FROM pulse.stat AS s WHERE NOT s.total AND s.lane = _require_lane.lane)
        OR EXISTS (
            SELECT FROM pulse.ready AS r WHERE r.lane = _require_lane.lane AND r.failures >= 0
        )
        OR EXISTS (
            SELECT FROM pulse.waiting AS w
            WHERE w.lane = _require_lane.lane AND w.attempts >= 0
        )
        OR EXISTS (SELECT FROM pulse.finished AS f WHERE f.lane = _require_lane.lane)
        OR EXISTS (SELECT FROM pulse.lease AS l WHERE l.lane = _require_lane.lane)
        OR EXISTS (SELECT FROM pulse.approval AS a WHERE a.lane = _require_lane.lane)
        OR EXISTS (SELECT FROM pulse.kind AS k WHERE k.lane = _require_lane.lane)
        OR EXISTS (SELECT FROM pulse.worker AS w WHERE _require_lane.lane = ANY (w.lanes))
        OR EXISTS (
            SELECT FROM pulse.schedule AS s WHERE s.options ->> 'lane' = _require_lane.lane
        )
    THEN
        RETURN;
    END IF;

    PERFORM pulse._raise(
        'PU013',
        format('there is no lane %L', _require_lane.lane),
        'No job, setting, kind, worker, schedule or pause names it.',
        'SELECT name FROM pulse.lanes; to hold a lane before it is used: new => true.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._require_lane(text, boolean) IS
'Raise PU002 unless the value can be a lane, and PU013 unless something names it or it may be new.';
