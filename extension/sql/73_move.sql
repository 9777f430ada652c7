-- reprioritize and move take a job out of its place and put it in another. A row in line
-- is never changed: the job gets a new place at the end of its line, so that nothing
-- appears behind a low-water mark.

CREATE FUNCTION pulse.move(job_id bigint, lane text, reason text DEFAULT NULL)
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_move(pulse._sign(), move.job_id, move.lane, move.reason)
$$;

COMMENT ON FUNCTION pulse.move(bigint, text, text) IS
'Put a waiting job into another lane, at the end of its priority there, with its unique key; returns its state. PU002 not a lane name; PU004 no such job; PU102 the key is taken in that lane; PU105 it is running or has ended; PU107 it kept moving. Writes blocked, approval, waiting or ready, and job_key and audit_entry.';

CREATE FUNCTION pulse._do_move(
    signature pulse._signature, job_id bigint, lane text, reason text
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_move.signature);
    v_done record;
BEGIN
    PERFORM pulse._require_read_committed('move');
    PERFORM pulse._require_name('lane', _do_move.lane);
    PERFORM pulse._require_reason(_do_move.reason);

    -- Nothing to do must not cost the job its place in line.
    IF EXISTS (
        SELECT
        FROM pulse._in_line AS r
        WHERE r.job = _do_move.job_id
            AND r.lane = _do_move.lane
    ) THEN
        RETURN 'ready';
    END IF;

    SELECT s.* INTO v_done
    FROM pulse._shift(_do_move.job_id, _do_move.lane, NULL) AS s;

    IF v_done.was IN ('running', 'completed', 'dead', 'cancelled') THEN
        PERFORM pulse._raise_wrong_state(
            _do_move.job_id, v_done.was, 'move', 'Only a job that waits can change its lane.'
        );
    END IF;

    IF v_done.key_holder IS NOT NULL THEN
        PERFORM pulse._raise_key_taken(
            _do_move.lane, pulse._key_of(_do_move.job_id), v_done.key_holder
        );
    END IF;

    PERFORM pulse._audit(
        v_who, 'move', _do_move.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was, 'lane', v_done.lane),
        jsonb_build_object('state', v_done.state, 'lane', _do_move.lane),
        _do_move.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse._do_move(pulse._signature, bigint, text, text) IS
'move for the role that signed. Writes the same.';
