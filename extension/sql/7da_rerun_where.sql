CREATE FUNCTION pulse.rerun_where(
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
    FROM pulse._do_rerun_where(
        pulse._sign(), rerun_where.filter, rerun_where.max_jobs, rerun_where.dry_run,
        rerun_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.rerun_where(jsonb, integer, boolean, text) IS
'Rerun every job that has ended and that the filter matches (name the state to have only some), except those that were rerun before. Filter, limits and answer as in cancel_where. Writes what rerun writes, with one audit_entry.';

CREATE FUNCTION pulse._do_rerun_where(
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
        'rerun', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse._do_rerun_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'rerun_where for the role that signed. Writes the same.';
