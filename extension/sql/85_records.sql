-- The records as people see them: what operators did, the samples of each lane, who has
-- which access.

CREATE VIEW pulse.audit
WITH (security_barrier)
AS
SELECT
    e.entry,
    e.at,
    (
        SELECT n.name
        FROM pulse._role_names AS n
        WHERE n.role = e.who
    ) AS who,
    e.verb,
    e.job AS job_id,
    e.lane,
    e.before,
    e.after,
    e.reason
FROM pulse.audit_entry AS e;

COMMENT ON VIEW pulse.audit IS
'What operators did in the last 90 days: who, when, what, before, after, why.';

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

CREATE VIEW pulse.samples
WITH (security_barrier)
AS
SELECT
    t.lane,
    t.at,
    t.took,
    t.completed,
    t.dead,
    t.cancelled,
    t.ready,
    t.running
FROM pulse.sample AS t;

COMMENT ON VIEW pulse.samples IS
'A sample of each lane about once a minute, kept 48 hours: what finished in the time it took since the one before, what was ready (counted up to 100000) and running then.';

COMMENT ON COLUMN pulse.samples.lane IS
'The lane.';

COMMENT ON COLUMN pulse.samples.at IS
'When the sample was taken.';

COMMENT ON COLUMN pulse.samples.took IS
'The time since the sample before.';

COMMENT ON COLUMN pulse.samples.completed IS
'How many jobs completed in that time.';

COMMENT ON COLUMN pulse.samples.dead IS
'How many died.';

COMMENT ON COLUMN pulse.samples.cancelled IS
'How many were cancelled.';

COMMENT ON COLUMN pulse.samples.ready IS
'How many stood in line, counted up to 100000.';

COMMENT ON COLUMN pulse.samples.running IS
'How many ran.';

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
    ) AS role_exists
FROM pulse.access_grant AS g
INNER JOIN pulse.role AS o ON o.role = g.role
INNER JOIN pulse._role_names AS n ON n.role = g.role;

COMMENT ON VIEW pulse.access IS
'Which role was given which access by grant_access. A role that no longer exists is taken out with revoke_access.';

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
