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
FROM pulse.audit_entry AS e
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
