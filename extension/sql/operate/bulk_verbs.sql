-- The bulk verbs: one jsonb filter, at most max_jobs a call, oldest first (discard_where newest
-- first). do_where (operate/bulk.sql) picks without locks, locks what was picked without waiting,
-- looks again, and then does to each job what the verb by job id does. A job that moved or is
-- locked meanwhile is left alone and counted in remaining, if it still matches. A call writes
-- what the verb by job id writes, and one audit_entry in the name of the caller.

CREATE FUNCTION pulse.cancel_where(
    filter jsonb,
    force boolean DEFAULT false,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(cancel_where.signature), 'cancel', cancel_where.filter, NULL, NULL,
        coalesce(cancel_where.force, false), cancel_where.max_jobs, cancel_where.dry_run,
        cancel_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.cancel_where(
    jsonb, boolean, integer, boolean, text, pulse_internal.caller_signature
) IS
'Cancel every waiting or running job that the filter matches, oldest first, at most max_jobs; a running one is asked to stop, or ended at once with force => true. The filter is a JSON object of state, lane, kind, tag, group_key, flow, enqueued_by, worker (a string, or an array: any of them), priority, priority_below, priority_above, older_than, newer_than (intervals since enqueue), error_like (the last error, a LIKE pattern), error_contains, payload_contains (a text), all three in any case, payload (JSON that it contains; payloads above 64 kB are not looked at), job_ids, all of which must hold; {"all": true} is every job. Returns done, and remaining: how many more it could act on, counted up to 100,000; jobs that another transaction has locked are left and remain. dry_run => true changes nothing and returns what one call would do. Producers may cancel their own jobs, operators all. PU006 a key or value is not understood; PU002 max_jobs not within 1 to 100,000; PU011 force without operator access. Writes what cancel writes, with one audit_entry.';

CREATE FUNCTION pulse.retry_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(retry_where.signature), 'retry', retry_where.filter, NULL, NULL,
        false, retry_where.max_jobs, retry_where.dry_run, retry_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.retry_where(
    jsonb, integer, boolean, text, pulse_internal.caller_signature
) IS
'Retry every dead or cancelled job that the filter matches (name the state to have only one of them), except those whose unique key is taken. Filter, limits and answer as in cancel_where. Writes what retry writes, with one audit_entry.';

CREATE FUNCTION pulse.reprioritize_where(
    filter jsonb,
    priority integer,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(reprioritize_where.signature);
BEGIN
    PERFORM pulse_internal.require_priority(reprioritize_where.priority);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        v_who, 'reprioritize', reprioritize_where.filter, NULL,
        - reprioritize_where.priority,
        false, reprioritize_where.max_jobs, reprioritize_where.dry_run,
        reprioritize_where.reason
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.reprioritize_where(
    jsonb, integer, integer, boolean, text, pulse_internal.caller_signature
) IS
'Give every waiting or running job that the filter matches another priority, in the order of their ids; those that have it are left alone. Filter, limits and answer as in cancel_where. PU002 priority out of bounds. Writes what reprioritize writes, with one audit_entry.';

CREATE FUNCTION pulse.move_where(
    filter jsonb,
    lane text,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(move_where.signature);
BEGIN
    PERFORM pulse_internal.require_name('lane', move_where.lane);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        v_who, 'move', move_where.filter, move_where.lane, NULL,
        false, move_where.max_jobs, move_where.dry_run, move_where.reason
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.move_where(
    jsonb, text, integer, boolean, text, pulse_internal.caller_signature
) IS
'Move every waiting job that the filter matches into another lane, in the order of their ids, except those whose unique key is taken there. Filter, limits and answer as in cancel_where. PU002 not a lane name. Writes what move writes, with one audit_entry.';

CREATE FUNCTION pulse.approve_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(approve_where.signature), 'approve', approve_where.filter, NULL, NULL,
        false, approve_where.max_jobs, approve_where.dry_run, approve_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.approve_where(
    jsonb, integer, boolean, text, pulse_internal.caller_signature
) IS
'Approve every job that awaits approval and that the filter matches, e.g. {"job_ids": ["1", "2"]}. Filter, limits and answer as in cancel_where. Writes what approve writes, with one audit_entry.';

CREATE FUNCTION pulse.reject_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(reject_where.signature), 'reject', reject_where.filter, NULL, NULL,
        false, reject_where.max_jobs, reject_where.dry_run, reject_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.reject_where(
    jsonb, integer, boolean, text, pulse_internal.caller_signature
) IS
'Reject every job that awaits approval and that the filter matches: they are cancelled, with the reason as their error. Filter, limits and answer as in cancel_where. Writes what reject writes, with one audit_entry.';

CREATE FUNCTION pulse.rerun_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(rerun_where.signature), 'rerun', rerun_where.filter, NULL, NULL,
        false, rerun_where.max_jobs, rerun_where.dry_run, rerun_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.rerun_where(
    jsonb, integer, boolean, text, pulse_internal.caller_signature
) IS
'Rerun every job that has ended and that the filter matches (name the state to have only some), except those that were rerun before. Filter, limits and answer as in cancel_where. Writes what rerun writes, with one audit_entry.';

CREATE FUNCTION pulse.run_now_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(run_now_where.signature), 'run_now', run_now_where.filter, NULL, NULL,
        false, run_now_where.max_jobs, run_now_where.dry_run, run_now_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.run_now_where(
    jsonb, integer, boolean, text, pulse_internal.caller_signature
) IS
'Put every scheduled or retrying job that the filter matches in line now, in the order of their ids. Filter, limits and answer as in cancel_where. Writes what run_now writes, with one audit_entry.';

CREATE FUNCTION pulse.reschedule_where(
    filter jsonb,
    run_at timestamptz,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(reschedule_where.signature);
BEGIN
    PERFORM pulse_internal.require_new_time(reschedule_where.run_at);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        v_who, 'reschedule', reschedule_where.filter, NULL, NULL, false,
        reschedule_where.max_jobs, reschedule_where.dry_run,
        reschedule_where.reason, reschedule_where.run_at
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.reschedule_where(
    jsonb, timestamptz, integer, boolean, text, pulse_internal.caller_signature
) IS
'Let every scheduled, retrying or ready job that the filter matches run at another time, in the order of their ids; those that do are left alone. Filter, limits and answer as in cancel_where. PU002 no time, or an infinite one. Writes what reschedule writes, with one audit_entry.';

CREATE FUNCTION pulse.discard_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse_internal.do_where(
        pulse_internal.redeem(discard_where.signature), 'discard', discard_where.filter, NULL, NULL,
        false, discard_where.max_jobs, discard_where.dry_run, discard_where.reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.discard_where(
    jsonb, integer, boolean, text, pulse_internal.caller_signature
) IS
'Remove every job that has ended and that the filter matches, as delete_job does, newest first, so that those that depend on a job go before it; what a job that may still run depends on stays, and does not count as remaining (name the state to have only some, e.g. {"state": "dead", "kind": "send-email"}). Filter, limits and answer as in cancel_where. Writes what delete_job writes, with one audit_entry.';
