-- What operators do to one job: reprioritize, move, retry, delete_job.
BEGIN;

SELECT plan(64);

-- The jobs of a lane in the order in which they would be claimed.
CREATE FUNCTION pg_temp.line(lane text)
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(b.payload ->> 'n', ' ' ORDER BY r.rank, r.seq)
    FROM pulse_internal.ready AS r
    INNER JOIN pulse_internal.body AS b USING (job)
    WHERE r.lane = line.lane
$$;

CREATE FUNCTION pg_temp.run(lane text)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT c.lease FROM pulse.claim_batch('w', run.lane) AS c $$;

-- reprioritize

SELECT pulse.enqueue('a', '{"n": 1}', 'line') AS one \gset
SELECT pulse.enqueue('a', '{"n": 2}', 'line') AS two \gset
SELECT pulse.enqueue('a', '{"n": 3}', 'line', priority => 5) AS three \gset
SELECT is(pg_temp.line('line'), '3 1 2', 'higher priorities run first, then in order');
SELECT is(pulse.reprioritize(:two, 5, 'hurry'), 'ready', 'a ready job gets a new priority');
SELECT is(pg_temp.line('line'), '3 2 1', 'it goes to the end of its new priority');
SELECT is(pulse.reprioritize(:three, 5), 'ready', 'a job may be given the priority it has');
SELECT is(pg_temp.line('line'), '3 2 1', 'and then keeps its place');
SELECT results_eq(
    format('SELECT verb, before, after, reason FROM pulse_internal.audit_entry WHERE job = %s', :two),
    $$VALUES (
        'reprioritize', '{"state": "ready", "priority": 0}'::jsonb,
        '{"state": "ready", "priority": 5}'::jsonb, 'hurry'
    )$$,
    'the audit has both priorities'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.audit_entry AS e WHERE e.job = :three), 0::bigint,
    'what changed nothing leaves no entry'
);

SELECT pulse.enqueue('a', run_at => '2100-01-01', lane => 'later') AS job \gset
SELECT is(pulse.reprioritize(:job, -3), 'scheduled', 'a scheduled job gets a new priority');
SELECT results_eq(
    format('SELECT rank, run_at FROM pulse_internal.waiting WHERE job = %s', :job),
    $$VALUES (3, '2100-01-01'::timestamptz)$$,
    'and keeps its time'
);

SELECT pulse.enqueue('a', lane => 'later', requires_approval => true) AS job \gset
SELECT a.expires_at, a.asked_at FROM pulse_internal.approval AS a WHERE a.job = :job \gset
SELECT is(
    pulse.reprioritize(:job, 4), 'awaiting_approval', 'a job that awaits approval gets one'
);
SELECT results_eq(
    format('SELECT rank, expires_at, asked_at FROM pulse_internal.approval WHERE job = %s', :job),
    format('VALUES (-4, %L::timestamptz, %L::timestamptz)', :'expires_at', :'asked_at'),
    'and gains no time to be approved'
);

SELECT pulse.enqueue('a', lane => 'run') AS job \gset
SELECT pg_temp.run('run') AS lease \gset
SELECT is(pulse.reprioritize(:job, 9), 'running', 'a running job gets a new priority');
SELECT is(
    (SELECT l.rank FROM pulse_internal.lease AS l WHERE l.lease = :lease), -9, 'under the same lease'
);
\o /dev/null
SELECT pulse.fail(:lease, 'oops');
\o
SELECT is(
    (SELECT w.rank FROM pulse_internal.waiting AS w WHERE w.job = :job), -9,
    'which counts for its next run'
);
SELECT is(pulse.reprioritize(:job, 8), 'retrying', 'a retrying job gets a new priority');
SELECT results_eq(
    format(
        'SELECT rank, attempts, failures, retrying, last_lease, last_verb COLLATE "default"'
        ' FROM pulse_internal.waiting WHERE job = %s',
        :job
    ),
    format('VALUES (-8, 1, 1, true, %s::bigint, %L)', :lease, 'fail'),
    'and forgets nothing else'
);
SELECT lives_ok(
    format('SELECT pulse.fail(%s, %L)', :lease, 'oops'),
    'the report that brought it there may still be repeated'
);

\o /dev/null
SELECT pulse.cancel(:job);
\o
SELECT throws_ok(
    format('SELECT pulse.reprioritize(%s, 1)', :job), 'PU105', NULL,
    'a finished job has no priority to change'
);
SELECT throws_ok('SELECT pulse.reprioritize(0, 1)', 'PU004', NULL, 'the job must exist');
SELECT throws_ok(
    format('SELECT pulse.reprioritize(%s, NULL)', :one), 'PU002', NULL, 'a priority is a number'
);
SELECT throws_ok(
    format('SELECT pulse.reprioritize(%s, -2147483648)', :one), 'PU002', NULL,
    'a priority has bounds'
);

