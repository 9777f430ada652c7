-- Who calls. Inside SECURITY DEFINER current_user is the owner of pulse, and the role that
-- logged in is not the one that acts: in an index that ANALYZE or autovacuum computes, in
-- a materialized view that another role refreshes, a producer's code runs in the session
-- of a superuser. What PostgreSQL vouches for is current_user as a view, a column's
-- default or an invoker-rights function sees it. So:
--
-- - Views that show jobs ask pulse_internal.me, which is current_user and its privileges.
-- - Verbs that must know their caller have two forms. The public one has the caller's rights
--   and signs: it inserts into pulse_internal.signing_form, a view of the view
--   pulse_internal.signing, whose further column signer defaults to current_user; so
--   nobody can name it. The other (do_ and the verb) is SECURITY DEFINER and takes the
--   signature. Who may call which is a matter of EXECUTE.
-- - enqueue inserts into pulse_internal.request_form, in the same way and in one step.
--
-- No trigger of a view fires where session_replication_role is replica (a subscription applies
-- changes so), and PostgreSQL has no ENABLE ALWAYS for views: whoever inserts into a form asks
-- first, or looks whether it was answered.

CREATE FUNCTION pulse.my_access()
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.access
    FROM (
        VALUES
        (1, 'producer', 'enqueue'),
        (2, 'worker', 'claim_batch'),
        (3, 'viewer', 'health'),
        (4, 'approver', 'approve'),
        (5, 'operator', 'drain_lane'),
        (6, 'admin', 'grant_access')
    ) AS l (place, access, verb)
    WHERE EXISTS (
        SELECT
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
            AND p.proname = l.verb
            AND has_function_privilege(p.oid, 'EXECUTE')
    )
    ORDER BY l.place
$$;

COMMENT ON FUNCTION pulse.my_access() IS
'The access levels whose verbs the calling role may use: producer, worker, viewer, approver, operator, admin. Writes nothing.';

CREATE VIEW pulse_internal.me
WITH (security_barrier)
AS
SELECT
    ARRAY(
        SELECT r.role
        FROM pulse_internal.role AS r
        WHERE r.role_oid = to_regrole(quote_ident(current_user))
        UNION ALL
        -- Restored before its role was there.
        SELECT r.role
        FROM pulse_internal.role AS r
        WHERE r.role_oid IS NULL
            AND NOT r.gone
            AND r.name = current_user
    ) AS roles,
    has_table_privilege(current_user, 'pulse.lanes', 'SELECT') AS sees_all,
    has_function_privilege(
        current_user, 'pulse.approve(bigint,text)', 'EXECUTE'
    ) AS approves;

COMMENT ON VIEW pulse_internal.me IS
'The role that reads a view, and which jobs of other roles its grants let it see.';

COMMENT ON COLUMN pulse_internal.me.roles IS
'The numbers of the role that reads.';

COMMENT ON COLUMN pulse_internal.me.sees_all IS
'Whether it may read pulse.lanes, and so sees the jobs of others.';

COMMENT ON COLUMN pulse_internal.me.approves IS
'Whether it may approve jobs, and so sees those that wait for it.';

-- From here on of a role by its number. Who may reprioritize is an operator.
CREATE FUNCTION pulse_internal.operates(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse_internal.role AS r
        WHERE r.role = operates.who
            AND has_function_privilege(
                r.role_oid, 'pulse.reprioritize(bigint,integer,text)', 'EXECUTE'
            )
    )
$$;

COMMENT ON FUNCTION pulse_internal.operates(integer) IS
'Whether a role may act on the jobs of others.';

CREATE FUNCTION pulse_internal.approves(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse_internal.role AS r
        WHERE r.role = approves.who
            AND has_function_privilege(r.role_oid, 'pulse.approve(bigint,text)', 'EXECUTE')
    )
$$;

COMMENT ON FUNCTION pulse_internal.approves(integer) IS
'Whether a role may approve the jobs of others.';

