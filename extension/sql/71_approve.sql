-- Awaiting approval has one way in (enqueue) and three ways out: approve, reject, expiry
-- (and cancel, as everywhere). Each begins with a DELETE from pulse.approval, so the first
-- wins and an approve can never undo a cancel.

CREATE FUNCTION pulse.approve(job_id bigint, reason text DEFAULT NULL)
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_approve(pulse._sign(), approve.job_id, approve.reason)
$$;

COMMENT ON FUNCTION pulse.approve(bigint, text) IS
'Let a job run that awaits approval; returns ready, or scheduled when its run_at is still to come. An approval counts until the watchdog has expired the job. Many at once: approve_where. PU004 no such job; PU105 it does not await approval: approved before, rejected, expired or cancelled; PU107 it kept moving. Writes approval, ready or waiting, and audit_entry.';

CREATE FUNCTION pulse._do_approve(signature pulse._signature, job_id bigint, reason text)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_approve.signature);
    v_done record;
BEGIN
    PERFORM pulse._require_read_committed('approve');
    PERFORM pulse._require_reason(_do_approve.reason);

    SELECT a.* INTO v_done
    FROM pulse._approve(_do_approve.job_id) AS a;

    IF v_done.state IS NULL THEN
        PERFORM pulse._raise_wrong_state(
            _do_approve.job_id, v_done.was, 'approve',
            'Only a job that awaits approval can be approved.'
        );
    END IF;

    PERFORM pulse._audit(
        v_who, 'approve', _do_approve.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('state', v_done.state),
        _do_approve.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse._do_approve(pulse._signature, bigint, text) IS
'approve for the role that signed. Writes the same.';

CREATE FUNCTION pulse._approve(
    job_id bigint, OUT was text, OUT lane text, OUT state text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_was record;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(_approve.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was <> 'awaiting_approval' THEN
        RETURN;
    END IF;

    state := CASE WHEN v_was.run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END;
    PERFORM pulse._put_in_line(
        _approve.job_id, v_was.lane, v_was.kind, v_was.rank, v_was.run_at,
        0, 0, v_was.keyed, false, group_key => pulse._group_key(_approve.job_id)
    );
END;
$$;

COMMENT ON FUNCTION pulse._approve(bigint) IS
'Let a job that awaits approval go; state stays NULL when it does not await any.';
