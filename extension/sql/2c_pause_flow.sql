-- The pause of a flow.
--
-- Its jobs stand in many lanes, and more come while it lasts, so nobody goes and looks for
-- them. A claim that sees any such pause, under the hold lock as with every pause, puts the
-- jobs of the flow that it has picked into blocked instead of leasing them: parked, they wait
-- for minus the number of the pause. So each job is met once, pausing costs one row, and
-- what stands behind them in line is reached.
--
-- resume keeps claims out while it looks, so that it sees all that were parked, and leaves
-- portions of 200 in wake: claims and tick put them back in line (2a_settle.sql).

CREATE FUNCTION pulse._hold_flow(who integer, flow text, holder text, reason text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_read_committed('pause');
    PERFORM pulse._require_reason(_hold_flow.reason);

    -- Waits for open claims.
    PERFORM pulse._lock_out_claims('pulse.hold', 0, 'pause');

    INSERT INTO pulse.flow_hold (flow, holder, reason, held_by)
    VALUES (
        _hold_flow.flow, _hold_flow.holder, _hold_flow.reason,
        pulse._role_name(_hold_flow.who)
    )
    ON CONFLICT ON CONSTRAINT flow_hold_is_one_per_holder DO NOTHING;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM pulse._audit(
        _hold_flow.who, 'pause', NULL, NULL, NULL,
        jsonb_build_object('holder', _hold_flow.holder, 'flow', _hold_flow.flow),
        _hold_flow.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._hold_flow(integer, text, text, text) IS
'Put a hold on a flow; false when this holder has it already.';

CREATE FUNCTION pulse._unhold_flow(who integer, flow text, holder text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_number bigint;
BEGIN
    PERFORM pulse._require_read_committed('resume');
    PERFORM pulse._require_name('flow', _unhold_flow.flow);

    -- A claim that still saw the pause has committed what it parked.
    PERFORM pulse._lock_out_claims('pulse.hold', 0, 'resume');

    DELETE FROM pulse.flow_hold AS h
    WHERE h.flow = _unhold_flow.flow
        AND h.holder = _unhold_flow.holder
    RETURNING h.number INTO v_number;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    INSERT INTO pulse.wake (job, from_seq, to_seq)
    SELECT -v_number, min(p.seq), max(p.seq)
    FROM (
        SELECT b.seq, (row_number() OVER (ORDER BY b.seq) - 1) / 200 AS portion
        FROM pulse.blocked AS b
        WHERE b.waits_for = -v_number
    ) AS p
    GROUP BY p.portion
    ORDER BY p.portion;

    PERFORM pulse._ring(p.lane)
    FROM (
        SELECT DISTINCT b.lane
        FROM pulse.blocked AS b
        WHERE b.waits_for = -v_number
    ) AS p;

    PERFORM pulse._audit(
        _unhold_flow.who, 'resume', NULL, NULL,
        jsonb_build_object('holder', _unhold_flow.holder, 'flow', _unhold_flow.flow),
        NULL, NULL
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._unhold_flow(integer, text, text) IS
'Take a hold of a flow away, and note who has to be put back in line; false when it was not there.';
