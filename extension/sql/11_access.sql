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
'The role that reads a view, and which jobs of other roles its grants let it see.';

COMMENT ON COLUMN pulse._me.roles IS
'The numbers of the role that reads.';

COMMENT ON COLUMN pulse._me.sees_all IS
'Whether it may read pulse.lanes, and so sees the jobs of others.';

COMMENT ON COLUMN pulse._me.approves IS
'Whether it may approve jobs, and so sees those that wait for it.';

-- From here on of a role by its number. Who may reprioritize is an operator.
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

CREATE FUNCTION pulse._approves(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse.role AS r
        WHERE r.role = _approves.who
            AND has_function_privilege(r.role_oid, 'pulse.approve(bigint,text)', 'EXECUTE')
    )
$$;

COMMENT ON FUNCTION pulse._approves(integer) IS
'Whether a role may approve the jobs of others.';

CREATE FUNCTION pulse._sees_all(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse.role AS r
        WHERE r.role = _sees_all.who
            AND has_table_privilege(r.role_oid, 'pulse.lanes', 'SELECT')
    )
$$;

COMMENT ON FUNCTION pulse._sees_all(integer) IS
'Whether a role may see the jobs of others.';

-- Restored before its role was there, a role may have two.
CREATE FUNCTION pulse._numbers_of(who integer)
RETURNS integer []
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT o.role
        FROM pulse.role AS r
        INNER JOIN pulse.role AS o ON o.role = r.role OR o.role_oid = r.role_oid
        WHERE r.role = _numbers_of.who
    )
$$;

COMMENT ON FUNCTION pulse._numbers_of(integer) IS
'All numbers of the role that has this one.';

CREATE FUNCTION pulse._owns(who integer, job bigint)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse.body AS b
        WHERE b.job = _owns.job
            AND b.owner = ANY (pulse._numbers_of(_owns.who))
    )
$$;

COMMENT ON FUNCTION pulse._owns(integer, bigint) IS
'Whether a role enqueued a job.';
