CREATE FUNCTION pulse.reject(job_id bigint, reason text DEFAULT NULL)
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_reject(pulse._sign(), reject.job_id, reject.reason)
$$;

COMMENT ON FUNCTION pulse.reject(bigint, text) IS
'Refuse a job that awaits approval: it is cancelled, with the reason as its error. Returns cancelled. Many at once: reject_where. PU004 no such job; PU105 it does not await approval; PU107 it kept moving. Writes approval, finished, job_key and audit_entry.';

CREATE FUNCTION pulse._do_reject(signature pulse._signature, job_id bigint, reason text)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_reject.signature);
    v_done record;
BEGIN
    PERFORM pulse._require_read_committed('reject');
    PERFORM pulse._require_reason(_do_reject.reason);

    SELECT r.* INTO v_done
    FROM pulse._reject(_do_reject.job_id, _do_reject.reason) AS r;

    IF v_done.state IS NULL THEN
        PERFORM pulse._raise_wrong_state(
            _do_reject.job_id, v_done.was, 'reject',
            'Only a job that awaits approval can be rejected; pulse.cancel stops any other.'
        );
    END IF;

    PERFORM pulse._audit(
        v_who, 'reject', _do_reject.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('state', v_done.state),
        _do_reject.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse._do_reject(pulse._signature, bigint, text) IS
'reject for the role that signed. Writes the same.';

CREATE FUNCTION pulse._reject(
    job_id bigint, reason text, OUT was text, OUT lane text, OUT state text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_was record;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(_reject.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was <> 'awaiting_approval' THEN
        RETURN;
    END IF;

    PERFORM pulse._finish_cancelled(
        _reject.job_id, v_was.lane, v_was.kind, v_was.rank, 'reject',
        0, 0, v_was.keyed, concat_ws(': ', 'rejected', _reject.reason)
    );

    state := 'cancelled';
END;
$$;

COMMENT ON FUNCTION pulse._reject(bigint, text) IS
'Cancel a job that awaits approval; state stays NULL when it does not await any.';
