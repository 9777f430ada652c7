-- rerun, discard_where, run_schedule_now.
BEGIN;

SELECT plan(37);

SELECT pulse.enqueue('k', '{"a": 1}', 'done', 7, tags => '{t}', group_key => 'g', max_attempts => 9, unique_key => 'u', unique_for => '1 h') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'done') AS c \gset
SELECT throws_ok(format('SELECT pulse.rerun(%s)', :job), 'PU105', NULL, 'what runs is not rerun');
SELECT pulse.complete(:lease, '"ok"');
SELECT pulse.rerun(:job, 'once more') AS again \gset
SELECT results_eq(
    format('SELECT row(state, kind, payload, lane, priority, tags, group_key, max_attempts, unique_key, rerun_of, attempts)::text FROM pulse.jobs WHERE job_id = %s', :again),
    format($$VALUES (row('ready', 'k', '{"a": 1}'::jsonb, 'done', 7, '{t}'::text [], 'g', 9, NULL::text, %s::bigint, 0)::text)$$, :job),
    'a completed job is enqueued once more, and names its origin'
);
SELECT is(pg_temp.state(:job), 'completed', 'the old one stays as it is');
SELECT results_eq(
    format('SELECT verb COLLATE "default", after ->> ''rerun_as'', reason FROM pulse_internal.audit_entry WHERE job = %s', :job),
    format($$VALUES ('rerun', '%s', 'once more')$$, :again), 'the audit names the new one'
);
SELECT isnt(pulse.rerun(:job), :again::bigint, 'asked again, it is enqueued again');
SELECT throws_ok(format('SELECT pulse.rerun(%s)', :again), 'PU105', NULL, 'a job that waits is not rerun');
SELECT is(pg_temp.state(:again), 'ready', 'and stays in line');
SELECT throws_ok('SELECT pulse.rerun(0)', 'PU004', NULL, 'what is rerun must exist');
SELECT pulse.enqueue('k', lane => 'asks', requires_approval => true) AS asks \gset
SELECT pulse.reject(:asks) \g /dev/null
SELECT is(pg_temp.state(pulse.rerun(:asks)), 'awaiting_approval', 'what needed approval needs it again');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- By filter

SELECT pg_temp.fill(5, 'bulk');
SELECT count(*) FROM pulse.complete_batch(array(SELECT c.lease FROM pulse.claim_batch('w', 'bulk', 5) AS c)) \g /dev/null
SELECT results_eq(
    $$SELECT * FROM pulse.rerun_where('{"lane": "bulk"}', 3, true)$$, 'VALUES (3::bigint, 2::bigint)', 'a dry run counts'
);
SELECT results_eq(
    $$SELECT * FROM pulse.rerun_where('{"lane": "bulk"}', 3)$$, 'VALUES (3::bigint, 2::bigint)', 'so many are rerun'
);
SELECT results_eq(
    $$SELECT * FROM pulse.rerun_where('{"lane": "bulk"}')$$, 'VALUES (2::bigint, 0::bigint)', 'then the rest'
);
SELECT results_eq(
    $$SELECT * FROM pulse.rerun_where('{"lane": "bulk"}')$$, 'VALUES (0::bigint, 0::bigint)', 'and none twice'
);
SELECT is((SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'bulk'), 5::bigint, 'five jobs, five new ones');
SELECT throws_ok($$SELECT pulse.rerun_where('{"state": "ready"}')$$, 'PU006', NULL, 'only what has ended');

-- discard_where

SELECT pulse.fail(pg_temp.claim('trash'), 'oops', fatal => true);
SELECT pulse.complete(pg_temp.claim('trash'));
SELECT pulse.enqueue('k', lane => 'trash') \g /dev/null
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "trash", "state": "dead"}', dry_run => true)$$,
    'VALUES (1::bigint, 0::bigint)', 'a dry run counts'
);
SELECT is((SELECT count(*) FROM pulse.dead AS d WHERE d.lane = 'trash'), 1::bigint, 'and removes nothing');
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "trash", "state": "dead"}', reason => 'junk')$$,
    'VALUES (1::bigint, 0::bigint)', 'the dead one goes'
);
SELECT results_eq(
    $$SELECT state::text COLLATE "default" FROM pulse.jobs WHERE lane = 'trash' ORDER BY 1$$, $$VALUES ('completed'), ('ready')$$, 'the others stay'
);
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "trash"}')$$, 'VALUES (1::bigint, 0::bigint)', 'what has ended goes'
);
SELECT is((SELECT count(*) FROM pulse.jobs AS j WHERE j.lane = 'trash'), 1::bigint, 'what has not stays');
SELECT throws_ok($$SELECT pulse.discard_where('{"state": "ready"}')$$, 'PU006', NULL, 'it acts on nothing else');
-- proves: R20
SELECT is(
    (SELECT a.after ->> 'done' FROM pulse_internal.audit_entry AS a WHERE a.verb = 'discard_where' AND a.reason = 'junk'), '1',
    'rule 20: one audit row says how many'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'nothing is left of them');