CREATE FUNCTION pulse_internal.sees_all(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse_internal.role AS r
        WHERE r.role = sees_all.who
            AND has_table_privilege(r.role_oid, 'pulse.lanes', 'SELECT')
    )
$$;

COMMENT ON FUNCTION pulse_internal.sees_all(integer) IS
'Whether a role may see the jobs of others.';

-- Restored before its role was there, a role may have two.
CREATE FUNCTION pulse_internal.numbers_of(who integer)
RETURNS integer []
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT o.role
        FROM pulse_internal.role AS r
        INNER JOIN pulse_internal.role AS o ON o.role = r.role OR o.role_oid = r.role_oid
        WHERE r.role = numbers_of.who
    )
$$;

COMMENT ON FUNCTION pulse_internal.numbers_of(integer) IS
'All numbers of the role that has this one.';

CREATE FUNCTION pulse_internal.owns(who integer, job bigint)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse_internal.body AS b
        WHERE b.job = owns.job
            AND b.owner = ANY (pulse_internal.numbers_of(owns.who))
    )
$$;

COMMENT ON FUNCTION pulse_internal.owns(integer, bigint) IS
'Whether a role enqueued a job.';

-- How a verb knows its caller (access/caller.sql says why it has to be so): the public form
-- signs with the rights of its caller, the do_ form redeems the signature.

CREATE FUNCTION pulse_internal.sign()
RETURNS pulse_internal.caller_signature
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_signature pulse_internal.caller_signature;
BEGIN
    INSERT INTO pulse_internal.signing_form
    DEFAULT VALUES
    RETURNING signature INTO v_signature;
    IF v_signature IS NULL THEN
        PERFORM pulse_internal.raise_replica();
    END IF;
    RETURN v_signature;
END;
$$;

COMMENT ON FUNCTION pulse_internal.sign() IS
'A signature of the role that calls.';

-- Of this transaction and once: what one caller signed is of no use to another.
CREATE FUNCTION pulse_internal.redeem(signature pulse_internal.caller_signature)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_signer name;
BEGIN
    DELETE FROM pulse_internal.signature AS s
    WHERE s.signature = redeem.signature
        AND s.transaction = pg_current_xact_id()
    RETURNING s.signer INTO v_signer;

    IF NOT FOUND THEN
        PERFORM pulse_internal.raise(
            'PU012',
            'this call is not signed',
            'A signature is good for one call in the transaction that made it.',
            'Call the function without a signature: it signs for you.'
        );
    END IF;
    RETURN pulse_internal.role_number(v_signer);
END;
$$;

COMMENT ON FUNCTION pulse_internal.redeem(pulse_internal.caller_signature) IS
'The role that signed; PU012 when nobody did.';

CREATE VIEW pulse_internal.signing
WITH (security_barrier)
AS
SELECT
    s.signature,
    s.signer
FROM pulse_internal.signature AS s
WHERE false;

ALTER VIEW pulse_internal.signing ALTER COLUMN signer SET DEFAULT current_user;

COMMENT ON VIEW pulse_internal.signing IS
'What is signed, and by whom.';

COMMENT ON COLUMN pulse_internal.signing.signature IS
'Made by the trigger, whatever was given.';

COMMENT ON COLUMN pulse_internal.signing.signer IS
'The role that signs.';

CREATE VIEW pulse_internal.signing_form
WITH (security_barrier)
AS
SELECT s.signature
FROM pulse_internal.signing AS s;

COMMENT ON VIEW pulse_internal.signing_form IS
'Where a caller signs.';

COMMENT ON COLUMN pulse_internal.signing_form.signature IS
'Made by the trigger, whatever was given.';

CREATE FUNCTION pulse_internal.keep_signature()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse_internal.signature (signer, transaction)
    VALUES (new.signer, pg_current_xact_id())
    RETURNING signature INTO new.signature;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse_internal.keep_signature() IS
'Keep who signs until the verb asks.';

CREATE TRIGGER signature_is_kept
INSTEAD OF INSERT ON pulse_internal.signing
FOR EACH ROW EXECUTE FUNCTION pulse_internal.keep_signature();
