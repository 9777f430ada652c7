-- A worker that is about to sleep arms the bell of its lanes in the session that
-- LISTENs, and disarms it when it wakes. These are session-level locks: nothing but the
-- bell may use them, and behind a transaction pooler a worker must not (it proves its
-- LISTEN first, and polls where that fails).

CREATE FUNCTION pulse.arm_bell(lane text)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_name('lane', arm_bell.lane);
    RETURN pg_try_advisory_lock_shared(
        'pulse_internal.ready'::regclass::oid::integer, hashtext(arm_bell.lane)
    );
END;
$$;

COMMENT ON FUNCTION pulse.arm_bell(text) IS
'Before sleeping, in a session that LISTENs on the channel pulse: from now on an enqueue into this lane notifies. Look for jobs once more after arming. Each call needs one disarm_bell; false means: not armed, poll. Not behind a transaction pooler. Writes nothing.';

CREATE FUNCTION pulse.disarm_bell(lane text)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_name('lane', disarm_bell.lane);
    RETURN pg_advisory_unlock_shared(
        'pulse_internal.ready'::regclass::oid::integer, hashtext(disarm_bell.lane)
    );
END;
$$;

COMMENT ON FUNCTION pulse.disarm_bell(text) IS
'Take back one arm_bell of this session: the worker is awake. Returns whether it was armed. Writes nothing.';

-- Who watches progress arms a bell as well, so that reports nobody looks at ring none.

CREATE FUNCTION pulse.watch_progress()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pg_try_advisory_lock_shared('pulse_internal.job_progress'::regclass::oid::integer, 0);
END;
$$;

COMMENT ON FUNCTION pulse.watch_progress() IS
'In a session that LISTENs on the channel pulse_progress: from now on progress notifies with the id of the job. Each call needs one unwatch_progress; false means: not now, look again. Not behind a transaction pooler. Writes nothing.';

CREATE FUNCTION pulse.unwatch_progress()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pg_advisory_unlock_shared('pulse_internal.job_progress'::regclass::oid::integer, 0);
END;
$$;

COMMENT ON FUNCTION pulse.unwatch_progress() IS
'Take back one watch_progress of this session. Returns whether there was one. Writes nothing.';

-- The channel pulse has a bell for each lane, whose name is the message; pulse_progress
-- has one for all jobs. Who listens holds the lock of the bell shared, so where the
-- exclusive lock can be had nobody listens. Try and unlock stand in one expression:
-- interrupted between two statements, the session would keep the lock. SET pulse.notify
-- = off silences it (PREPARE TRANSACTION fails after a NOTIFY).
CREATE FUNCTION pulse_internal.ring(message text, channel text DEFAULT 'pulse')
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_bell integer := CASE ring.channel
        WHEN 'pulse' THEN 'pulse_internal.ready'::regclass::oid::integer
        ELSE 'pulse_internal.job_progress'::regclass::oid::integer
    END;
    v_key integer := CASE ring.channel WHEN 'pulse' THEN hashtext(ring.message) ELSE 0 END;
BEGIN
    -- A full notification queue would make the caller's COMMIT fail.
    IF pg_try_advisory_lock(v_bell, v_key) AND pg_advisory_unlock(v_bell, v_key)
        OR current_setting('pulse.notify', true) = 'off'
        OR pg_notification_queue_usage() >= 0.5
    THEN
        RETURN false;
    END IF;

    PERFORM pg_notify(ring.channel, ring.message);
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.ring(text, text) IS
'Notify a channel, if a session that listens there has armed its bell; returns whether it did.';
