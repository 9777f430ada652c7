-- approve and reject decide on a job that awaits approval. Such a job has one way in
-- (enqueue) and four ways out: approve, reject, expiry and cancel. Each of the four
-- begins with a DELETE from approval, so the first wins and an approve never undoes a
-- cancel. approve writes ready or waiting, reject and expiry write finished and job_key,
-- both verbs write audit_entry.

CREATE FUNCTION pulse.approve(
    job_id bigint,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(approve.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('approve');
    PERFORM pulse_internal.require_reason(approve.reason);

    SELECT a.* INTO v_done
    FROM pulse_internal.approve(approve.job_id) AS a;

    IF v_done.state IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            approve.job_id, v_done.was, 'approve',
            'Only a job that awaits approval can be approved.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'approve', approve.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('state', v_done.state),
        approve.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.approve(bigint, text, pulse_internal.caller_signature) IS
'Let a job run that awaits approval; returns ready, or scheduled when its run_at is still to come. An approval counts until the watchdog has expired the job. Many at once: approve_where. PU004 no such job; PU105 it does not await approval: approved before, rejected, expired or cancelled; PU107 it kept moving. Writes approval, ready or waiting, and audit_entry.';

CREATE FUNCTION pulse_internal.approve(
    job_id bigint, OUT was text, OUT lane text, OUT state text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_was record;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(approve.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was <> ALL (pulse_internal.acts_on('approve')) THEN
        RETURN;
    END IF;

    state := CASE WHEN v_was.run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END;
    PERFORM pulse_internal.put_in_line(
        approve.job_id, v_was.lane, v_was.kind, v_was.rank, v_was.run_at,
        0, 0, v_was.keyed, false, NULL, NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.approve(bigint) IS
'Let a job that awaits approval go; state stays NULL when it does not await any.';

CREATE FUNCTION pulse.reject(
    job_id bigint,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(reject.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('reject');
    PERFORM pulse_internal.require_reason(reject.reason);

    SELECT r.* INTO v_done
    FROM pulse_internal.reject(reject.job_id, reject.reason) AS r;

    IF v_done.state IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            reject.job_id, v_done.was, 'reject',
            'Only a job that awaits approval can be rejected; pulse.cancel stops any other.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'reject', reject.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('state', v_done.state),
        reject.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.reject(bigint, text, pulse_internal.caller_signature) IS
'Refuse a job that awaits approval: it is cancelled, with the reason as its error. Returns cancelled. Many at once: reject_where. PU004 no such job; PU105 it does not await approval; PU107 it kept moving. Writes approval, finished, job_key and audit_entry.';

CREATE FUNCTION pulse_internal.reject(
    job_id bigint, reason text, OUT was text, OUT lane text, OUT state text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_was record;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(reject.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was <> ALL (pulse_internal.acts_on('reject')) THEN
        RETURN;
    END IF;

    PERFORM pulse_internal.finish_cancelled(
        reject.job_id, v_was.lane, v_was.kind, v_was.rank, 'reject',
        0, 0, v_was.keyed, concat_ws(': ', 'rejected', reject.reason)
    );

    state := 'cancelled';
END;
$$;

COMMENT ON FUNCTION pulse_internal.reject(bigint, text) IS
'Cancel a job that awaits approval; state stays NULL when it does not await any.';

-- Oldest first, never waiting: what an approver is deciding right now is left to that one. Read
-- from the start of approval_for_expiry: people approve by the hundred, so the dead
-- entries that an old snapshot keeps there are few.
CREATE FUNCTION pulse_internal.expire_approvals(max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_job pulse_internal.approval;
    v_expired integer := 0;
BEGIN
    -- In the order of the keys, as everywhere.
    FOR v_job IN
        WITH expired AS (
            DELETE FROM pulse_internal.approval AS a
            WHERE a.job = ANY (
                ARRAY(
                    SELECT o.job
                    FROM pulse_internal.approval AS o
                    WHERE o.expires_at <= v_now
                    ORDER BY o.expires_at
                    LIMIT expire_approvals.max_jobs
                    FOR UPDATE SKIP LOCKED
                )
            )
            RETURNING a.*
        )

        SELECT e.*
        FROM expired AS e
        ORDER BY e.lane, (CASE WHEN e.keyed THEN pulse_internal.key_of(e.job) END) COLLATE "C"
    LOOP
        PERFORM pulse_internal.finish_cancelled(
            v_job.job, v_job.lane, v_job.kind, v_job.rank, 'expire',
            0, 0, v_job.keyed, 'approval expired'
        );
        v_expired := v_expired + 1;
    END LOOP;

    RETURN v_expired;
END;
$$;

COMMENT ON FUNCTION pulse_internal.expire_approvals(integer) IS
'Cancel jobs that nobody approved in time, at most max_jobs, oldest first; returns how many.';
