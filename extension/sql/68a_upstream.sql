CREATE FUNCTION pulse.upstream(lease bigint)
RETURNS TABLE (job_id bigint, name text, kind text, state text, result jsonb)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint := (SELECT l.job FROM pulse.lease AS l WHERE l.lease = upstream.lease);
BEGIN
    IF v_job IS NULL THEN
        PERFORM pulse._raise_lease_lost(upstream.lease);
    END IF;

    RETURN QUERY
    SELECT d.after, b.name, b.kind, p.state, p.result
    FROM (
        SELECT o.after
        FROM pulse.dependency AS o
        WHERE o.job = v_job
        ORDER BY o.after
        OFFSET 0
    ) AS d
    CROSS JOIN LATERAL (
        SELECT o.name, o.kind FROM pulse.body AS o WHERE o.job = d.after OFFSET 0
    ) AS b
    CROSS JOIN LATERAL (
        SELECT o.state, o.result FROM pulse._place AS o WHERE o.job = d.after OFFSET 0
    ) AS p;
END;
$$;

COMMENT ON FUNCTION pulse.upstream(bigint) IS
'The jobs that the one of this lease depends on, in the order of their ids, with how they ended and what they returned. PU101 when the lease was lost. Writes nothing.';
