-- raise: all errors of pulse, with a SQLSTATE of class PU.
--
-- PU0xx: the caller asked for something impossible. PU1xx: the data changed under the caller.
-- PU9xx: a bug in pulse. docs/errors.md lists them. The functions below raise the errors of
-- several verbs.

CREATE FUNCTION pulse_internal.raise(code text, message text, detail text, hint text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = raise.code,
        MESSAGE = raise.message,
        DETAIL = raise.detail,
        HINT = raise.hint;
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise(text, text, text, text) IS
'Raise an error of class PU.';

CREATE FUNCTION pulse_internal.raise_replica()
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU014',
        'pulse takes no calls while session_replication_role is replica',
        'The triggers that say who calls do not fire then; nothing was changed.',
        'SET session_replication_role = origin; for a trigger that a subscription fires, ALTER FUNCTION … SET session_replication_role = origin.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_replica() IS
'Raise PU014. SECURITY DEFINER, because it runs with the rights of any role that calls pulse.';

CREATE FUNCTION pulse_internal.raise_no_such_job(job bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU004',
        format('job %s does not exist', coalesce(job::text, 'NULL')),
        'It was never enqueued here, was pruned after its retention, or belongs to another producer.',
        'SELECT * FROM pulse.jobs lists the jobs you can see.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_no_such_job(bigint) IS
'Raise PU004.';

CREATE FUNCTION pulse_internal.raise_lease_lost(lease bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU101',
        format('lease %s is lost', coalesce(lease::text, 'NULL')),
        'The run was ended by another report, by the watchdog or by an operator; nothing was changed.',
        'Drop the result of this run: the job is decided elsewhere.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_lease_lost(bigint) IS
'Raise PU101.';

CREATE FUNCTION pulse_internal.raise_wrong_state(job bigint, state text, verb text, hint text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU105',
        format('cannot %s job %s: it is %s', verb, job, state),
        'The job is not, or no longer, in a state that allows this.',
        hint
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_wrong_state(bigint, text, text, text) IS
'Raise PU105.';
