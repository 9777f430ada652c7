-- One row for each check: ok when all is well, and what to do when not.
BEGIN;

SELECT plan(47);

CREATE FUNCTION pg_temp.status(check_name text)
RETURNS text
LANGUAGE sql
AS $$
    SELECT h.status FROM pulse.health() AS h WHERE h.check_name = status.check_name
$$;

CREATE FUNCTION pg_temp.figure(check_name text)
RETURNS text
LANGUAGE sql
AS $$
    SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = figure.check_name
$$;

SELECT set_eq(
    'SELECT h.check_name FROM pulse.health() AS h',
    ARRAY[
        'last_tick', 'clock', 'tick_errors', 'tick_budget', 'upkeep_run', 'watchdog', 'lapsed_leases',
        'rows_below_marks', 'held_jobs', 'flow_notes', 'unreleased_jobs', 'schedules', 'oldest_ready_job', 'held_lanes', 'stuck_lanes',
        'unhandled_kinds', 'group_notices', 'failing_kinds', 'dead_jobs', 'dead_tuples', 'oldest_snapshot',
        'notification_queue', 'owner', 'open_keys', 'open_producers', 'foreign_locks', 'node', 'version'
    ],
    'every check has a row, also on an empty queue'
);
SELECT is_empty(
    $$
    SELECT h.*
    FROM pulse.health() AS h
    WHERE h.status NOT IN ('ok', 'warn', 'fail')
        OR h.status IS NULL
        OR h.figure IS NULL
        OR (h.status = 'ok') <> (h.advice IS NULL)
    $$,
    'every row has a status and a figure, and advice where it is not ok'
);

SELECT is(pg_temp.figure('last_tick'), 'never', 'without tick health says so');
SELECT is(pg_temp.status('last_tick'), 'fail', 'and fails');
SELECT pulse.tick() \g /dev/null
SELECT is(pg_temp.status('last_tick'), 'ok', 'after a tick it is content');
UPDATE pulse_internal.upkeep_run SET taken_at = clock_timestamp() - interval '1 minute';
SELECT is(pg_temp.status('last_tick'), 'warn', 'after a minute it warns');
SELECT matches(pg_temp.figure('upkeep_run'), 'held by backend [0-9]+', 'who holds the upkeep run is named');

SELECT is(pg_temp.status('tick_errors'), 'ok', 'a tick without errors is ok');
INSERT INTO pulse_internal.upkeep_run (step, taken_at, state)
VALUES ('error:reap', clock_timestamp(), '{"error": "XX000: broken"}');
SELECT is(pg_temp.status('tick_errors'), 'fail', 'a step that failed is reported');
SELECT matches(pg_temp.figure('tick_errors'), 'reap, .* ago: XX000: broken', 'with its message');

SELECT is(pg_temp.status('tick_budget'), 'ok', 'a tick that comes to its end is ok');
SELECT pulse_internal.note_cut('prune', 'retention', clock_timestamp() - interval '2 minutes', true);
SELECT is(pg_temp.status('tick_budget'), 'warn', 'a step that ran out of time for over a minute is a warning');
SELECT matches(pg_temp.figure('tick_budget'), '^prune for 2 ?m', 'that names it and says for how long');
SELECT pulse_internal.note_cut('prune', 'retention', clock_timestamp(), false);
SELECT is(pg_temp.status('tick_budget'), 'ok', 'when it comes to its end again all is well');
SELECT pulse_internal.note_cut('reap', 'sweep', clock_timestamp() - interval '11 minutes', true);
SELECT is(pg_temp.status('tick_budget'), 'fail', 'after ten minutes it fails');

SELECT is(pg_temp.status('watchdog'), 'warn', 'a missing watchdog is a warning');

INSERT INTO pulse_internal.upkeep_run (step, taken_at, state) VALUES ('backstop', clock_timestamp(), '{"found": 2}');
SELECT is(pg_temp.status('rows_below_marks'), 'fail', 'what the backstop found is reported');

SELECT is(pg_temp.status('lapsed_leases'), 'ok', 'no lease lapsed');
SELECT pulse.enqueue('k', '{}', lane => 'lost') \g /dev/null
SELECT count(*) FROM pulse.claim_batch('w', 'lost') \g /dev/null
UPDATE pulse_internal.lease
SET reap_at = NULL, claimed_at = clock_timestamp() - interval '1 hour', lease_until = clock_timestamp() - interval '10 minutes';
SELECT is(pg_temp.status('lapsed_leases'), 'warn', 'a lease that nobody reaps is reported');

