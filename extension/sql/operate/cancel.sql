-- cancel ends a job that does not run at once. Of a running job it asks the worker to
-- stop, by cancel_by in the lease; with force it deletes the lease, and the reports of
-- the worker find nothing. It deletes from the table where the job stands, writes
-- finished, job_key and audit_entry, and locks the one row that says where the job stands
-- (take_out). A producer cancels its own jobs and must not learn that others exist.

CREATE FUNCTION pulse.cancel(
    job_id bigint,
    reason text DEFAULT NULL,
    force boolean DEFAULT false,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(cancel.signature);
    v_force boolean := coalesce(cancel.force, false);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('cancel');
    PERFORM pulse_internal.require_reason(cancel.reason);

    IF NOT pulse_internal.operates(v_who) THEN
        -- The job of another producer does not exist for this one.
        IF NOT pulse_internal.owns(v_who, cancel.job_id) THEN
            PERFORM pulse_internal.raise_no_such_job(cancel.job_id);
        END IF;

        IF v_force THEN
            PERFORM pulse_internal.raise_force();
        END IF;
    END IF;

    SELECT c.* INTO v_done
    FROM pulse_internal.cancel(cancel.job_id, cancel.reason, v_force) AS c;

    IF v_done.state IN ('completed', 'dead') THEN
        PERFORM pulse_internal.raise_wrong_state(
            cancel.job_id, v_done.state, 'cancel', 'It has ended; there is nothing to stop.'
        );
    END IF;

    IF v_done.changed THEN
        PERFORM pulse_internal.audit(
            v_who, 'cancel', cancel.job_id, v_done.lane,
            jsonb_build_object('state', v_done.was),
            jsonb_build_object(
                'state', v_done.state, 'requested', v_done.state = 'running', 'force', v_force
            ),
            cancel.reason
        );
    END IF;

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.cancel(
    bigint, text, boolean, pulse_internal.caller_signature
) IS
'Cancel a job and return the state it is in then. A job that does not run is cancelled at once. A running one is asked to stop and stays running: its worker sees the request with the next heartbeat, and the job is cancelled when the worker acknowledges, when it is lost, or after the lane''s cancel_grace, which a second request does not extend. force => true (operators only) takes the lease away at once. A job already cancelled stays so. Producers may cancel their own jobs, operators all. PU004 no such job, or not yours; PU011 force without operator access; PU105 the job is completed or dead; PU107 it kept moving. Writes blocked, approval, waiting, ready or lease, and finished, job_key and audit_entry; for a request lease and audit_entry.';

CREATE FUNCTION pulse_internal.raise_force()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU011',
        'force => true needs operator access',
        'Only an operator may take a lease away from a running job.',
        'Call it without force: the worker is asked to stop and has the grace to do so.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_force() IS
'Raise PU011.';

-- was: the state before; state: the state after (the same where nothing can be done).
CREATE FUNCTION pulse_internal.cancel(
    job_id bigint,
    reason text,
    force boolean,
    OUT was text,
    OUT lane text,
    OUT state text,
    OUT changed boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
    v_lease pulse_internal.lease;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(cancel.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;
    state := v_was.state;
    changed := false;

    IF was <> ALL (pulse_internal.acts_on('cancel')) THEN
        RETURN;
    END IF;

    IF was = 'running' AND NOT cancel.force THEN
        IF v_was.cancel_by IS NOT NULL THEN
            RETURN;
        END IF;

        -- The worker sees the request with its next heartbeat and has the grace to stop.
        -- reap_at makes the sweep look in time.
        WITH grace AS MATERIALIZED (
            SELECT clock_timestamp() + s.cancel_grace AS cancel_by
            FROM pulse_internal.lane_settings(v_was.lane) AS s
        )

        UPDATE pulse_internal.lease AS l
        SET
            cancel_by = g.cancel_by,
            cancel_reason = coalesce(cancel.reason, 'cancelled'),
            lease_until = least(l.lease_until, g.cancel_by),
            reap_at = least(l.reap_at, l.lease_until, g.cancel_by)
        FROM grace AS g
        WHERE l.job = cancel.job_id;

        changed := true;
        RETURN;
    END IF;

    IF was = 'blocked' THEN
        DELETE FROM pulse_internal.blocked AS b
        WHERE b.job = cancel.job_id;
    END IF;

    IF was = 'running' THEN
        -- Forced: the lease is gone, and the worker's reports find nothing.
        DELETE FROM pulse_internal.lease AS l
        WHERE l.job = cancel.job_id
        RETURNING l.* INTO v_lease;

        PERFORM pulse_internal.count_start(v_lease);
        IF v_lease.group_key IS NOT NULL THEN
            PERFORM pulse_internal.notice_ends(
                ARRAY[ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group]
            );
        END IF;
    END IF;

    PERFORM pulse_internal.finish_cancelled(
        cancel.job_id, v_was.lane, v_was.kind, v_was.rank, 'cancel',
        v_was.attempts, v_was.failures, v_was.keyed,
        coalesce(cancel.reason, 'cancelled'), v_was.claimed_at, NULL, v_was.worker
    );

    state := 'cancelled';
    changed := true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cancel(bigint, text, boolean) IS
'Cancel one job, or ask its worker to stop; finished jobs are left as they are.';
