-- The locks of a lane.

-- For at most 50 ms: a claim inside a long transaction must not stall the others
-- of its lane for ever. Not by pg_sleep: a clock that is set back by an hour would make it
-- sleep for one, with the hold lock. It would stretch lock_timeout too, but that wait ends
-- with the claim that has the lock.
CREATE FUNCTION pulse._take_turn(lane text, bank integer DEFAULT 0)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
    v_class integer := 'pulse.roster'::regclass::oid::integer;
    v_key integer := hashtext(_take_turn.lane) # _take_turn.bank;
BEGIN
    -- Mostly it is free, and a try needs no subtransaction.
    IF pg_try_advisory_xact_lock(v_class, v_key) THEN
        RETURN true;
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(v_class, v_key);
        RETURN true;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN false;
    END;
END;
$$;

COMMENT ON FUNCTION pulse._take_turn(text, integer) IS
'Take the roster lock of a lane, or of a bank of its slots, if it can be had within 50 ms.';

-- Waits at most ten seconds, in the queue of the lock: while it waits, every claim's
-- try of the same lock is refused, so a stream of claims cannot starve it. Opens the table
-- that the lock is named for, as every call that holds one (89a_foreign_locks.sql).
CREATE FUNCTION pulse._lock_out_claims(class regclass, key integer, verb text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    v_pids text;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE', _lock_out_claims.class);
    PERFORM pg_advisory_xact_lock(_lock_out_claims.class::oid::integer, key);
EXCEPTION
    WHEN lock_not_available THEN
        SELECT string_agg(DISTINCT coalesce(l.pid::text, 'a prepared transaction'), ', ')
        INTO v_pids
        FROM pg_locks AS l
        WHERE l.locktype = 'advisory'
            AND l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
            AND l.classid = _lock_out_claims.class::oid
            AND l.objid = (key::bigint & 4294967295)::oid
            AND l.granted;
        PERFORM pulse._raise(
            'PU106',
            format('%s could not shut out open claims within 10 seconds', verb),
            format('Transactions of these backends hold them open: %s.', v_pids),
            'End those transactions (a claim belongs in a short transaction of its own) and try again.'
        );
END;
$$;

COMMENT ON FUNCTION pulse._lock_out_claims(regclass, integer, text) IS
'Take the hold lock, a lane lock or that of a kind exclusively, or raise PU106.';