-- move

SELECT is(pulse.move(:one, 'other', 'make room'), 'ready', 'a ready job moves to another lane');
SELECT is(pg_temp.line('line'), '3 2', 'it left its lane');
SELECT is(pg_temp.line('other'), '1', 'and stands in the other');
SELECT is(pulse.move(:two, 'line'), 'ready', 'a job may be moved where it is');
SELECT is(pg_temp.line('line'), '3 2', 'and keeps its place');
SELECT results_eq(
    format('SELECT before, after, reason FROM pulse_internal.audit_entry WHERE job = %s', :one),
    $$VALUES (
        '{"state": "ready", "lane": "line"}'::jsonb, '{"state": "ready", "lane": "other"}'::jsonb,
        'make room'
    )$$,
    'the audit has both lanes'
);

SELECT pulse.enqueue('a', lane => 'later', delay => '1 hour') AS job \gset
SELECT is(pulse.move(:job, 'other'), 'scheduled', 'a scheduled job moves');
SELECT pulse.enqueue('a', lane => 'later', requires_approval => true) AS job \gset
SELECT is(pulse.move(:job, 'other'), 'awaiting_approval', 'a job that awaits approval moves');
SELECT is(pulse.approve(:job), 'ready', 'and is approved there');
SELECT is(
    (SELECT r.lane FROM pulse_internal.ready AS r WHERE r.job = :job), 'other', 'in its new lane'
);

SELECT pulse.enqueue('a', lane => 'k1', unique_key => 'key', unique_for => '1 hour') AS job \gset
SELECT pulse.enqueue('a', lane => 'k2', unique_key => 'key') AS holder \gset
SELECT throws_ok(
    format('SELECT pulse.move(%s, %L)', :job, 'k2'), 'PU102', NULL,
    'a job does not move onto a unique key that is taken'
);
SELECT is(
    (SELECT r.lane FROM pulse_internal.ready AS r WHERE r.job = :job), 'k1', 'it stays where it was'
);
SELECT is(pulse.move(:job, 'k3'), 'ready', 'where its key is free it may go');
SELECT results_eq(
    format(
        'SELECT lane COLLATE "default", unique_for, expires_at FROM pulse_internal.job_key WHERE job = %s',
        :job
    ),
    $$VALUES ('k3', interval '1 hour', NULL::timestamptz)$$,
    'and takes the key along'
);
SELECT isnt(
    pulse.enqueue('a', lane => 'k1', unique_key => 'key'), :job::bigint,
    'the key is free in the lane it left'
);

SELECT pulse.enqueue('a', lane => 'run2') AS job \gset
SELECT pg_temp.run('run2') AS lease \gset
SELECT throws_ok(
    format('SELECT pulse.move(%s, %L)', :job, 'other'), 'PU105', NULL,
    'a running job does not move'
);
\o /dev/null
SELECT pulse.complete(:lease);
\o
SELECT throws_ok(
    format('SELECT pulse.move(%s, %L)', :job, 'other'), 'PU105', NULL,
    'nor does a finished one'
);
SELECT throws_ok(
    format('SELECT pulse.move(%s, %L)', :two, ''), 'PU002', NULL, 'a lane has a name'
);
SELECT throws_ok('SELECT pulse.move(0, ''other'')', 'PU004', NULL, 'what moves must exist');

-- retry

SELECT throws_ok(
    format('SELECT pulse.retry(%s)', :job), 'PU105', NULL, 'a completed job is not retried'
);
SELECT throws_ok(
    format('SELECT pulse.retry(%s)', :two), 'PU105', NULL, 'nor is one that is still in line'
);
SELECT is(pg_temp.line('line'), '3 2', 'and a refused retry leaves it there');
SELECT throws_ok('SELECT pulse.retry(0)', 'PU004', NULL, 'what is retried must exist');

SELECT pulse.enqueue('a', lane => 'r', max_attempts => 1, priority => 6) AS job \gset
SELECT pg_temp.run('r') AS lease \gset
\o /dev/null
SELECT pulse.fail(:lease, 'first');
\o
SELECT is(pg_temp.state(:job), 'dead', 'a job without attempts left is dead');
SELECT is(pulse.retry(:job, 'fixed'), 'ready', 'a dead job is put back in line');
SELECT results_eq(
    format('SELECT rank, attempts, failures FROM pulse_internal.ready WHERE job = %s', :job),
    $$VALUES (-6, 1, 0)$$,
    'with its priority, no failures, and its attempts counted on'
);
SELECT results_eq(
    $$SELECT attempt, failures FROM pulse.claim_batch('w', 'r')$$,
    $$VALUES (2, 0)$$,
    'its next run is the second'
);
SELECT throws_ok(
    format('SELECT pulse.fail(%s, %L)', :lease, 'first'), 'PU101', NULL,
    'the lease of its first run is lost for good'
);
SELECT l.lease FROM pulse_internal.lease AS l WHERE l.job = :job \gset
\o /dev/null
SELECT pulse.fail(:lease, 'second');
\o
SELECT results_eq(
    format('SELECT attempt, error FROM pulse_internal.failure WHERE job = %s ORDER BY attempt', :job),
    $$VALUES (1, 'first'), (2, 'second')$$,
    'the errors of all attempts are kept'
);

