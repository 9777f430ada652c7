-- Cancelling: at once where a job waits, by request and grace where it runs.
BEGIN;

SELECT plan(48);

CREATE ROLE pulse_test_alice;
CREATE ROLE pulse_test_bob;
CREATE ROLE pulse_test_chief;
\o /dev/null
SELECT pulse.grant_access('pulse_test_alice', 'producer');
SELECT pulse.grant_access('pulse_test_bob', 'producer');
SELECT pulse.grant_access('pulse_test_chief', 'operator');
\o

-- Waiting states

SELECT pulse.enqueue('a', unique_key => 'k') AS job \gset
SELECT is(pulse.cancel(:job, 'not needed'), 'cancelled', 'a ready job is cancelled at once');
SELECT is(pg_temp.state(:job), 'cancelled', 'and stands as cancelled');
SELECT is(
    (SELECT f.error FROM pulse_internal.finished AS f WHERE f.job = :job), 'not needed',
    'the reason is kept as its error'
);
SELECT is_empty(
    format('SELECT FROM pulse_internal.job_key WHERE job = %s', :job), 'and its unique key is free'
);
SELECT is(pulse.cancel(:job), 'cancelled', 'cancelling again changes nothing');
SELECT results_eq(
    format(
        'SELECT verb, before, after, reason FROM pulse_internal.audit_entry WHERE job = %s', :job
    ),
    $$VALUES (
        'cancel', '{"state": "ready"}'::jsonb,
        '{"state": "cancelled", "requested": false, "force": false}'::jsonb, 'not needed'
    )$$,
    'the audit has one entry, with before, after and why'
);

SELECT pulse.enqueue('a', delay => '1 hour') AS job \gset
SELECT is(pulse.cancel(:job), 'cancelled', 'a scheduled job is cancelled at once');
SELECT is(
    (SELECT f.error FROM pulse_internal.finished AS f WHERE f.job = :job), 'cancelled',
    'without a reason the error says cancelled'
);

SELECT pulse.enqueue('a', requires_approval => true) AS job \gset
SELECT is(
    pulse.cancel(:job), 'cancelled', 'a job that awaits approval is cancelled at once'
);

SELECT pulse.enqueue('a') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w') AS c \gset
\o /dev/null
SELECT pulse.fail(:lease, 'oops');
\o
SELECT is(pg_temp.state(:job), 'retrying', 'a failed job is retrying');
SELECT is(pulse.cancel(:job), 'cancelled', 'a retrying job is cancelled at once');
SELECT is(
    (SELECT x.error FROM pulse_internal.failure AS x WHERE x.job = :job), 'oops',
    'the errors of its runs stay'
);
SELECT is_empty(
    format(
        'SELECT FROM pulse_internal.waiting WHERE job = %s UNION ALL SELECT FROM pulse_internal.ready WHERE job = %s',
        :job, :job
    ),
    'and it waits nowhere'
);

-- Running: request and grace

\o /dev/null
SELECT pulse.set_lane('default', cancel_grace => '10 seconds');
\o
SELECT pulse.enqueue('a') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w') AS c \gset
SELECT is(pulse.cancel(:job, 'stop it'), 'running', 'a running job is only asked to stop');
SELECT ok(
    (
        SELECT l.cancel_by - clock_timestamp() BETWEEN interval '5 seconds' AND interval '10 seconds'
        FROM pulse_internal.lease AS l WHERE l.lease = :lease
    ),
    'it has the cancel grace of its lane'
);
SELECT ok(
    (
        SELECT l.lease_until = l.cancel_by AND l.reap_at = l.lease_until
        FROM pulse_internal.lease AS l WHERE l.lease = :lease
    ),
    'its lease ends with the grace, and reap looks then'
);
SELECT l.cancel_by FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT is(pulse.cancel(:job, 'again'), 'running', 'a second request is answered alike');
SELECT results_eq(
    format('SELECT cancel_by, cancel_reason FROM pulse_internal.lease WHERE lease = %s', :lease),
    format('VALUES (%L::timestamptz, %L)', :'cancel_by', 'stop it'),
    'and neither extends the grace nor changes the reason'
);
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'cancel',
    'the worker hears of it with its heartbeat'
);
SELECT lives_ok(
    format('SELECT pulse.ack_cancel(%s)', :lease), 'the worker acknowledges the cancel'
);
SELECT results_eq(
    format(
        'SELECT state::text, ended_by COLLATE "default", error, lease, worker FROM pulse_internal.finished WHERE job = %s',
        :job
    ),
    format('VALUES (%L, %L, %L, %s::bigint, %L)', 'cancelled', 'ack_cancel', 'stop it', :lease, 'w'),
    'then the job is cancelled, with the reason of the request'
);
SELECT lives_ok(
    format('SELECT pulse.ack_cancel(%s)', :lease), 'a repeated acknowledgement succeeds'
);
SELECT throws_ok(
    format('SELECT pulse.complete(%s)', :lease), 'PU101', NULL,
    'but another report of that lease is lost'
);
SELECT throws_ok(
    'SELECT pulse.ack_cancel(711)', 'PU101', NULL, 'an unknown lease is lost'
);

