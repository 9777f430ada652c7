CREATE VIEW pulse.declarations
WITH (security_barrier)
AS
SELECT
    d.application,
    d.item,
    d.name,
    d.declared,
    f.facts,
    d.applied IS NULL
    OR f.facts IS NULL
    OR EXISTS (
        SELECT FROM jsonb_each(d.applied) AS a
        WHERE a.value IS DISTINCT FROM f.facts -> a.key
    ) AS drift,
    d.declared_at
FROM pulse_internal.declaration AS d
LEFT JOIN LATERAL (
    SELECT pulse_internal.declared_facts(d.item, d.name) AS facts
) AS f ON true;

COMMENT ON VIEW pulse.declarations IS
'Settings of kinds and schedules that applications declare, and whether they are as declared.';

COMMENT ON COLUMN pulse.declarations.application IS
'Who declares it.';

COMMENT ON COLUMN pulse.declarations.item IS
'kind (its settings) or schedule.';

COMMENT ON COLUMN pulse.declarations.name IS
'The name of the kind or schedule.';

COMMENT ON COLUMN pulse.declarations.declared IS
'What is declared.';

COMMENT ON COLUMN pulse.declarations.facts IS
'How it is now; NULL when it was removed.';

COMMENT ON COLUMN pulse.declarations.drift IS
'Whether it was changed, made or removed in another way; reconcile leaves it alone.';

COMMENT ON COLUMN pulse.declarations.declared_at IS
'When it was last written.';

CREATE VIEW pulse.audit
WITH (security_barrier)
AS
SELECT
    e.entry,
    e.at,
    (
        SELECT n.name
        FROM pulse_internal.role_names AS n
        WHERE n.role = e.who
    ) AS who,
    e.verb,
    e.job AS job_id,
    e.lane,
    e.before,
    e.after,
    e.reason
FROM pulse_internal.audit_entry AS e
-- Said here: a barrier hides the order that a page asks for from the index.
ORDER BY e.entry DESC;

COMMENT ON VIEW pulse.audit IS
'What operators did in the last 90 days, the last first: who, when, what, before, after, why. Page with WHERE entry < the last one ORDER BY entry DESC LIMIT n.';

COMMENT ON COLUMN pulse.audit.entry IS
'A growing number.';

COMMENT ON COLUMN pulse.audit.at IS
'When it was done.';

COMMENT ON COLUMN pulse.audit.who IS
'The role that did it.';

COMMENT ON COLUMN pulse.audit.verb IS
'The function that was called.';

COMMENT ON COLUMN pulse.audit.job_id IS
'The job it was done to.';

COMMENT ON COLUMN pulse.audit.lane IS
'The lane it was done to.';

COMMENT ON COLUMN pulse.audit.before IS
'What was before.';

COMMENT ON COLUMN pulse.audit.after IS
'What was after.';

COMMENT ON COLUMN pulse.audit.reason IS
'Why, as the caller said.';

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
    g.role IN (SELECT h.role FROM pulse_internal.roles_with_rights AS h) AS has_rights
FROM pulse_internal.access_grant AS g
INNER JOIN pulse_internal.role AS o ON o.role = g.role
INNER JOIN pulse_internal.role_names AS n ON n.role = g.role;

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
