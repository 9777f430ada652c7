CREATE FUNCTION pulse.reprioritize(
    job_id bigint, priority integer, reason text DEFAULT NULL
)
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_reprioritize(
        pulse._sign(), reprioritize.job_id, reprioritize.priority, reprioritize.reason
    )
$$;

COMMENT ON FUNCTION pulse.reprioritize(bigint, integer, text) IS
'Give a job another priority (higher runs first); returns its state. A job in line goes to the end of its new priority; one that has that priority keeps its place. A running job goes on undisturbed, and the priority counts for its next run. PU002 priority out of bounds; PU004 no such job; PU105 it has ended; PU107 it kept moving. Writes blocked, approval, waiting, ready or lease, and audit_entry.';

CREATE FUNCTION pulse._do_reprioritize(
    signature pulse._signature, job_id bigint, priority integer, reason text
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_reprioritize.signature);
    v_done record;
BEGIN
    PERFORM pulse._require_read_committed('reprioritize');
    PERFORM pulse._require_priority(_do_reprioritize.priority);
    PERFORM pulse._require_reason(_do_reprioritize.reason);

    -- Nothing to do must not cost the job its place in line.
    IF EXISTS (
        SELECT
        FROM pulse._in_line AS r
        WHERE r.job = _do_reprioritize.job_id
            AND r.rank = - _do_reprioritize.priority
    ) THEN
        RETURN 'ready';
    END IF;

    SELECT s.* INTO v_done
    FROM pulse._shift(_do_reprioritize.job_id, NULL, - _do_reprioritize.priority) AS s;

    IF v_done.was IN ('completed', 'dead', 'cancelled') THEN
        PERFORM pulse._raise_wrong_state(
            _do_reprioritize.job_id, v_done.was, 'reprioritize',
            'A dead or cancelled job can be put back in line by pulse.retry.'
        );
    END IF;

    PERFORM pulse._audit(
        v_who, 'reprioritize', _do_reprioritize.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was, 'priority', - v_done.rank),
        jsonb_build_object('state', v_done.state, 'priority', _do_reprioritize.priority),
        _do_reprioritize.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse._do_reprioritize(pulse._signature, bigint, integer, text) IS
'reprioritize for the role that signed. Writes the same.';
