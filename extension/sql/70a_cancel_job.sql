-- was: the state before; state: the state after (the same where nothing can be done).
CREATE FUNCTION pulse._cancel(
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
    v_lease pulse.lease;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(_cancel.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;
    state := v_was.state;
    changed := false;

    IF was IN ('completed', 'dead', 'cancelled') THEN
        RETURN;
    END IF;

    IF was = 'running' AND NOT _cancel.force THEN
        IF v_was.cancel_by IS NOT NULL THEN
            RETURN;
        END IF;

        -- The worker sees the request with its next heartbeat and has the grace to stop.
        -- reap_at makes the sweep look in time.
        WITH grace AS MATERIALIZED (
            SELECT clock_timestamp() + s.cancel_grace AS cancel_by
            FROM pulse._lane_settings(v_was.lane) AS s
        )

        UPDATE pulse.lease AS l
        SET
            cancel_by = g.cancel_by,
            cancel_reason = coalesce(_cancel.reason, 'cancelled'),
            lease_until = least(l.lease_until, g.cancel_by),
            reap_at = least(l.reap_at, l.lease_until, g.cancel_by)
        FROM grace AS g
        WHERE l.job = _cancel.job_id;

        changed := true;
        RETURN;
    END IF;

    IF was = 'blocked' THEN
        DELETE FROM pulse.blocked AS b
        WHERE b.job = _cancel.job_id;
    END IF;

    IF was = 'running' THEN
        -- Forced: the lease is gone, and the worker's reports find nothing.
        DELETE FROM pulse.lease AS l
        WHERE l.job = _cancel.job_id
        RETURNING l.* INTO v_lease;

        PERFORM pulse._count_start(v_lease);
        IF v_lease.group_key IS NOT NULL THEN
            PERFORM pulse._notice_ends(
                ARRAY[ROW(v_lease.lane, v_lease.group_key)::pulse._group]
            );
        END IF;
    END IF;

    PERFORM pulse._finish_cancelled(
        _cancel.job_id, v_was.lane, v_was.kind, v_was.rank, 'cancel',
        v_was.attempts, v_was.failures, v_was.keyed,
        coalesce(_cancel.reason, 'cancelled'), v_was.claimed_at, NULL, v_was.worker
    );

    state := 'cancelled';
    changed := true;
END;
$$;

COMMENT ON FUNCTION pulse._cancel(bigint, text, boolean) IS
'Cancel one job, or ask its worker to stop; finished jobs are left as they are.';
