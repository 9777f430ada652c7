CREATE FUNCTION pulse.discard_where(
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
    FROM pulse._do_discard_where(
        pulse._sign(), discard_where.filter, discard_where.max_jobs,
        discard_where.dry_run, discard_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.discard_where(jsonb, integer, boolean, text) IS
'Remove every job that has ended and that the filter matches, as delete_job does, newest first, so that those that depend on a job go before it; what a job that may still run depends on stays, and does not count as remaining (name the state to have only some, e.g. {"state": "dead", "kind": "send-email"}). Filter, limits and answer as in cancel_where. Writes what delete_job writes, with one audit_entry.';

CREATE FUNCTION pulse._do_discard_where(
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
        'discard', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse._do_discard_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'discard_where for the role that signed. Writes the same.';
