-- The bell: an enqueue notifies a lane only if a worker of that lane sleeps.
--
-- NOTIFY takes a lock of the whole cluster at commit. So a worker that is about to sleep takes an
-- advisory lock of its lane, shared and for its session, in the session that LISTENs (arm_bell),
-- and releases it when it wakes. ring tries the same lock exclusively: if it gets it, no worker
-- sleeps, and no notification is sent. watch_progress does the same for the progress of jobs.
--
-- These are the only session-level locks of pulse, and nothing else may use them. They do not work
-- behind a transaction pooler: a worker there proves its LISTEN first, and polls if that fails. No
-- tables are written.

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
'Before a worker sleeps: let an enqueue into this lane notify, from now on. Returns false if that failed: then poll. Call it in a session that LISTENs on the channel pulse, not behind a transaction pooler, and look for jobs once more afterwards. Each call needs one disarm_bell.

Errors: PU002 bad lane.';

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
'Undo one arm_bell of this session, because the worker is awake. Returns whether there was one.

Errors: PU002 bad lane.';

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
'Let progress notify with the id of the job, from now on. Returns false if that failed: then try again. Call it in a session that LISTENs on the channel pulse_progress, not behind a transaction pooler. Each call needs one unwatch_progress.';

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
'Undo one watch_progress of this session. Returns whether there was one.';

CREATE FUNCTION pulse_internal.ring(message text, channel text DEFAULT 'pulse')
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The channel pulse has a lock for each lane, whose name is the message; pulse_progress has
    -- one for all jobs.
    v_bell integer := CASE ring.channel
        WHEN 'pulse' THEN 'pulse_internal.ready'::regclass::oid::integer
        ELSE 'pulse_internal.job_progress'::regclass::oid::integer
    END;
    v_key integer := CASE ring.channel WHEN 'pulse' THEN hashtext(ring.message) ELSE 0 END;
BEGIN
    -- Try and unlock are one expression: if the session were interrupted between two statements,
    -- it would keep the lock. SET pulse.notify = off is for callers of PREPARE TRANSACTION, which
    -- fails after a NOTIFY. A full notification queue would make the caller's COMMIT fail.
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
'Notify a channel, if a session that listens there has armed its bell. Returns whether it did.';
