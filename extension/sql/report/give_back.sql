-- release, snooze, ack_cancel: a worker ends a run without a result and without a failure.
--
-- release returns jobs to the queue at once, and snooze returns one after a delay. ack_cancel
-- confirms that the worker has stopped a job whose cancel was requested. All three delete the row
-- of lease: a report whose lease was lost finds no row and changes nothing. release and snooze
-- then insert into ready or waiting. If a cancel was requested meanwhile, the job must not run
-- again: then they insert into finished, as ack_cancel does.
--
-- Locks: leases in the order of their numbers. All three wait for another report, a cancel or a
-- reap that has locked the same lease.

CREATE FUNCTION pulse.release(leases bigint [])
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_released bigint [];
BEGIN
    PERFORM pulse_internal.require_read_committed('release');
    v_released := pulse_internal.release_runs(release.leases, NULL, 'release');

    RETURN QUERY
    SELECT s.*
    FROM pulse_internal.report_statuses(
        release.leases, release.leases, v_released, 'release', false
    ) AS s;
END;
$$;

COMMENT ON FUNCTION pulse.release(bigint []) IS
'Return running jobs to the queue at once; this does not count as a failed attempt. Returns a status for each lease, in the order given.

- ok: the job is ready, by this call or by an earlier one with the same lease.
- The job is the last of its priority; in a lane with in_order it keeps its position.
- A job whose cancel was requested is cancelled instead.
- lost: the lease has expired and was taken away. Nothing was written.

Errors: PU001 above READ COMMITTED.';

CREATE FUNCTION pulse.snooze(lease bigint, delay interval)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_read_committed('snooze');
    IF snooze.delay IS NULL THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'delay must be given',
            'It is NULL.',
            'Pass delay => ''30 seconds'', or use release to give the job back at once.'
        );
    END IF;
    PERFORM pulse_internal.require_duration(
        snooze.delay, pulse_internal.range_of('snooze', 'delay')
    );

    IF cardinality(pulse_internal.release_runs(ARRAY[snooze.lease], snooze.delay, 'snooze')) = 0
        AND NOT pulse_internal.reported_before(snooze.lease, 'snooze')
    THEN
        PERFORM pulse_internal.raise_lease_lost(snooze.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.snooze(bigint, interval) IS
'Return a running job to the queue until delay has passed; this does not count as a failed attempt. A call with the same lease may be repeated. A job whose cancel was requested is cancelled instead.

Errors: PU001 above READ COMMITTED, PU002 bad delay, PU101 the lease was lost.';

CREATE FUNCTION pulse.ack_cancel(lease bigint)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lease pulse_internal.lease;
BEGIN
    PERFORM pulse_internal.require_read_committed('ack_cancel');

    -- Deleting the row is the fence: a report with an old lease deletes nothing. This waits for
    -- a cancel or a reap that has locked the row.
    DELETE FROM pulse_internal.lease AS l
    WHERE l.lease = ack_cancel.lease
    RETURNING l.* INTO v_lease;

    IF NOT FOUND THEN
        IF pulse_internal.reported_before(ack_cancel.lease, 'ack_cancel') THEN
            RETURN;
        END IF;

        PERFORM pulse_internal.raise_lease_lost(ack_cancel.lease);
    END IF;

    IF v_lease.cancel_by IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            v_lease.job, 'running and no cancel was requested', 'acknowledge a cancel of',
            'Call complete, fail, snooze or release; ack_cancel only answers the heartbeat verdict cancel.'
        );
    END IF;

    PERFORM pulse_internal.count_start(v_lease);
    IF v_lease.group_key IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(
            ARRAY[ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group]
        );
    END IF;

    PERFORM pulse_internal.finish_cancelled(
        v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank, 'ack_cancel',
        v_lease.attempt, v_lease.failures, v_lease.keyed, v_lease.cancel_reason,
        v_lease.claimed_at, v_lease.lease, v_lease.worker
    );
END;
$$;

COMMENT ON FUNCTION pulse.ack_cancel(bigint) IS
'Confirm that a run was stopped because its cancel was requested: the job is cancelled. A call with the same lease may be repeated.

Errors: PU001 above READ COMMITTED, PU101 the lease was lost, PU105 no cancel of this run was requested.';

CREATE FUNCTION pulse_internal.release_runs(leases bigint [], delay interval, verb text)
RETURNS bigint []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lease pulse_internal.lease;
    v_released bigint [] := ARRAY[]::bigint [];
    v_groups pulse_internal.lane_group [];
BEGIN
    -- Locks the leases in order, and waits for another report of the same lease.
    FOR v_lease IN
        SELECT l.*
        FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (release_runs.leases)
        ORDER BY l.lease
        FOR UPDATE
    LOOP
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = v_lease.lease;
        PERFORM pulse_internal.count_start(v_lease);

        IF v_lease.cancel_by IS NULL THEN
            PERFORM pulse_internal.put_in_line(
                v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank,
                clock_timestamp() + release_runs.delay, v_lease.attempt, v_lease.failures,
                v_lease.keyed, false, v_lease.lease, release_runs.verb,
                v_lease.place
            );
        ELSE
            PERFORM pulse_internal.finish_cancelled(
                v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank, release_runs.verb,
                v_lease.attempt, v_lease.failures, v_lease.keyed, v_lease.cancel_reason,
                v_lease.claimed_at, v_lease.lease, v_lease.worker
            );
        END IF;
        v_released := v_released || v_lease.lease;
        IF v_lease.group_key IS NOT NULL THEN
            v_groups := v_groups || ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group;
        END IF;
    END LOOP;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;
    RETURN v_released;
END;
$$;

COMMENT ON FUNCTION pulse_internal.release_runs(bigint [], interval, text) IS
'End runs without a failure and return the leases that it has ended. Their jobs become ready, or wait for delay; those whose cancel was requested are cancelled.';
