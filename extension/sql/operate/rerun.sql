-- rerun enqueues a job that has ended again, as a new job of the same owner. It writes
-- what enqueue writes, and audit_entry. It locks the row in finished, so that retention
-- leaves the body that it copies. The old job must stay as it is; retry is the verb that
-- puts it back in line.

CREATE FUNCTION pulse.rerun(
    job_id bigint,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(rerun.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('rerun');
    PERFORM pulse_internal.require_reason(rerun.reason);

    SELECT r.* INTO v_done
    FROM pulse_internal.rerun(rerun.job_id) AS r;

    IF v_done.new_job IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            rerun.job_id, v_done.was, 'rerun',
            'Only a job that has ended can be rerun; this one has not. run_now starts one that waits for its time.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'rerun', rerun.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('rerun_as', v_done.new_job::text),
        rerun.reason
    );
    RETURN v_done.new_job;
END;
$$;

COMMENT ON FUNCTION pulse.rerun(bigint, text, pulse_internal.caller_signature) IS
'Enqueue a finished job again, as a new job, and return the id of the new one, whose rerun_of names the old one: same kind, payload, headers, lane, priority and options, same owner, without its unique key and start_by; where the old one needed approval so does the new one. The old one stays as it is (retry puts a dead or cancelled job itself back in line). PU004 no such job; PU105 it has not ended; PU107 it kept moving. Writes what enqueue writes, and audit_entry.';

-- The row in finished is locked, so that body is there. new_job stays NULL for a job that has
-- not ended.
CREATE FUNCTION pulse_internal.rerun(job_id bigint, OUT was text, OUT lane text, OUT new_job bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
    v_body pulse_internal.body;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(rerun.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was <> ALL (pulse_internal.acts_on('rerun')) THEN
        RETURN;
    END IF;

    SELECT b.* INTO v_body
    FROM pulse_internal.body AS b
    WHERE b.job = rerun.job_id;

    INSERT INTO pulse_internal.request AS r (kind, payload, lane, priority, options, owner)
    VALUES (
        v_body.kind, v_body.payload, v_was.lane, - v_was.rank,
        ROW(
            NULL, NULL, NULL, NULL, NULL, NULL, v_body.max_attempts, NULL, NULL, 'skip',
            v_body.group_key, v_body.needed_approval, v_body.tags, v_body.max_runtime,
            v_body.headers, NULL, NULL, NULL, NULL, v_body.flow, v_body.name
        )::pulse_internal.item,
        v_body.owner
    )
    RETURNING r.job_id INTO new_job;

    UPDATE pulse_internal.body AS b
    SET rerun_of = rerun.job_id
    WHERE b.job = new_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rerun(bigint) IS
'Enqueue a finished job again, as a new one; returns what it was and the id of the new one.';
