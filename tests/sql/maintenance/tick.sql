-- Tick: all upkeep, in upkeep runs, one step's error no other step's trouble.
BEGIN;

SELECT plan(61);

CREATE FUNCTION pg_temp.lease_that_lapsed(lane text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_lease bigint;
BEGIN
    PERFORM pulse.enqueue('k', lane => lease_that_lapsed.lane);
    SELECT c.lease INTO v_lease
    FROM pulse.claim_batch('w', lease_that_lapsed.lane) AS c;
    UPDATE pulse_internal.lease AS l
    SET lease_until = now() - interval '1 s'
    WHERE l.lease = v_lease;
    RETURN v_lease;
END;
$$;

SELECT results_eq(
    'SELECT t.step, t.error FROM pulse.tick() AS t',
    $$
    VALUES ('schedules', NULL), ('promote', NULL), ('flows', NULL), ('signals', NULL), ('marks', NULL), ('backstop', NULL),
        ('count', NULL), ('sample', NULL), ('stats', NULL), ('ledger', NULL), ('audit', NULL), ('roles', NULL), ('caches', NULL),
        ('approvals', NULL), ('expiry', NULL), ('prune', NULL), ('reap', NULL), ('clock', NULL), ('groups', NULL)
    $$,
    'the first tick does every step, a row for each'
);
UPDATE pulse_internal.upkeep_run SET taken_at = clock_timestamp();
SELECT is_empty('SELECT * FROM pulse.tick()', 'the next, at once, does nothing');

-- Upkeep runs

UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '1 s';
SELECT results_eq(
    'SELECT t.step FROM pulse.tick() AS t', $$VALUES ('schedules'), ('promote'), ('flows'), ('signals'), ('marks'), ('groups')$$,
    'what is due has an upkeep run each second'
);
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '10 s';
SELECT results_eq(
    'SELECT t.step FROM pulse.tick() AS t',
    $$VALUES ('schedules'), ('promote'), ('flows'), ('signals'), ('marks'), ('count'), ('sample'), ('approvals'), ('expiry'), ('prune'), ('reap'), ('clock'), ('groups')$$,
    'the sweeps every ten seconds'
);
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '60 s';
SELECT is((SELECT count(*) FROM pulse.tick()), 18::bigint, 'samples every minute');
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '61 min';
SELECT is((SELECT count(*) FROM pulse.tick()), 19::bigint, 'the backstop every hour');
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at + interval '1 day';
SELECT is(
    (SELECT count(*) FROM pulse.tick()), 19::bigint,
    'upkeep runs in the future mean that the clock stepped back, and count for nothing'
);
SELECT results_eq(
    'SELECT t.step COLLATE "default" FROM pulse_internal.upkeep_run AS t WHERE t.step IN (''due'', ''sweep'', ''retention'', ''sample'', ''backstop'', ''groups'') ORDER BY 1',
    $$VALUES ('backstop'), ('due'), ('groups'), ('retention'), ('sample'), ('sweep')$$, 'one note is kept for each upkeep run'
);

-- Caches

INSERT INTO pulse_internal.upkeep_run (step, taken_at) SELECT 'due', now() FROM generate_series(1, 3);
SELECT pulse_internal.tick_caches() AS swept \gset
SELECT ok(
    :swept >= 3 AND (SELECT count(*) FROM pulse_internal.upkeep_run AS t WHERE t.step = 'due') = 1,
    'rows of a cache that a newer one has taken the place of are swept'
);

-- What it does

SELECT pulse.enqueue('k', lane => 'later', delay => '30 min') AS later \gset
SELECT pulse.enqueue('k', lane => 'asks', requires_approval => true, unique_key => 'a') AS asks \gset
SELECT pulse.enqueue('k', lane => 'old') AS old \gset
SELECT pulse.cancel(:old) AS c \gset
SELECT pg_temp.lease_that_lapsed('lapsed') AS lapsed \gset
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s' WHERE job = :later;
UPDATE pulse_internal.approval SET expires_at = now() - interval '1 s' WHERE job = :asks;
UPDATE pulse_internal.finished SET finished_at = finished_at - interval '3 days' WHERE job = :old;
DELETE FROM pulse_internal.upkeep_run;
DELETE FROM pulse_internal.due_mark;
CREATE TEMPORARY TABLE did AS
SELECT t.* FROM pulse.tick() AS t;
SELECT results_eq(
    'SELECT d.step, d.did FROM did AS d WHERE d.step IN (''promote'', ''reap'', ''approvals'', ''prune'')',
    $$VALUES ('promote', 1::bigint), ('approvals', 1), ('prune', 1), ('reap', 1)$$,
    'it promotes, reaps, expires and prunes, and says how much'
);
SELECT is((SELECT j.state FROM pulse.jobs AS j WHERE j.job_id = :later), 'ready', 'what was due is ready');
SELECT is((SELECT j.state FROM pulse.jobs AS j WHERE j.job_id = :asks), 'cancelled', 'what nobody approved is cancelled');
SELECT is(
    (SELECT f.error FROM pulse_internal.finished AS f WHERE f.job = :asks), 'approval expired', 'and says why'
);
SELECT is_empty('SELECT * FROM pulse_internal.job_key', 'its key is free');
SELECT is((SELECT count(*) FROM pulse_internal.waiting AS w WHERE w.lane = 'lapsed'), 1::bigint, 'what lapsed is retried');
SELECT is_empty(format('SELECT * FROM pulse_internal.body WHERE job = %s', :old), 'what was old is gone');
SELECT isnt_empty('SELECT FROM pulse.samples', 'and the lanes were sampled');

-- One step fails: rule 23

ALTER FUNCTION pulse_internal.fire_schedules(timestamptz) RENAME TO fire_schedules_away;
SELECT pg_temp.lease_that_lapsed('lapsed2') AS lapsed \gset
DELETE FROM pulse_internal.upkeep_run;
DROP TABLE did;
CREATE TEMPORARY TABLE did AS
SELECT t.* FROM pulse.tick() AS t;
-- proves: R23
SELECT is((SELECT count(*) FROM did), 19::bigint, 'rule 23: a step that fails does not stop the others');
SELECT is(
    (SELECT d.did FROM did AS d WHERE d.step = 'reap'), 1::bigint, 'rule 23: reaping goes on'
);
SELECT ok(
    (SELECT d.error LIKE '42883: %' AND d.did IS NULL FROM did AS d WHERE d.step = 'schedules'),
    'its row has the error'
);
SELECT is_empty(
    $$SELECT * FROM did AS d WHERE d.step <> 'schedules' AND d.error IS NOT NULL$$, 'only that'
);
SELECT ok(
    (SELECT (t.state ->> 'error') LIKE '42883: %' FROM pulse_internal.newest_upkeep_run('error:schedules') AS t),
    'and it is remembered for health()'
);
ALTER FUNCTION pulse_internal.fire_schedules_away(timestamptz) RENAME TO fire_schedules;
CREATE FUNCTION pg_temp.refuse()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'this row is poison';
END;
$$;
SELECT pg_temp.lease_that_lapsed('poison') AS lapsed \gset
CREATE TRIGGER poison BEFORE INSERT ON pulse_internal.failure FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse();
SELECT pulse.enqueue('k', lane => 'later', delay => '30 min') AS later \gset
-- A retry of an earlier test comes due while this file runs on a busy machine.
UPDATE pulse_internal.waiting SET run_at = now() + interval '1 hour' WHERE job <> :later;
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s' WHERE job = :later;
DELETE FROM pulse_internal.upkeep_run;
DELETE FROM pulse_internal.due_mark;
DROP TABLE did;
CREATE TEMPORARY TABLE did AS
SELECT t.* FROM pulse.tick() AS t;
SELECT results_eq(
    'SELECT d.step, d.error FROM did AS d WHERE d.error IS NOT NULL',
    $$VALUES ('reap', 'P0001: this row is poison')$$, 'a step that raises half way'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = :lapsed), 1::bigint,
    'leaves nothing half done'
);
SELECT is((SELECT d.did FROM did AS d WHERE d.step = 'promote'), 1::bigint, 'the steps before it are done');
SELECT isnt((SELECT d.did FROM did AS d WHERE d.step = 'prune'), NULL, 'and those after it');
DROP TRIGGER poison ON pulse_internal.failure;
DELETE FROM pulse_internal.upkeep_run;
SELECT is(
    (SELECT t.did FROM pulse.tick() AS t WHERE t.step = 'reap'), 1::bigint,
    'when the poison is gone it is reaped'
);

