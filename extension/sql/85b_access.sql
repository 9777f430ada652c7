CREATE VIEW pulse.access
WITH (security_barrier)
AS
SELECT
    n.name AS role,
    g.access,
    g.granted_by,
    g.granted_at,
    EXISTS (
        SELECT FROM pg_catalog.pg_roles AS r
        WHERE r.oid = o.role_oid
    ) AS role_exists,
    g.role IN (SELECT h.role FROM pulse._roles_with_rights AS h) AS has_rights
FROM pulse.access_grant AS g
INNER JOIN pulse.role AS o ON o.role = g.role
INNER JOIN pulse._role_names AS n ON n.role = g.role;

COMMENT ON VIEW pulse.access IS
'Which role was given which access by grant_access. revoke_access removes a role that no longer exists.';

COMMENT ON COLUMN pulse.access.role IS
'The role.';

COMMENT ON COLUMN pulse.access.access IS
'producer, worker, viewer, approver, operator or admin.';

COMMENT ON COLUMN pulse.access.granted_by IS
'The role that gave it.';

COMMENT ON COLUMN pulse.access.granted_at IS
'When.';

COMMENT ON COLUMN pulse.access.role_exists IS
'Whether the role is still there.';

COMMENT ON COLUMN pulse.access.has_rights IS
'Whether the role still has rights that were given so: false after DROP OWNED BY.';
