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
FROM pulse.declaration AS d
LEFT JOIN LATERAL (
    SELECT pulse._declared_facts(d.item, d.name) AS facts
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