-- Upkeep runs, by themselves

SELECT ok(pulse_internal.start_upkeep_run('test', '1 h'), 'an upkeep run begins');
SELECT ok(NOT pulse_internal.start_upkeep_run('test', '1 h'), 'once');
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '61 min' WHERE step = 'test';
SELECT ok(pulse_internal.start_upkeep_run('test', '1 h'), 'and again when its time has come');
UPDATE pulse_internal.upkeep_run SET state = '{"kept": 1}' WHERE step = 'test';
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '61 min' WHERE step = 'test';
SELECT ok(pulse_internal.start_upkeep_run('test', '1 h'), 'by the next');
SELECT is((SELECT t.state FROM pulse_internal.newest_upkeep_run('test') AS t), '{"kept": 1}'::jsonb, 'with what was noted');
SELECT is((SELECT count(*) FROM pulse_internal.upkeep_run AS t WHERE t.step = 'test'), 1::bigint, 'in one row');

-- Next to no time

DELETE FROM pulse_internal.upkeep_run;
SET LOCAL statement_timeout = '800ms';
SELECT set_eq(
    'SELECT t.step FROM pulse.tick() AS t',
    ARRAY['schedules', 'promote', 'flows', 'signals', 'marks', 'reap', 'clock', 'groups'],
    'a caller with a short statement_timeout does what is urgent'
);
SELECT set_eq(
    $$SELECT c.step FROM pulse_internal.cut_steps() AS c$$,
    $$VALUES ('backstop (skipped)'), ('count (skipped)'), ('retention (skipped)'), ('sample (skipped)')$$,
    'what it leaves to others, if nobody does it, is noted'
);
UPDATE pulse_internal.upkeep_run SET state = state || jsonb_build_object('since', now() - interval '11 min')
WHERE step = 'cut:retention (skipped)';
SELECT results_eq(
    $$SELECT h.status, h.figure LIKE '%retention (skipped) for 11 min%', h.advice LIKE '%statement_timeout below 0.9 seconds%'
    FROM pulse.health() AS h WHERE h.check_name = 'tick_budget'$$,
    $$VALUES ('fail', true, true)$$, 'and health() says so, and what to do'
);
UPDATE pulse_internal.upkeep_run SET taken_at = clock_timestamp() - interval '11 s' WHERE step = 'due';
INSERT INTO pulse_internal.upkeep_run (step, taken_at) VALUES ('retention', clock_timestamp() - interval '11 s');
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is_empty(
    $$SELECT c.step FROM pulse_internal.cut_steps() AS c WHERE c.step LIKE 'retention%'$$,
    'not when somebody does it'
);
SET LOCAL statement_timeout = 0;
DELETE FROM pulse_internal.upkeep_run WHERE step = 'retention';
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is_empty('SELECT c.step FROM pulse_internal.cut_steps() AS c', 'nor when a caller with time has come');

