-- Who calls. Inside SECURITY DEFINER current_user is the owner of pulse, and the role that
-- logged in is not the one that acts: in an index that ANALYZE or autovacuum computes, in
-- a materialized view that another role refreshes, a producer's code runs in the session
-- of a superuser. What PostgreSQL vouches for is current_user as a view, a column's
-- default or an invoker-rights function sees it. So:
--
-- - Views that show jobs ask pulse._me, which is current_user and its privileges.
-- - Verbs that must know their caller have two forms. The public one has the caller's rights
--   and signs: it inserts into pulse._signing_form, a view of the view pulse._signing,
--   whose further column signer defaults to current_user; so nobody can name it. The
--   other (_do_ and the verb) is SECURITY DEFINER and takes the signature. Who may call
--   which is a matter of EXECUTE.
-- - enqueue inserts into pulse._request_form, in the same way and in one step.

CREATE VIEW pulse._me
WITH (security_barrier)
AS
SELECT
    ARRAY(
        SELECT r.role
        FROM pulse.role AS r
        WHERE r.role_oid = to_regrole(quote_ident(current_user))
        UNION ALL
        -- Restored before its role was there.
        SELECT r.role
        FROM pulse.role AS r
        WHERE r.role_oid IS NULL
            AND NOT r.gone
            AND r.name = current_user
    ) AS roles,
    has_table_privilege(current_user, 'pulse.lanes', 'SELECT') AS sees_all,
    has_function_privilege(
        current_user, 'pulse.approve(bigint,text)', 'EXECUTE'
    ) AS approves;

COMMENT ON VIEW pulse._me IS
'Who reads, and what of the jobs of others: the grant itself is the truth.';

COMMENT ON COLUMN pulse._me.roles IS
'The numbers of the role that reads.';

COMMENT ON COLUMN pulse._me.sees_all IS
'Whether it may read pulse.lanes, and so sees the jobs of others.';

COMMENT ON COLUMN pulse._me.approves IS
'Whether it may approve jobs, and so sees those that wait for it.';

CREATE VIEW pulse._role_names
WITH (security_barrier)
AS
SELECT
    r.role,
    -- By the cache of roles: a page of jobs asks for each row.
    coalesce(
        CASE WHEN r.gone THEN (r.name || ' (dropped)')::name END,
        nullif(pg_get_userbyid(r.role_oid), format('unknown (OID=%s)', r.role_oid)::name),
        r.name
    ) AS name
FROM pulse.role AS r;

COMMENT ON VIEW pulse._role_names IS
'What the roles of pulse.role are called today.';

COMMENT ON COLUMN pulse._role_names.role IS
'The number of a role.';

COMMENT ON COLUMN pulse._role_names.name IS
'Its name; the last one known when the role is no longer there.';

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

CREATE VIEW pulse._signing
WITH (security_barrier)
AS
SELECT
    s.signature,
    s.signer
FROM pulse.signature AS s
WHERE false;

ALTER VIEW pulse._signing ALTER COLUMN signer SET DEFAULT current_user;

COMMENT ON VIEW pulse._signing IS
'What is signed, and by whom.';

COMMENT ON COLUMN pulse._signing.signature IS
'Made by the trigger, whatever was given.';

COMMENT ON COLUMN pulse._signing.signer IS
'The role that signs.';

CREATE VIEW pulse._signing_form
WITH (security_barrier)
AS
SELECT s.signature
FROM pulse._signing AS s;

COMMENT ON VIEW pulse._signing_form IS
'Where a caller signs.';

COMMENT ON COLUMN pulse._signing_form.signature IS
'Made by the trigger, whatever was given.';

CREATE FUNCTION pulse._keep_signature()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse.signature (signer, transaction)
    VALUES (new.signer, pg_current_xact_id())
    RETURNING signature INTO new.signature;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse._keep_signature() IS
'Keep who signs until the verb asks.';

CREATE TRIGGER signature_is_kept
INSTEAD OF INSERT ON pulse._signing
FOR EACH ROW EXECUTE FUNCTION pulse._keep_signature();

CREATE FUNCTION pulse._sign()
RETURNS pulse._signature
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_signature pulse._signature;
BEGIN
    INSERT INTO pulse._signing_form
    DEFAULT VALUES
    RETURNING signature INTO v_signature;
    RETURN v_signature;
END;
$$;

COMMENT ON FUNCTION pulse._sign() IS
'A signature of the role that calls.';

-- Of this transaction and once: what one caller signed is of no use to another.
CREATE FUNCTION pulse._redeem(signature pulse._signature)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_signer name;
BEGIN
    DELETE FROM pulse.signature AS s
    WHERE s.signature = _redeem.signature
        AND s.transaction = pg_current_xact_id()
    RETURNING s.signer INTO v_signer;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU012',
            'this call is not signed',
            'A signature is good for one call in the transaction that made it.',
            'Call the function without a signature: it signs for you.'
        );
    END IF;
    RETURN pulse._role_number(v_signer);
END;
$$;

COMMENT ON FUNCTION pulse._redeem(pulse._signature) IS
'The role that signed; PU012 when nobody did.';

