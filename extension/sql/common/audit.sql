CREATE FUNCTION pulse_internal.audit(
    who integer, verb text, job bigint, lane text, before jsonb, after jsonb, reason text
)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    -- First, in a statement of its own: the next one draws the number of the entry.
    SELECT pulse_internal.meet_server();
    INSERT INTO pulse_internal.audit_entry (who, verb, job, lane, before, after, reason)
    VALUES (who, verb, job, lane, before, after, reason)
$$;

COMMENT ON FUNCTION pulse_internal.audit(integer, text, bigint, text, jsonb, jsonb, text) IS
'Write down what an operator did.';
