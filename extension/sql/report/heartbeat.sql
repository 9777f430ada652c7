-- A heartbeat never waits: a lease that it can read but not lock is just being
-- reported by its own worker, in a transaction that may be long. That is no reason to
-- hold up the beats of all other jobs.
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
    WITH mine AS MATERIALIZED (
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
        WHERE l.lease = ANY (array(SELECT m.lease FROM mine AS m))
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
    FROM unnest(heartbeat.leases) WITH ORDINALITY AS u (lease, place)
    LEFT JOIN extended AS e ON e.lease = u.lease
    LEFT JOIN LATERAL (
        SELECT o.lease, o.lease_until, o.deadline, o.cancel_by
        FROM pulse_internal.lease AS o
        WHERE o.lease = u.lease
        OFFSET 0
    ) AS l ON true
    ORDER BY u.place;
END;
$$;

COMMENT ON FUNCTION pulse.heartbeat(bigint []) IS
'Extend leases, each by what it was claimed for, never past its deadline or cancel grace. One row for each lease: ok, lost (taken away: stop and drop the result), cancel (stop and call ack_cancel), deadline (max_runtime is over). PU001 above READ COMMITTED. Writes lease.';