SELECT pulse.enqueue('a', lane => 'c') AS job \gset
SELECT pg_temp.run('c') AS lease \gset
\o /dev/null
SELECT pulse.cancel(:job, 'stop');
SELECT pulse.ack_cancel(:lease);
\o
SELECT is(pulse.retry(:job), 'ready', 'a cancelled job is put back in line');
SELECT pg_temp.run('c') AS lease \gset
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'ok',
    'and the old cancel does not stop its next run'
);

SELECT pulse.enqueue('a', lane => 'u', unique_key => 'u') AS job \gset
\o /dev/null
SELECT pulse.cancel(:job);
\o
SELECT pulse.enqueue('a', lane => 'u', unique_key => 'u') AS holder \gset
SELECT throws_ok(
    format('SELECT pulse.retry(%s)', :job), 'PU102', NULL,
    'a job is not retried when its unique key went to another'
);
SELECT is(pg_temp.state(:job), 'cancelled', 'it stays as it ended');
\o /dev/null
SELECT pulse.cancel(:holder);
SELECT pulse.retry(:job);
\o
SELECT is(
    pulse.enqueue('a', lane => 'u', unique_key => 'u'), :job::bigint,
    'once retried, it holds its key again'
);

SELECT pulse.enqueue('a', lane => 'v', unique_key => 'v', unique_for => '1 hour') AS job \gset
\o /dev/null
SELECT pulse.cancel(:job);
SELECT pulse.retry(:job);
\o
SELECT results_eq(
    format('SELECT unique_for, expires_at FROM pulse_internal.job_key WHERE job = %s', :job),
    $$VALUES (interval '1 hour', NULL::timestamptz)$$,
    'a key within its unique_for is the job''s own, and lives with it again'
);
\o /dev/null
SELECT pulse.cancel(:job);
\o
UPDATE pulse_internal.job_key
SET expires_at = clock_timestamp(), job = job + 1
WHERE job = :job;
SELECT is(pulse.retry(:job), 'ready', 'a key that has expired is free');

-- delete_job

SELECT throws_ok(
    format('SELECT pulse.delete_job(%s)', :job), 'PU105', NULL,
    'a job that has not ended is not deleted'
);
SELECT is(pg_temp.state(:job), 'ready', 'and stays in line');
SELECT throws_ok('SELECT pulse.delete_job(0)', 'PU004', NULL, 'what is deleted must exist');

SELECT pulse.enqueue('a', lane => 'd', max_attempts => 1, unique_key => 'd', unique_for => '1 day') AS job \gset
SELECT pg_temp.run('d') AS lease \gset
\o /dev/null
SELECT pulse.progress(:lease, 0.5, 'half');
SELECT pulse.checkpoint(:lease, '{"at": 1}');
SELECT pulse.fail(:lease, 'oops');
\o
SELECT lives_ok(
    format('SELECT pulse.delete_job(%s, %L)', :job, 'private data'),
    'a finished job can be deleted'
);
SELECT is_empty(
    format(
        'SELECT FROM pulse_internal.body WHERE job = %1$s'
        ' UNION ALL SELECT FROM pulse_internal.finished WHERE job = %1$s'
        ' UNION ALL SELECT FROM pulse_internal.failure WHERE job = %1$s'
        ' UNION ALL SELECT FROM pulse_internal.job_progress WHERE job = %1$s'
        ' UNION ALL SELECT FROM pulse_internal.job_checkpoint WHERE job = %1$s'
        ' UNION ALL SELECT FROM pulse_internal.job_key WHERE job = %1$s',
        :job
    ),
    'nothing of it is left'
);
SELECT results_eq(
    format('SELECT verb, before, after, reason FROM pulse_internal.audit_entry WHERE job = %s', :job),
    $$VALUES (
        'delete_job', '{"state": "dead", "kind": "a", "attempts": 1}'::jsonb, NULL::jsonb,
        'private data'
    )$$,
    'but who deleted it, and why'
);
SELECT throws_ok(
    format('SELECT pulse.delete_job(%s)', :job), 'PU004', NULL, 'it cannot be deleted twice'
);

SELECT * FROM finish();

ROLLBACK;