CREATE FUNCTION pulse._role_number(name name)
RETURNS integer
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT coalesce(
        (
            SELECT r.role
            FROM pulse.role AS r
            WHERE r.role_oid = to_regrole(quote_ident(_role_number.name))
                AND r.name = _role_number.name
            LIMIT 1
        ),
        pulse._new_role(_role_number.name)
    )
$$;

COMMENT ON FUNCTION pulse._role_number(name) IS
'The number of the role that has this name now.';

-- Nobody waits here: rows that another session is changing are left to them.
CREATE FUNCTION pulse._new_role(name name)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_oid oid := to_regrole(quote_ident(_new_role.name));
    v_role integer;
BEGIN
    -- Those whose name this role has taken: renamed since, or dropped.
    UPDATE pulse.role AS r
    SET name = coalesce(a.rolname, r.name),
        gone = a.rolname IS NULL
    FROM (
        SELECT o.role, o.role_oid
        FROM pulse.role AS o
        WHERE o.name = _new_role.name
            AND o.role_oid <> v_oid
        FOR UPDATE SKIP LOCKED
    ) AS o
    LEFT JOIN pg_roles AS a ON a.oid = o.role_oid
    WHERE r.role = o.role;

    -- This role under the name it had before, or restored before it was there: writing
    -- the row finds its oid.
    WITH known AS (
        UPDATE pulse.role AS r
        SET name = _new_role.name
        WHERE r.role = ANY (
            ARRAY(
                SELECT o.role
                FROM pulse.role AS o
                WHERE o.role_oid = v_oid
                    OR (o.role_oid IS NULL AND NOT o.gone AND o.name = _new_role.name)
                FOR UPDATE SKIP LOCKED
            )
        )
        RETURNING r.role
    )

    SELECT min(k.role) INTO v_role
    FROM known AS k;

    IF v_role IS NULL THEN
        INSERT INTO pulse.role (name)
        VALUES (_new_role.name)
        RETURNING role INTO v_role;
    END IF;
    RETURN v_role;
END;
$$;

COMMENT ON FUNCTION pulse._new_role(name) IS
'Give a role its number, or note what it is called now.';

CREATE FUNCTION pulse._role_name(role integer)
RETURNS name
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT n.name
    FROM pulse._role_names AS n
    WHERE n.role = _role_name.role
$$;

COMMENT ON FUNCTION pulse._role_name(integer) IS
'What a role is called today.';

CREATE FUNCTION pulse._roles_named(names text [])
RETURNS integer []
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT n.role
        FROM pulse._role_names AS n
        WHERE n.name = ANY (_roles_named.names::name [])
    )
    WHERE _roles_named.names IS NOT NULL
$$;

COMMENT ON FUNCTION pulse._roles_named(text []) IS
'The numbers of roles that are called so today; NULL for NULL.';

-- Two numbers may be one role.
CREATE FUNCTION pulse._owns(who integer, job bigint)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse.body AS b
        INNER JOIN pulse.role AS o ON o.role = b.owner
        INNER JOIN pulse.role AS w ON w.role = _owns.who
        WHERE b.job = _owns.job
            AND (o.role = w.role OR o.role_oid = w.role_oid)
    )
$$;

COMMENT ON FUNCTION pulse._owns(integer, bigint) IS
'Whether a role enqueued a job.';

-- The grant itself is the truth: who may reprioritize is an operator.
CREATE FUNCTION pulse._operates(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse.role AS r
        WHERE r.role = _operates.who
            AND has_function_privilege(
                r.role_oid, 'pulse.reprioritize(bigint,integer,text)', 'EXECUTE'
            )
    )
$$;

COMMENT ON FUNCTION pulse._operates(integer) IS
'Whether a role may act on the jobs of others.';

-- A step of tick. What another cluster restores it finds by name, so a name that is stale
-- when a dump is taken would give a role's jobs and access to whoever has that name.
CREATE FUNCTION pulse._refresh_roles()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_changed bigint;
BEGIN
    UPDATE pulse.role AS r
    SET name = coalesce(s.rolname, r.name),
        gone = s.rolname IS NULL
    FROM (
        SELECT o.role, a.rolname
        FROM pulse.role AS o
        LEFT JOIN pg_roles AS a ON a.oid = o.role_oid
        WHERE NOT o.gone
            AND a.rolname IS DISTINCT FROM o.name
            AND o.role_oid IS NOT NULL
        FOR UPDATE OF o SKIP LOCKED
    ) AS s
    WHERE r.role = s.role;
    GET DIAGNOSTICS v_changed = ROW_COUNT;

    -- Signatures of calls that never came to use them.
    DELETE FROM pulse.signature AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse.signature AS o
            WHERE o.transaction < pg_snapshot_xmin(pg_current_snapshot())
            LIMIT 10000
            FOR UPDATE SKIP LOCKED
        ));
    RETURN v_changed;
END;
$$;

COMMENT ON FUNCTION pulse._refresh_roles() IS
'Write down which roles were renamed or dropped, and forget unused signatures; returns how many roles.';
