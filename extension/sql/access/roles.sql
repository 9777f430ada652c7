-- Roles by number: names and oids change, and what is stored outlives both.

CREATE FUNCTION pulse_internal.role_number(name name)
RETURNS integer
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT coalesce(
        (
            SELECT r.role
            FROM pulse_internal.role AS r
            WHERE r.role_oid = to_regrole(quote_ident(role_number.name))
                AND r.name = role_number.name
            LIMIT 1
        ),
        pulse_internal.new_role(role_number.name)
    )
$$;

COMMENT ON FUNCTION pulse_internal.role_number(name) IS
'The number of the role that has this name now.';

-- Nobody waits here: rows that another session is changing are left to them.
CREATE FUNCTION pulse_internal.new_role(name name)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_oid oid := to_regrole(quote_ident(new_role.name));
    v_role integer;
BEGIN
    -- Those whose name this role has taken: renamed since, or dropped.
    UPDATE pulse_internal.role AS r
    SET name = coalesce(a.rolname, r.name),
        gone = a.rolname IS NULL
    FROM (
        SELECT o.role, o.role_oid
        FROM pulse_internal.role AS o
        WHERE o.name = new_role.name
            AND o.role_oid <> v_oid
        FOR UPDATE SKIP LOCKED
    ) AS o
    LEFT JOIN pg_roles AS a ON a.oid = o.role_oid
    WHERE r.role = o.role;

    -- This role under the name it had before, or restored before it was there: writing
    -- the row finds its oid.
    WITH known AS (
        UPDATE pulse_internal.role AS r
        SET name = new_role.name
        WHERE r.role = ANY (
            ARRAY(
                SELECT o.role
                FROM pulse_internal.role AS o
                WHERE o.role_oid = v_oid
                    OR (o.role_oid IS NULL AND NOT o.gone AND o.name = new_role.name)
                FOR UPDATE SKIP LOCKED
            )
        )
        RETURNING r.role
    )

    SELECT min(k.role) INTO v_role
    FROM known AS k;

    IF v_role IS NULL THEN
        INSERT INTO pulse_internal.role (name)
        VALUES (new_role.name)
        RETURNING role INTO v_role;
    END IF;
    RETURN v_role;
END;
$$;

COMMENT ON FUNCTION pulse_internal.new_role(name) IS
'Give a role its number, or note what it is called now.';

-- A step of tick. What another cluster restores it finds by name, so a name that is stale
-- when a dump is taken would give a role's jobs and access to whoever has that name.
CREATE FUNCTION pulse_internal.refresh_roles()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_changed bigint;
BEGIN
    UPDATE pulse_internal.role AS r
    SET name = coalesce(s.rolname, r.name),
        gone = s.rolname IS NULL
    FROM (
        SELECT o.role, a.rolname
        FROM pulse_internal.role AS o
        LEFT JOIN pg_roles AS a ON a.oid = o.role_oid
        WHERE NOT o.gone
            AND a.rolname IS DISTINCT FROM o.name
            AND o.role_oid IS NOT NULL
        FOR UPDATE OF o SKIP LOCKED
    ) AS s
    WHERE r.role = s.role;
    GET DIAGNOSTICS v_changed = ROW_COUNT;

    -- Signatures of calls that never came to use them.
    DELETE FROM pulse_internal.signature AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse_internal.signature AS o
            WHERE o.transaction < pg_snapshot_xmin(pg_current_snapshot())
            LIMIT 10000
            FOR UPDATE SKIP LOCKED
        ));
    RETURN v_changed;
END;
$$;

COMMENT ON FUNCTION pulse_internal.refresh_roles() IS
'Write down which roles were renamed or dropped, and forget unused signatures; returns how many roles.';

-- What roles are called today, by their numbers, and which of them have rights.

CREATE VIEW pulse_internal.role_names
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
FROM pulse_internal.role AS r;

COMMENT ON VIEW pulse_internal.role_names IS
'What the roles of pulse_internal.role are called today.';

COMMENT ON COLUMN pulse_internal.role_names.role IS
'The number of a role.';

COMMENT ON COLUMN pulse_internal.role_names.name IS
'Its name; the last one known when the role is no longer there.';

CREATE VIEW pulse_internal.roles_with_rights
WITH (security_barrier)
AS
SELECT r.role
FROM pg_catalog.pg_namespace AS n
CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) AS a
INNER JOIN pulse_internal.role AS r ON r.role_oid = a.grantee
WHERE n.nspname = 'pulse';

COMMENT ON VIEW pulse_internal.roles_with_rights IS
'The roles that themselves have a right to the schema, as grant_access gives and DROP OWNED BY takes it.';

COMMENT ON COLUMN pulse_internal.roles_with_rights.role IS
'The number of a role.';

CREATE FUNCTION pulse_internal.role_name(role integer)
RETURNS name
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT n.name
    FROM pulse_internal.role_names AS n
    WHERE n.role = role_name.role
$$;

COMMENT ON FUNCTION pulse_internal.role_name(integer) IS
'What a role is called today.';

CREATE FUNCTION pulse_internal.roles_named(names text [])
RETURNS integer []
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT n.role
        FROM pulse_internal.role_names AS n
        WHERE n.name = ANY (roles_named.names::name [])
    )
    WHERE roles_named.names IS NOT NULL
$$;

COMMENT ON FUNCTION pulse_internal.roles_named(text []) IS
'The numbers of roles that are called so today; NULL for NULL.';
