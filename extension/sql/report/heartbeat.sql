-- heartbeat: a worker extends its leases, and learns which jobs it has to stop.
--
-- It updates lease_until in lease, in one statement for all leases of the worker. It locks them
-- in the order of their numbers and skips rows that are locked. So a heartbeat never waits: a
-- locked lease is usually one that its worker is reporting in a transaction that is still open,
-- and the heartbeats of the other jobs must not wait for that. A skipped lease is answered from
-- what can be read of it.

CREATE FUNCTION pulse.heartbeat(leases bigint [])
RETURNS SETOF pulse.beat
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
SET enable_nestloop = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM pulse_internal.require_read_committed('heartbeat');
    v_now := clock_timestamp();

    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT l.lease
        FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (heartbeat.leases)
        ORDER BY l.lease
        FOR NO KEY UPDATE SKIP LOCKED
    ),

    extended AS (
        UPDATE pulse_internal.lease AS l
        SET lease_until = greatest(
            l.lease_until, least(v_now + l.lease_for, l.deadline, l.cancel_by)
        )
        WHERE l.lease = ANY (array(SELECT o.lease FROM locked AS o))
        RETURNING l.lease, l.lease_until, l.deadline, l.cancel_by
    )

    SELECT
        u.lease,
        CASE
            WHEN coalesce(e.lease, l.lease) IS NULL THEN 'lost'
            WHEN coalesce(e.cancel_by, l.cancel_by) IS NOT NULL THEN 'cancel'
            WHEN coalesce(e.deadline, l.deadline) <= v_now THEN 'deadline'
            ELSE 'ok'
        END,
        coalesce(e.lease_until, l.lease_until)
    FROM unnest(heartbeat.leases) WITH ORDINALITY AS u (lease, nth)
    LEFT JOIN extended AS e ON e.lease = u.lease
    LEFT JOIN LATERAL (
        SELECT o.lease, o.lease_until, o.deadline, o.cancel_by
        FROM pulse_internal.lease AS o
        WHERE o.lease = u.lease
        OFFSET 0
    ) AS l ON true
    ORDER BY u.nth;
END;
$$;

COMMENT ON FUNCTION pulse.heartbeat(bigint []) IS
'Extend leases, each by the time that it was claimed for. Returns a status for each lease, in the order given, and until when the lease now is valid.

- ok: the job goes on.
- cancel: a cancel was requested. Stop the job and call ack_cancel.
- deadline: max_runtime is over. Stop the job and drop its result.
- lost: the lease has expired and was taken away. Stop the job and drop its result.
- A lease is never extended beyond the deadline of its run, nor beyond the grace of a cancel.

Errors: PU001 above READ COMMITTED.';