SELECT results_eq(
    $$SELECT pulse_internal.upkeep_piece(b::interval) FROM unnest('{2 s,300 ms,150 ms,0}'::text []) AS b$$,
    ARRAY[1000, 1000, 500, 20], 'with little time a step works in smaller pieces'
);

-- Bounded by time, in pieces

-- What waits from above must not become due meanwhile.
UPDATE pulse_internal.waiting SET run_at = run_at + interval '1 day';
SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[1500]), 'drip', delay => '1 h');
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s' WHERE lane = 'drip';
DELETE FROM pulse_internal.due_mark;
DELETE FROM pulse_internal.upkeep_run;
SET LOCAL statement_timeout = '800 ms';
SELECT cmp_ok(pulse_internal.tick_promote('-infinity'), '<', 900::bigint, 'a small one under a short statement_timeout');
SET LOCAL statement_timeout = 0;
SELECT pulse_internal.tick_promote() \g /dev/null
SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[1500]), 'flood', delay => '1 h');
SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[1500]), 'glut', delay => '1 h');
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s' WHERE lane IN ('flood', 'glut');
DELETE FROM pulse_internal.due_mark;
DELETE FROM pulse_internal.upkeep_run;
SELECT is(pulse_internal.tick_promote('-infinity'), 1000::bigint, 'without time a step does one piece');
SELECT is(pulse_internal.tick_promote('-infinity'), 1000::bigint, 'and the next tick the next');
SELECT results_eq(
    $$SELECT r.lane COLLATE "default", count(*) FROM pulse_internal.ready AS r WHERE r.lane IN ('flood', 'glut') GROUP BY 1 ORDER BY 1$$,
    $$VALUES ('flood', 1000::bigint), ('glut', 1000)$$, 'of another lane: they alternate'
);
SELECT is(
    pulse_internal.tick_promote(clock_timestamp() + interval '1 h'), 500::bigint,
    'nor with a time from before the clock was set back'
);
SELECT is(pulse_internal.tick_promote(), 500::bigint, 'with time it does all there is');

