-- A run that is given back without a result: at once (release) or later (snooze).

CREATE FUNCTION pulse.release(leases bigint [])
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_given bigint [];
BEGIN
    PERFORM pulse_internal.require_read_committed('release');
    v_given := pulse_internal.give_back(release.leases, NULL, 'release');

    RETURN QUERY
    SELECT v.*
    FROM pulse_internal.verdicts(release.leases, release.leases, v_given, 'release', false) AS v;
END;
$$;

COMMENT ON FUNCTION pulse.release(bigint []) IS
'Give running jobs back at once without charging them: they join the end of their priority, or keep their place in a lane with in_order. One row for each lease: ok or lost. Writes lease and ready; after a cancel request lease, finished and job_key.';

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

    IF cardinality(pulse_internal.give_back(ARRAY[snooze.lease], snooze.delay, 'snooze')) = 0
        AND NOT pulse_internal.reported_before(snooze.lease, 'snooze')
    THEN
        PERFORM pulse_internal.raise_lease_lost(snooze.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.snooze(bigint, interval) IS
'Give a running job back until delay has passed, without charging it. Repeating it with the same lease is harmless. PU101 when the lease was lost, PU002 for a bad delay. Writes lease and waiting; after a cancel request lease, finished and job_key.';

-- A run that is given back is not charged. If a cancel was asked for meanwhile, giving
-- back is as good as acknowledging it: the job must not run again.
CREATE FUNCTION pulse_internal.give_back(leases bigint [], delay interval, verb text)
RETURNS bigint []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lease pulse_internal.lease;
    v_given bigint [] := ARRAY[]::bigint [];
    v_groups pulse_internal.lane_group [];
BEGIN
    -- Locked in the order of the leases; waits for a report of the same lease.
    FOR v_lease IN
        SELECT l.*
        FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (give_back.leases)
        ORDER BY l.lease
        FOR UPDATE
    LOOP
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = v_lease.lease;
        PERFORM pulse_internal.count_start(v_lease);

        IF v_lease.cancel_by IS NULL THEN
            PERFORM pulse_internal.put_in_line(
                v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank,
                clock_timestamp() + give_back.delay, v_lease.attempt, v_lease.failures,
                v_lease.keyed, false, v_lease.lease, give_back.verb,
                pulse_internal.group_key(v_lease.job), v_lease.place
            );
        ELSE
            PERFORM pulse_internal.finish_cancelled(
                v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank, give_back.verb,
                v_lease.attempt, v_lease.failures, v_lease.keyed, v_lease.cancel_reason,
                v_lease.claimed_at, v_lease.lease, v_lease.worker
            );
        END IF;
        v_given := v_given || v_lease.lease;
        IF v_lease.group_key IS NOT NULL THEN
            v_groups := v_groups || ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group;
        END IF;
    END LOOP;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;
    RETURN v_given;
END;
$$;

COMMENT ON FUNCTION pulse_internal.give_back(bigint [], interval, text) IS
'Put running jobs back into line, or into waiting for delay, without charging them.';

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

    -- Taking the row out is the fence: a stale lease finds nothing. Waits for a cancel
    -- or reap that holds it.
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
'Report that the run was stopped as a cancel requested: the job is cancelled. Repeating it with the same lease is harmless. PU101 the lease was lost; PU105 no cancel of this run was requested. Writes lease, finished and job_key.';
