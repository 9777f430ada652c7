-- A job that waits for its time is put in line now.

CREATE FUNCTION pulse.run_now(job_id bigint, reason text DEFAULT NULL)
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_run_now(pulse._sign(), run_now.job_id, run_now.reason)
$$;

COMMENT ON FUNCTION pulse.run_now(bigint, text) IS
'Put a scheduled or retrying job in line now, with its attempts and failures; returns ready. One that is ready keeps its place. PU004 no such job; PU105 it awaits approval, is running or has ended; PU107 it kept moving. Writes waiting, ready and audit_entry.';

CREATE FUNCTION pulse._do_run_now(signature pulse._signature, job_id bigint, reason text)
RETURNS text
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._reschedule_one(
        pulse._redeem(signature), 'run_now', _do_run_now.job_id, '-infinity',
        _do_run_now.reason
    )
$$;

COMMENT ON FUNCTION pulse._do_run_now(pulse._signature, bigint, text) IS
'run_now for the role that signed. Writes the same.';

CREATE FUNCTION pulse.run_now_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse._do_run_now_where(
        pulse._sign(), run_now_where.filter, run_now_where.max_jobs,
        run_now_where.dry_run, run_now_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.run_now_where(jsonb, integer, boolean, text) IS
'Put every scheduled or retrying job that the filter matches in line now, in the order of their ids. Filter, limits and answer as in cancel_where. Writes what run_now writes, with one audit_entry.';

CREATE FUNCTION pulse._do_run_now_where(
    signature pulse._signature,
    filter jsonb,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'run_now', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse._do_run_now_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'run_now_where for the role that signed. Writes the same.';