SELECT ok(NOT pulse_internal.time_is_over(clock_timestamp() + interval '1.9 s'), 'a step has its time');
SELECT ok(pulse_internal.time_is_over(clock_timestamp()), 'which comes to its end');
SELECT ok(
    pulse_internal.time_is_over(clock_timestamp() + interval '2.1 s'),
    'also when the clock was set back to before the start'
);
SELECT ok(NOT pulse_internal.time_is_over('infinity'), 'if it has one');

-- The budget

SELECT is(pulse_internal.upkeep_budget(), '2 s'::interval, 'a tick takes two seconds at most');
SET LOCAL statement_timeout = '30 s';
SELECT is(pulse_internal.upkeep_budget(), '2 s'::interval, 'under a long statement_timeout too');
SET LOCAL statement_timeout = '1500 ms';
SELECT cmp_ok(pulse_internal.upkeep_budget(), '<=', '0.5 s'::interval, 'under a short one a third of it');
SELECT cmp_ok(
    (SELECT pulse_internal.upkeep_budget() FROM pg_sleep(0.3)), '<=', '0.4 s'::interval,
    'and of what is left of it'
);
SET LOCAL statement_timeout = 0;

DELETE FROM pulse_internal.upkeep_run;
SELECT pulse_internal.note_cut('prune', 'retention', clock_timestamp(), true);
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is_empty(
    $$SELECT t.step FROM pulse_internal.upkeep_run AS t WHERE t.step LIKE 'cut:%'$$,
    'a step that comes to its end is no longer noted as cut'
);
UPDATE pulse_internal.upkeep_run SET taken_at = clock_timestamp() - interval '2 s';
SELECT pulse_internal.note_cut('prune', 'retention', clock_timestamp(), true);
SELECT set_eq(
    'SELECT t.step FROM pulse.tick() AS t', '{schedules,promote,flows,signals,marks,approvals,expiry,prune,groups}'::text [],
    'one that was cut runs again a second later'
);
SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[2]), 'flood', delay => '1 h');
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s' WHERE lane = 'flood';
DELETE FROM pulse_internal.due_mark;
UPDATE pulse_internal.upkeep_run SET taken_at = clock_timestamp() - interval '10 s';
SELECT set_eq(
    'SELECT t.step FROM pulse.tick() AS t', '{schedules,promote,flows,signals,marks,reap,clock,groups}'::text [],
    'what can wait does so when jobs were promoted: they are seen when tick commits'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

-- A session that wants no bell for its own jobs.
SET LOCAL pulse.notify = off;
CREATE FUNCTION pg_temp.heard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('test.heard', current_setting('pulse.notify'), true);
    RETURN NULL;
END;
$$;
CREATE TRIGGER heard AFTER INSERT ON pulse_internal.upkeep_run EXECUTE FUNCTION pg_temp.heard();
DELETE FROM pulse_internal.upkeep_run;
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is(current_setting('test.heard'), 'on', 'does not silence tick');
SELECT is(current_setting('pulse.notify'), 'off', 'and keeps its silence afterwards');

-- Nor does one that wants small payloads stop the schedules of others.
SELECT pulse.schedule('large', 'large', payload => '{"text": "longer than ten bytes"}', every => '1 hour') \g /dev/null
UPDATE pulse_internal.schedule SET next_at = clock_timestamp() - interval '1 second' WHERE name = 'large';
DELETE FROM pulse_internal.upkeep_run;
SET LOCAL pulse.max_payload = '10 bytes';
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is((SELECT count(*) FROM pulse.jobs WHERE kind = 'large'), 1::bigint, 'pulse.max_payload of a session does not bend tick');
SELECT is(current_setting('pulse.max_payload'), '10 bytes', 'and holds for it afterwards');

SELECT * FROM finish();

ROLLBACK;
