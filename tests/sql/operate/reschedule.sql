-- run_now and reschedule: another time for what waits.
BEGIN;

SELECT plan(31);

SELECT pulse.enqueue('k', lane => 'late', delay => '1 h') AS job \gset
-- proves: T5
SELECT is(pulse.run_now(:job, 'the boss waits'), 'ready', 'transition 5: a scheduled job is put in line');
SELECT is(
    (SELECT c.job_id FROM pulse.claim_batch('w', 'late') AS c), :job::bigint,
    'and claimed before its time'
);
SELECT results_eq(
    format('SELECT verb COLLATE "default", before ->> ''state'', after ->> ''state'', reason FROM pulse_internal.audit_entry WHERE job = %s', :job),
    $$VALUES ('run_now', 'scheduled', 'ready', 'the boss waits')$$, 'the audit says who and why'
);
SELECT throws_ok(format('SELECT pulse.run_now(%s)', :job), 'PU105', NULL, 'a running job is not');
SELECT throws_ok(format('SELECT pulse.reschedule(%s, now() + interval ''1 h'')', :job), 'PU105', NULL, 'nor rescheduled');
SELECT is(pg_temp.state(:job), 'running', 'and it stays where it was');

SELECT pg_temp.claim('failed') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pulse.fail(:lease, 'oops', retry_in => '1 h');
SELECT is(pulse.run_now(:job), 'ready', 'a retrying job is');
SELECT results_eq(
    $$SELECT c.attempt, c.failures FROM pulse.claim_batch('w', 'failed') AS c$$,
    $$VALUES (2, 1)$$, 'and keeps its attempts and failures'
);

SELECT pulse.enqueue('k', lane => 'now') AS job \gset
SELECT r.seq FROM pulse_internal.ready AS r WHERE r.job = :job \gset
SELECT is(pulse.run_now(:job), 'ready', 'a ready job is ready');
SELECT is(
    (SELECT r.seq FROM pulse_internal.ready AS r WHERE r.job = :job), :seq::bigint, 'and keeps its place'
);
SELECT is_empty(format('SELECT FROM pulse_internal.audit_entry WHERE job = %s', :job), 'nothing was done');
SELECT throws_ok('SELECT pulse.run_now(0)', 'PU004', NULL, 'what is run must exist');
SELECT pulse.enqueue('k', lane => 'asks', requires_approval => true) AS asks \gset
SELECT throws_ok(format('SELECT pulse.run_now(%s)', :asks), 'PU105', NULL, 'it does not slip past an approval');

-- reschedule

SELECT clock_timestamp() + interval '2 h' AS at \gset
SELECT is(pulse.reschedule(:job, :'at', 'not today'), 'scheduled', 'a ready job is scheduled');
SELECT results_eq(
    format('SELECT w.run_at, w.retrying FROM pulse_internal.waiting AS w WHERE w.job = %s', :job),
    format('VALUES (%L::timestamptz, false)', :'at'), 'for that time'
);
SELECT is(pulse.reschedule(:job, now() - interval '1 h'), 'ready', 'a time that has passed is now');
SELECT pulse.enqueue('k', lane => 'keyed', unique_key => 'u', delay => '1 h') AS keyed \gset
SELECT is(pulse.reschedule(:keyed, :'at'), 'scheduled', 'a job with a key is rescheduled');
SELECT is(
    (SELECT k.job FROM pulse_internal.job_key AS k WHERE k.unique_key = 'u'), :keyed::bigint, 'and keeps it'
);
SELECT pg_temp.claim('again') AS lease \gset
SELECT l.job AS again FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pulse.fail(:lease, 'oops', retry_in => '1 min');
SELECT is(pulse.reschedule(:again, :'at'), 'retrying', 'a retrying job stays one');
SELECT lives_ok(format('SELECT pulse.fail(%s, ''oops'')', :lease), 'the report that failed it may still be repeated');
SELECT throws_ok(format('SELECT pulse.reschedule(%s, NULL)', :job), 'PU002', NULL, 'NULL is no time');
SELECT throws_ok(format('SELECT pulse.reschedule(%s, ''infinity'')', :job), 'PU002', NULL, 'nor is infinity');

-- By filter

SELECT count(*) FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[5]), 'bulk', delay => '1 h') \g /dev/null
SELECT results_eq(
    $$SELECT * FROM pulse.run_now_where('{"lane": "bulk"}', 3, true)$$,
    'VALUES (3::bigint, 2::bigint)', 'a dry run counts'
);
SELECT is((SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'bulk'), 0::bigint, 'and does nothing');
SELECT results_eq(
    $$SELECT * FROM pulse.run_now_where('{"lane": "bulk"}', 3, reason => 'go')$$,
    'VALUES (3::bigint, 2::bigint)', 'so many are put in line'
);
SELECT results_eq(
    $$SELECT * FROM pulse.run_now_where('{"lane": "bulk"}')$$, 'VALUES (2::bigint, 0::bigint)', 'and the rest'
);
-- proves: R20
SELECT is(
    (SELECT count(*) FROM pulse_internal.audit_entry AS a WHERE a.verb = 'run_now_where'), 2::bigint,
    'rule 20: one audit row for each call'
);
SELECT results_eq(
    format($$SELECT * FROM pulse.reschedule_where('{"lane": "bulk"}', %L)$$, :'at'),
    'VALUES (5::bigint, 0::bigint)', 'they get another time'
);
SELECT results_eq(
    format($$SELECT * FROM pulse.reschedule_where('{"lane": "bulk"}', %L)$$, :'at'),
    'VALUES (0::bigint, 0::bigint)', 'once'
);
SELECT results_eq(
    $$SELECT * FROM pulse.reschedule_where('{"lane": "bulk", "state": "scheduled"}', '2000-01-01')$$,
    'VALUES (5::bigint, 0::bigint)', 'a time that has passed puts them in line'
);
SELECT throws_ok(
    $$SELECT pulse.run_now_where('{"state": "dead"}')$$, 'PU006', NULL, 'what has ended waits for no time'
);

SELECT * FROM finish();

ROLLBACK;
