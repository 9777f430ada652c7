-- Jobs, schedules and access belong to roles, not to their names.
BEGIN;

SELECT plan(19);

CREATE ROLE tap_shop;
CREATE ROLE tap_ops;
SELECT pulse.grant_access('tap_shop', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_ops', 'operator') \g /dev/null
SET LOCAL ROLE tap_shop;
SELECT pulse.enqueue('secret') AS job \gset
SET LOCAL ROLE tap_ops;
SELECT pulse.schedule('nightly', 'k', every => '1 day') \g /dev/null
RESET ROLE;

-- Renamed

ALTER ROLE tap_shop RENAME TO tap_store;
CREATE ROLE tap_shop;
SELECT pulse.grant_access('tap_shop', 'producer') \g /dev/null
SET LOCAL ROLE tap_shop;
SELECT is_empty('SELECT FROM pulse.jobs', 'a new role of the old name owns nothing');
SELECT throws_ok(
    format('SELECT pulse.cancel(%s)', :job), 'PU004', NULL, 'and cannot cancel what the old one enqueued'
);
SET LOCAL ROLE tap_store;
SELECT results_eq(
    'SELECT j.job_id, j.enqueued_by FROM pulse.jobs AS j',
    format('VALUES (%s::bigint, ''tap_store''::name)', :job),
    'the renamed role has its jobs, under its new name'
);
SELECT results_eq(
    'SELECT f.job_id FROM pulse.find_jobs(''{"enqueued_by": "tap_store"}'') AS f',
    ARRAY[:job::bigint], 'and finds them by it'
);
RESET ROLE;
SELECT bag_eq(
    'SELECT a.role::text, a.access FROM pulse.access AS a',
    $$VALUES ('tap_store', 'producer'), ('tap_shop', 'producer'), ('tap_ops', 'operator')$$,
    'access shows today''s names'
);
SELECT pulse.revoke_access('tap_store', 'producer') \g /dev/null
SELECT ok(
    NOT has_schema_privilege('tap_store', 'pulse', 'USAGE')
    AND has_schema_privilege('tap_shop', 'pulse', 'USAGE'),
    'revoke_access finds the renamed role, and it alone'
);
SELECT pulse.grant_access('tap_store', 'producer') \g /dev/null

ALTER ROLE tap_ops RENAME TO tap_operations;
CREATE ROLE tap_ops;
SELECT is(
    (SELECT s.created_by FROM pulse.schedules AS s), 'tap_operations', 'a schedule stays with its role'
);
SELECT is(
    (SELECT a.who FROM pulse.audit AS a WHERE a.verb = 'schedule'), 'tap_operations',
    'and so does what the audit says'
);
UPDATE pulse_internal.schedule SET next_at = clock_timestamp();
SELECT pulse_internal.fire_schedules() \g /dev/null
SELECT is(
    (SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.kind = 'k'), 'tap_operations',
    'its jobs belong to it'
);

-- Two sessions that needed the first number at the same time

INSERT INTO pulse_internal.role (name) VALUES ('tap_store');
SELECT pulse.enqueue('second') AS second \gset
UPDATE pulse_internal.body SET owner = (SELECT max(r.role) FROM pulse_internal.role AS r) WHERE job = :second;
ALTER ROLE tap_store RENAME TO tap_depot;
SET LOCAL ROLE tap_depot;
SELECT is(pulse.cancel(:second), 'cancelled', 'a role with two numbers is one role');
SELECT bag_eq(
    'SELECT j.job_id FROM pulse.jobs AS j', ARRAY[:job, :second]::bigint [],
    'and has the jobs of both, renamed or not'
);
RESET ROLE;
DELETE FROM pulse_internal.body WHERE job = :second;
DELETE FROM pulse_internal.finished WHERE job = :second;

-- Dropped

REASSIGN OWNED BY tap_depot TO CURRENT_USER;
DROP OWNED BY tap_depot;
DROP ROLE tap_depot;
SELECT is(
    (SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.job_id = :job), 'tap_depot',
    'the jobs of a role that was dropped keep its name'
);
CREATE ROLE tap_depot;
SELECT pulse_internal.apply_grants() \g /dev/null
SELECT ok(
    NOT has_schema_privilege('tap_depot', 'pulse', 'USAGE'), 'an upgrade gives its namesake nothing'
);
SELECT pulse.grant_access('tap_depot', 'producer') \g /dev/null
SET LOCAL ROLE tap_depot;
SELECT is_empty('SELECT FROM pulse.jobs', 'nor does the namesake own its jobs');
SELECT pulse.enqueue('new') AS new \gset
SELECT results_eq('SELECT j.job_id FROM pulse.jobs AS j', ARRAY[:new::bigint], 'but its own');
RESET ROLE;
SELECT is(
    (SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.job_id = :job), 'tap_depot (dropped)',
    'and the two can be told apart'
);

-- Restored: the oid is looked up by name when the row is written, and never between

UPDATE pulse_internal.role SET name = 'tap_later' WHERE name = 'tap_shop';
SELECT is(
    (SELECT r.role_oid FROM pulse_internal.role AS r WHERE r.name = 'tap_later'), NULL,
    'a role that is missing when a dump is restored is nobody''s'
);
SELECT pulse.enqueue('theirs') AS theirs \gset
UPDATE pulse_internal.body SET owner = (SELECT r.role FROM pulse_internal.role AS r WHERE r.name = 'tap_later') WHERE job = :theirs;
CREATE ROLE tap_later;
SELECT pulse.grant_access('tap_later', 'producer') \g /dev/null
SET LOCAL ROLE tap_later;
SELECT results_eq(
    'SELECT j.job_id FROM pulse.jobs AS j', ARRAY[:theirs::bigint], 'until a role of that name is there'
);
RESET ROLE;
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