SELECT is(pg_temp.status('oldest_ready_job'), 'ok', 'nothing waits');
SELECT pulse.enqueue('slow', '{}', lane => 'stuck') \g /dev/null
UPDATE pulse_internal.ready SET ready_at = clock_timestamp() - interval '10 minutes' WHERE lane = 'stuck';
SELECT is(pg_temp.status('oldest_ready_job'), 'warn', 'a job that waits for minutes is a warning');
SELECT is(pg_temp.figure('oldest_ready_job'), '10 min in lane stuck', 'with its age and lane');
SELECT is(pg_temp.figure('stuck_lanes'), 'stuck', 'a lane that nobody claims is stuck');
SELECT is(pg_temp.status('stuck_lanes'), 'fail', 'and fails');
SELECT is(pg_temp.figure('unhandled_kinds'), 'slow in lane stuck', 'a kind without a worker is named');
SELECT pulse.hello('w', '{stuck}', '{slow}') \g /dev/null
SELECT is(pg_temp.status('unhandled_kinds'), 'ok', 'until a worker takes it');
UPDATE pulse_internal.worker SET seen_at = seen_at - interval '1 h';
SELECT is(pg_temp.status('unhandled_kinds'), 'warn', 'which has to be live');
SELECT pulse.enqueue('long', lane => 'stuck') \g /dev/null
SELECT FROM pulse.claim_batch('w', 'stuck', lease_for => '2 h', kinds => '{long}') \g /dev/null
UPDATE pulse_internal.lease SET claimed_at = claimed_at - interval '1 h', lease_until = lease_until - interval '1 h'
WHERE lane = 'stuck';
SELECT is(pg_temp.status('unhandled_kinds'), 'ok', 'as pulse.workers says');
DELETE FROM pulse_internal.lease WHERE lane = 'stuck';
UPDATE pulse_internal.worker SET seen_at = clock_timestamp();
SELECT pulse.pause('me', NULL, 'stuck') \g /dev/null
SELECT is(pg_temp.status('stuck_lanes'), 'ok', 'a lane that is held is not stuck');
SELECT is(pg_temp.status('oldest_ready_job'), 'ok', 'nor does it count for the age');
SELECT is(pg_temp.status('held_lanes') || ': ' || pg_temp.figure('held_lanes'), 'ok: stuck for 10 min', 'what waits in it has a check of its own');
UPDATE pulse_internal.ready SET ready_at = clock_timestamp() - interval '2 hours' WHERE lane = 'stuck';
SELECT is(pg_temp.status('held_lanes'), 'warn', 'that warns when it was forgotten for an hour');
SELECT is(
    (SELECT h.jobs FROM pulse.health() AS h WHERE h.check_name = 'held_lanes'),
    '[{"lane": "stuck", "state": "ready"}]',
    'and names the jobs'
);

SELECT count(pulse.enqueue('k', lane => 'many-' || n)) FROM generate_series(1, 12) AS n \g /dev/null
UPDATE pulse_internal.ready SET ready_at = clock_timestamp() - interval '10 minutes' WHERE lane LIKE 'many-%';
SELECT matches(pg_temp.figure('stuck_lanes'), '^many-1, (many-[0-9]+, ){8}many-[0-9]+ and 2 more$', 'of many lanes ten are named, and how many more there are');
SELECT pulse.cancel(job) FROM pulse_internal.ready WHERE lane LIKE 'many-%' \g /dev/null

SELECT is(pg_temp.status('dead_jobs'), 'ok', 'nothing is dead');
SELECT pulse.enqueue('k', '{}', lane => 'die') \g /dev/null
SELECT pulse.fail(c.lease, 'e', fatal => true) FROM pulse.claim_batch('w', 'die') AS c \g /dev/null
SELECT is(pg_temp.status('dead_jobs'), 'warn', 'a job that just died is a warning');
SELECT is(pg_temp.figure('dead_jobs'), '1, 1 of them in the last hour', 'with the figures');

SELECT is(pg_temp.status('schedules'), 'ok', 'no schedule has an error');
INSERT INTO pulse_internal.schedule (name, kind, payload, every, timezone, options, catch_up, catch_up_window, anchor, owner, last_error)
VALUES ('s', 'k', '{}', '1 hour', 'UTC', '{}', 'skip', '1 hour', clock_timestamp(), 1, 'cannot');
SELECT is(pg_temp.status('schedules'), 'fail', 'a schedule with an error is reported');

SELECT is(
    pg_temp.status('owner'),
    (
        SELECT CASE WHEN r.rolsuper THEN 'warn' ELSE 'ok' END
        FROM pg_namespace AS n
        INNER JOIN pg_roles AS r ON r.oid = n.nspowner
        WHERE n.nspname = 'pulse'
    ),
    'an owner that is a superuser is a warning'
);
SELECT is(pg_temp.status('notification_queue'), 'ok', 'the notification queue is empty');

-- Flows

SELECT is(pg_temp.figure('held_jobs') || '; ' || pg_temp.figure('flow_notes'), 'none waits for a job that has failed; all are settled', 'nothing hangs');
SELECT pulse.enqueue('k', lane => 'flow') AS up \gset
SELECT pulse.enqueue('k', lane => 'flow', after => ARRAY[:up], after_failed => 'hold') AS down \gset
SELECT pulse.cancel(:up) AS state \gset
SELECT is(pg_temp.status('held_jobs'), 'warn', 'a job that is held by a failed one');
SELECT matches(pg_temp.figure('held_jobs'), '^1 wait', 'is counted');
INSERT INTO pulse_internal.doubt (job, noted_at) VALUES (:up, clock_timestamp() - interval '2 min');
SELECT is(pg_temp.status('flow_notes'), 'warn', 'notes that nobody looks at');
SELECT pulse_internal.write_upkeep_run(pulse_internal.newest_upkeep_run('backstop'), 'backstop', '{"found": 0, "unreleased": 3}') \g /dev/null
SELECT is(pg_temp.status('unreleased_jobs'), 'fail', 'what should have been released');
SELECT matches(pg_temp.figure('unreleased_jobs'), '^3 found', 'is counted');

SELECT * FROM finish();

ROLLBACK;