SELECT pulse.enqueue_many((
    SELECT jsonb_agg(jsonb_build_object('kind', 'k', 'lane', 'row', 'name', 'n' || n, 'after', a.after) ORDER BY n)
    FROM generate_series(1, 8) AS n
    CROSS JOIN LATERAL (SELECT CASE WHEN n = 1 THEN '[]' ELSE jsonb_build_array('n' || n - 1) END AS after) AS a
)) \g /dev/null
SELECT pulse.fail(c.lease, 'oops', fatal => true) FROM pulse.claim_batch('w', 'row') AS c;
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "row"}', max_jobs => 3)$$, 'VALUES (3::bigint, 5::bigint)',
    'of a row of jobs those go first that no other needs'
);
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "row"}', reason => 'all')$$, 'VALUES (5::bigint, 0::bigint)', 'and all of it in one call'
);
SELECT ok(
    (SELECT (a.after ->> 'first_job')::bigint + 4 = (a.after ->> 'last_job')::bigint FROM pulse_internal.audit_entry AS a WHERE a.reason = 'all'),
    'the audit names the first and the last by their ids'
);

SELECT pulse.enqueue('k', lane => 'kept') AS plain \gset
SELECT pulse.enqueue('join', lane => 'kept', after => ARRAY[pulse.enqueue('slow', lane => 'slow')] || array(SELECT pulse.enqueue_many('k', '{1,2,3}'::jsonb [], lane => 'kept'))) AS join \gset
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'kept', 4) AS c;
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "kept"}', max_jobs => 2)$$, 'VALUES (1::bigint, 0::bigint)',
    'jobs that one to come needs are not in the way of an older one'
);
SELECT pulse.cancel(:join) \g /dev/null
SELECT results_eq(
    $$SELECT * FROM pulse.discard_where('{"lane": "kept", "state": "completed"}', max_jobs => 2) UNION ALL SELECT * FROM pulse.discard_where('{"lane": "kept"}')$$,
    'VALUES (0::bigint, 0::bigint), (4, 0)', 'nor if it was cancelled, until it goes with them'
);

-- run_schedule_now

SELECT pulse.schedule('nightly', 'report', '{"x": 1}', cron => '0 3 * * *', lane => 'night', unique_key => 'nightly') AS next_at \gset
SELECT pulse.pause_schedule('nightly') \g /dev/null
SELECT pulse.run_schedule_now('nightly', 'the report is missing') AS job \gset
SELECT results_eq(
    format('SELECT row(state, kind, payload, lane)::text FROM pulse.jobs WHERE job_id = %s', :job),
    $$VALUES (row('ready', 'report', '{"x": 1}'::jsonb, 'night')::text)$$, 'the job of a schedule is enqueued, paused or not'
);
SELECT is(
    (SELECT s.next_at FROM pulse.schedules AS s WHERE s.name = 'nightly'), :'next_at'::timestamptz,
    'its next occurrence stays the same'
);
SELECT is(
    (SELECT r.job_id FROM pulse.schedule_runs AS r WHERE r.name = 'nightly'), :job::bigint, 'the ledger has it'
);
SELECT results_eq(
    format('SELECT verb COLLATE "default", after ->> ''name'', reason FROM pulse_internal.audit_entry WHERE job = %s', :job),
    $$VALUES ('run_schedule_now', 'nightly', 'the report is missing')$$, 'and so has the audit'
);
SELECT throws_ok($$SELECT pulse.run_schedule_now('nightly')$$, 'PU102', NULL, 'its unique key keeps runs from overlapping');
SELECT is((SELECT count(*) FROM pulse_internal.schedule_run), 1::bigint, 'and then nothing is written');
SELECT throws_ok($$SELECT pulse.run_schedule_now('nothing')$$, 'PU005', NULL, 'a schedule must exist');

SELECT * FROM finish();

ROLLBACK;