SELECT pulse.enqueue('a') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w') AS c \gset
SELECT throws_ok(
    format('SELECT pulse.ack_cancel(%s)', :lease), 'PU105', NULL,
    'a cancel that nobody asked for cannot be acknowledged'
);
SELECT is(pg_temp.state(:job), 'running', 'and the job runs on');

-- The worker may still win.
\o /dev/null
SELECT pulse.cancel(:job);
SELECT pulse.complete(:lease);
\o
SELECT is(pg_temp.state(:job), 'completed', 'a run may complete within the grace');
SELECT throws_ok(
    format('SELECT pulse.cancel(%s)', :job), 'PU105', NULL, 'a completed job is not cancelled'
);

SELECT pulse.enqueue('a', max_attempts => 1) AS job \gset
SELECT c.lease FROM pulse.claim_batch('w') AS c \gset
\o /dev/null
SELECT pulse.fail(:lease, 'oops');
\o
SELECT throws_ok(
    format('SELECT pulse.cancel(%s)', :job), 'PU105', NULL, 'a dead job is not cancelled'
);

-- Force

SELECT pulse.enqueue('a', unique_key => 'f') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w') AS c \gset
SELECT is(
    pulse.cancel(:job, 'kill it', force => true), 'cancelled', 'force ends a run at once'
);
SELECT throws_ok(
    format('SELECT pulse.complete(%s)', :lease), 'PU101', NULL, 'its lease is lost'
);
SELECT throws_ok(
    format('SELECT pulse.ack_cancel(%s)', :lease), 'PU101', NULL,
    'there is nothing left to acknowledge'
);
SELECT results_eq(
    format('SELECT ended_by COLLATE "default", error, attempts FROM pulse_internal.finished WHERE job = %s', :job),
    $$VALUES ('cancel', 'kill it', 1)$$,
    'and it is written down as cancelled, with the role'
);
SELECT isnt(
    pulse.enqueue('a', unique_key => 'f'), :job::bigint, 'a forced cancel frees the unique key'
);

SELECT pulse.enqueue('b', lane => 'other') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'other') AS c \gset
\o /dev/null
SELECT pulse.cancel(:job);
\o
SELECT is(
    pulse.cancel(:job, force => true), 'cancelled', 'force does not wait for a grace that runs'
);

-- Whose job it is

SET LOCAL ROLE pulse_test_alice;
SELECT pulse.enqueue('a') AS job \gset
SELECT pulse.enqueue('a') AS job2 \gset
SELECT pulse.enqueue('a', lane => 'alice') AS job3 \gset
RESET ROLE;
SELECT throws_ok(
    format('SET LOCAL ROLE pulse_test_bob; SELECT pulse.cancel(%s)', :job),
    'PU004', format('job %s does not exist', :job),
    'a job of another role does not exist for a producer'
);
SELECT throws_ok(
    'SET LOCAL ROLE pulse_test_bob; SELECT pulse.cancel(0)',
    'PU004', 'job 0 does not exist',
    'just as one that really does not'
);
SET LOCAL ROLE pulse_test_alice;
SELECT pulse.cancel(:job) AS state \gset
RESET ROLE;
SELECT is(:'state'::text, 'cancelled', 'a producer cancels its own job');
SELECT is(
    (SELECT e.who FROM pulse.audit AS e WHERE e.job_id = :job), 'pulse_test_alice',
    'and stands in the audit'
);
\o /dev/null
SELECT pulse.claim_batch('w', 'alice');
\o
SELECT throws_ok(
    format('SET LOCAL ROLE pulse_test_alice; SELECT pulse.cancel(%s, force => true)', :job3),
    'PU011', NULL, 'a producer cannot force'
);
SET LOCAL ROLE pulse_test_alice;
SELECT pulse.cancel(:job3) AS state \gset
RESET ROLE;
SELECT is(:'state'::text, 'running', 'but may ask its own running job to stop');
SET LOCAL ROLE pulse_test_chief;
SELECT pulse.cancel(:job2) AS state \gset
SELECT pulse.cancel(:job3, force => true) AS state3 \gset
RESET ROLE;
SELECT is(:'state'::text, 'cancelled', 'an operator cancels the job of anybody');
SELECT is(:'state3'::text, 'cancelled', 'and may force');

-- The rest

SELECT throws_ok('SELECT pulse.cancel(0)', 'PU004', NULL, 'a job must exist to be cancelled');
SELECT throws_ok('SELECT pulse.cancel(NULL)', 'PU004', NULL, 'no job is no job');
SELECT throws_ok(
    format('SELECT pulse.cancel(%s, repeat(%L, 1048577))', :job, 'x'), 'PU003', NULL,
    'a reason has a size'
);
INSERT INTO pulse_internal.body (job, kind, payload, max_attempts, owner)
VALUES (512, 'nowhere', '{}', 1, pulse_internal.role_number(current_user));
SELECT throws_ok(
    'SELECT pulse.cancel(512)', 'PU107', NULL,
    'a job that is found nowhere ten times in a row is said to keep moving'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.finished AS f WHERE f.state = 'cancelled' AND f.error IS NULL),
    0::bigint,
    'every cancelled job says why'
);

SELECT * FROM finish();

ROLLBACK;
