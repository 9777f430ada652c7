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
    PERFORM pulse._require_name('lane', arm_bell.lane);
    RETURN pg_try_advisory_lock_shared(
        'pulse.ready'::regclass::oid::integer, hashtext(arm_bell.lane)
    );
END;
$$;

COMMENT ON FUNCTION pulse.arm_bell(text) IS
'Before sleeping, in a session that LISTENs on the channel pulse: from now on an enqueue into this lane notifies. Look for jobs once more after arming. Each call needs one disarm_bell; false means: not armed, poll. Not behind a transaction pooler.';

CREATE FUNCTION pulse.disarm_bell(lane text)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_name('lane', disarm_bell.lane);
    RETURN pg_advisory_unlock_shared(
        'pulse.ready'::regclass::oid::integer, hashtext(disarm_bell.lane)
    );
END;
$$;

COMMENT ON FUNCTION pulse.disarm_bell(text) IS
'Take back one arm_bell of this session: the worker is awake. Returns whether it was armed.';

-- Who watches progress arms a bell as well, so that reports nobody looks at ring none.

CREATE FUNCTION pulse.watch()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pg_try_advisory_lock_shared('pulse.job_progress'::regclass::oid::integer, 0);
END;
$$;

COMMENT ON FUNCTION pulse.watch() IS
'In a session that LISTENs on the channel pulse_progress: from now on progress notifies with the id of the job. Each call needs one unwatch; false means: not now, look again. Not behind a transaction pooler.';

CREATE FUNCTION pulse.unwatch()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pg_advisory_unlock_shared('pulse.job_progress'::regclass::oid::integer, 0);
END;
$$;

COMMENT ON FUNCTION pulse.unwatch() IS
'Take back one watch of this session. Returns whether it watched.';
