-- What roles are called today, by their numbers, and which of them have rights.

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

CREATE VIEW pulse._roles_with_rights
WITH (security_barrier)
AS
SELECT r.role
FROM pg_catalog.pg_namespace AS n
CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) AS a
INNER JOIN pulse.role AS r ON r.role_oid = a.grantee
WHERE n.nspname = 'pulse';

COMMENT ON VIEW pulse._roles_with_rights IS
'The roles that themselves have a right to the schema, as grant_access gives and DROP OWNED BY takes it.';

COMMENT ON COLUMN pulse._roles_with_rights.role IS
'The number of a role.';

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
