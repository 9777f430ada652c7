-- The caller of a verb: how a function with the rights of pulse knows the role that called it.
-- Inside it current_user is the owner of pulse. session_user is not the caller either: in an
-- index that ANALYZE or autovacuum computes, a producer's code runs in the session of a superuser.
-- PostgreSQL evaluates the default of an argument, and the default of a column, as the caller:
--
--   SELECT pulse.cancel(7)          calls cancel(7, signature => pulse_internal.sign())
--     sign()                        has the rights of the caller: INSERT INTO signing_form
--       signing_form                has no column for the signer, so no caller can name one
--         signature.signer          defaults to the oid of current_user
--     cancel(7, signature)          has the rights of pulse: redeem(signature) deletes the row
--                                   and returns the number of its signer
--
-- A signature is good for one call in the statement of the client that made it. A verb redeems
-- it before anything else. A function with the rights of pulse must not call such a verb: it
-- would sign as the owner. Views that show jobs ask pulse_internal.me. What a hostile role may
-- try with a signature, and why enqueue has a form of its own: docs/decisions/identity.md.

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
        current_user, 'pulse.approve(bigint,text,pulse_internal.caller_signature)', 'EXECUTE'
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
                r.role_oid,
                'pulse.reprioritize(bigint,integer,text,pulse_internal.caller_signature)',
                'EXECUTE'
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
            AND has_function_privilege(
                r.role_oid, 'pulse.approve(bigint,text,pulse_internal.caller_signature)', 'EXECUTE'
            )
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

-- Where triggers do not fire, the verbs that enqueue would lose jobs in silence: no verb is signed.
CREATE FUNCTION pulse_internal.sign()
RETURNS pulse_internal.caller_signature
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_signature pulse_internal.caller_signature;
BEGIN
    IF current_setting('session_replication_role') = 'replica' THEN
        PERFORM pulse_internal.raise_replica();
    END IF;

    INSERT INTO pulse_internal.signing_form AS f
    DEFAULT VALUES
    RETURNING f.signature INTO v_signature;
    RETURN v_signature;
END;
$$;

COMMENT ON FUNCTION pulse_internal.sign() IS
'A signature of the role that calls: the default of the last argument of a verb.';

CREATE FUNCTION pulse_internal.redeem(signature pulse_internal.caller_signature)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_signer oid;
    v_name name;
BEGIN
    DELETE FROM pulse_internal.signature AS s
    WHERE s.signature = redeem.signature
        AND s.transaction = pg_current_xact_id()
        AND s.statement = statement_timestamp()
    RETURNING s.signer INTO v_signer;

    -- The name leads back to the oid, unless the role was dropped a moment ago.
    v_name := pg_get_userbyid(v_signer);
    IF v_signer IS NULL OR to_regrole(quote_ident(v_name)) IS DISTINCT FROM v_signer::regrole THEN
        PERFORM pulse_internal.raise(
            'PU012',
            'this call is not signed',
            'A signature is good for one call in the statement that made it.',
            'Leave the argument signature out: its default signs for you.'
        );
    END IF;
    RETURN pulse_internal.role_number(v_name);
END;
$$;

COMMENT ON FUNCTION pulse_internal.redeem(pulse_internal.caller_signature) IS
'Use a signature up and return the number of the role that signed; PU012 when it is not good.';

-- INSERT needs a column that the caller may give; a caller that chooses the number of its own
-- signature gains nothing. No row passes the condition, so a caller reads what RETURNING
-- answers and nothing else.
CREATE VIEW pulse_internal.signing_form
WITH (security_barrier)
AS
SELECT s.signature
FROM pulse_internal.signature AS s
WHERE false;

COMMENT ON VIEW pulse_internal.signing_form IS
'Where a caller signs.';

COMMENT ON COLUMN pulse_internal.signing_form.signature IS
'The signature.';
