CREATE FUNCTION pulse.ack_cancel(lease bigint)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lease pulse.lease;
BEGIN
    PERFORM pulse._require_read_committed('ack_cancel');

    -- Taking the row out is the fence: a stale lease finds nothing. Waits for a cancel
    -- or reap that holds it.
    DELETE FROM pulse.lease AS l
    WHERE l.lease = ack_cancel.lease
    RETURNING l.* INTO v_lease;

    IF NOT FOUND THEN
        IF pulse._reported_before(ack_cancel.lease, 'ack_cancel') THEN
            RETURN;
        END IF;

        PERFORM pulse._raise_lease_lost(ack_cancel.lease);
    END IF;

    IF v_lease.cancel_by IS NULL THEN
        PERFORM pulse._raise_wrong_state(
            v_lease.job, 'running and no cancel was requested', 'acknowledge a cancel of',
            'Call complete, fail, snooze or release; ack_cancel only answers the heartbeat verdict cancel.'
        );
    END IF;

    PERFORM pulse._count_start(v_lease);
    IF v_lease.group_key IS NOT NULL THEN
        PERFORM pulse._notice_ends(ARRAY[ROW(v_lease.lane, v_lease.group_key)::pulse._group]);
    END IF;

    PERFORM pulse._finish_cancelled(
        v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank, 'ack_cancel',
        v_lease.attempt, v_lease.failures, v_lease.keyed, v_lease.cancel_reason,
        v_lease.claimed_at, v_lease.lease, v_lease.worker
    );
END;
$$;

COMMENT ON FUNCTION pulse.ack_cancel(bigint) IS
'Report that the run was stopped as a cancel requested: the job is cancelled. Repeating it with the same lease is harmless. PU101 the lease was lost; PU105 no cancel of this run was requested. Writes lease, finished and job_key.';
