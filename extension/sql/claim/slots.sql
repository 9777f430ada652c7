-- The slots of a lane with max_slots (docs/decisions/slots.md).
--
-- A list, the roster, names the leases that run. It has one writer at a time: the claim that
-- holds the roster lock of the lane.

-- Ends of leases do not touch the roster: a claim looks up which leases are gone when the slots
-- seem to be full. A long roster costs each claim that reads and writes it, so a claim looks
-- it through now and then: about as many leases a claim as it may take.
CREATE FUNCTION pulse_internal.take_slots(lane text, max_slots integer, need integer)
RETURNS pulse_internal.roster
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_roster pulse_internal.roster;
BEGIN
    IF NOT pulse_internal.take_turn(take_slots.lane) THEN
        RETURN NULL;
    END IF;

    -- In later statements than the lock.
    SELECT r.* INTO v_roster
    FROM pulse_internal.roster AS r
    WHERE r.lane = take_slots.lane
    ORDER BY r.version DESC
    LIMIT 1;

    IF NOT FOUND THEN
        v_roster := pulse_internal.rebuild_roster(take_slots.lane);
    END IF;

    IF cardinality(v_roster.leases) + take_slots.need > take_slots.max_slots
        OR cardinality(v_roster.leases) > 100
        AND random() * cardinality(v_roster.leases) < take_slots.need
    THEN
        v_roster.leases := array(
            SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lease = ANY (v_roster.leases)
        );
    END IF;
    RETURN v_roster;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_slots(text, integer, integer) IS
'Lock the roster of a lane and return it with the leases that may run; NULL when a claim holds the lock for longer than 50 ms.';

-- Only under the exclusive lane lock, or the roster lock of a limited lane, taken in an
-- earlier statement.
CREATE FUNCTION pulse_internal.rebuild_roster(lane text)
RETURNS pulse_internal.roster
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_roster pulse_internal.roster;
BEGIN
    INSERT INTO pulse_internal.roster AS r (lane, leases)
    VALUES (
        rebuild_roster.lane,
        array(
            SELECT l.lease
            FROM pulse_internal.lease AS l
            WHERE l.lane = rebuild_roster.lane
            ORDER BY l.lease
        )
    )
    RETURNING r.* INTO v_roster;
    RETURN v_roster;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rebuild_roster(text) IS
'Write the roster of a lane from its leases.';
