-- audit: one row of audit_entry for each act of an operator, in the transaction of the act.

CREATE FUNCTION pulse_internal.audit(
    who integer, verb text, job bigint, lane text, before jsonb, after jsonb, reason text
)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    -- After a restart or failover this moves the sequences on (settings/node.sql). It is a
    -- statement of its own, before the one that draws the number of the entry.
    SELECT pulse_internal.meet_server();
    INSERT INTO pulse_internal.audit_entry (who, verb, job, lane, before, after, reason)
    VALUES (who, verb, job, lane, before, after, reason)
$$;

COMMENT ON FUNCTION pulse_internal.audit(integer, text, bigint, text, jsonb, jsonb, text) IS
'Store what an operator did: which verb, on which job or lane, the values before and after, and why.';
