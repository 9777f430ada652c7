-- Jobs that need a yes: approve, reject, expiry.
BEGIN;

SELECT plan(35);

-- Approve

SELECT pulse.enqueue('a', priority => 5, requires_approval => true, unique_key => 'k') AS job \gset
SELECT is_empty($$SELECT pulse.claim_batch('w')$$, 'a job that awaits approval is not claimed');
SELECT is(pulse.approve(:job, 'looks fine'), 'ready', 'an approved job that is due is ready');
SELECT results_eq(
    format('SELECT rank, attempts, failures, keyed FROM pulse_internal.ready WHERE job = %s', :job),
    $$VALUES (-5, 0, 0, true)$$,
    'with its priority and its key'
);
SELECT results_eq(
    format('SELECT verb, before, after, reason FROM pulse_internal.audit_entry WHERE job = %s', :job),
    $$VALUES (
        'approve', '{"state": "awaiting_approval"}'::jsonb, '{"state": "ready"}'::jsonb,
        'looks fine'
    )$$,
    'the audit says who let it go'
);
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :job), 'PU105',
    format('cannot approve job %s: it is ready', :job),
    'approving twice is refused, and says what the job is'
);
SELECT is(pg_temp.state(:job), 'ready', 'a refused approval leaves the job in line');
SELECT is(
    (SELECT c.job_id FROM pulse.claim_batch('w') AS c), :job::bigint, 'an approved job is claimed'
);
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :job), 'PU105', NULL, 'a running job cannot be approved'
);

SELECT pulse.enqueue('a', delay => '1 hour', requires_approval => true) AS job \gset
SELECT is(
    pulse.approve(:job), 'scheduled', 'an approved job with a time to come is scheduled'
);
SELECT ok(
    (
        SELECT w.run_at > clock_timestamp() + interval '59 minutes' AND NOT w.retrying
        FROM pulse_internal.waiting AS w WHERE w.job = :job
    ),
    'for that time'
);

SELECT pulse.enqueue('a', requires_approval => true) AS job \gset
\o /dev/null
SELECT pulse.cancel(:job, 'not any more');
\o
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :job), 'PU105', NULL, 'an approve never undoes a cancel'
);
SELECT is(pg_temp.state(:job), 'cancelled', 'the cancelled job stays cancelled');
SELECT throws_ok('SELECT pulse.approve(0)', 'PU004', NULL, 'what is approved must exist');

-- Reject

SELECT pulse.enqueue('a', requires_approval => true, unique_key => 'r') AS job \gset
SELECT is(pulse.reject(:job, 'too costly'), 'cancelled', 'a rejected job is cancelled');
SELECT results_eq(
    format('SELECT state::text, ended_by COLLATE "default", error FROM pulse_internal.finished WHERE job = %s', :job),
    $$VALUES ('cancelled', 'reject', 'rejected: too costly')$$,
    'and says so'
);
SELECT is_empty(
    format('SELECT FROM pulse_internal.job_key WHERE job = %s', :job), 'its unique key is free'
);
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :job), 'PU105', NULL,
    'an approve never undoes a rejection'
);
SELECT throws_ok(
    format('SELECT pulse.reject(%s)', :job), 'PU105', NULL, 'rejecting twice is refused'
);
SELECT throws_ok('SELECT pulse.reject(0)', 'PU004', NULL, 'what is rejected must exist');

-- To retry is not to approve

SELECT pulse.enqueue('a', lane => 'again', requires_approval => true, unique_key => 'a') AS job \gset
SELECT pulse.reject(:job) \g /dev/null
-- proves: T14
SELECT is(pulse.retry(:job), 'awaiting_approval', 'transition 14: a job that was rejected and is retried awaits approval again');
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'again')), 0::bigint, 'no worker gets it');
SELECT pulse.reject(:job) \g /dev/null
SELECT results_eq(
    $$SELECT done FROM pulse.retry_where('{"lane": "again"}')$$, 'VALUES (1::bigint)', 'retry_where retries it too'
);
SELECT is(pg_temp.state(:job), 'awaiting_approval', 'with the same end');
SELECT pulse.approve(:job) \g /dev/null
SELECT lease FROM pulse.claim_batch('w', 'again') \gset
SELECT pulse.fail(:lease, 'no', fatal => true) \g /dev/null
SELECT is(pulse.retry(:job), 'ready', 'what ran was approved');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is in order');

SELECT pulse.enqueue('a', requires_approval => true) AS job \gset
\o /dev/null
SELECT pulse.reject(:job);
\o
SELECT is(
    (SELECT f.error FROM pulse_internal.finished AS f WHERE f.job = :job), 'rejected',
    'a rejection needs no reason'
);

-- Expiry

\o /dev/null
SELECT pulse.set_kind('slow', requires_approval => true, approval_expiry => '1 hour');
\o
SELECT pulse.enqueue('slow') AS kept \gset
SELECT pulse.enqueue('slow', unique_key => 'e') AS first \gset
SELECT pulse.enqueue('slow') AS second \gset
SELECT pulse.enqueue('slow') AS third \gset
-- Time passes for three of them.
UPDATE pulse_internal.approval
SET expires_at = clock_timestamp() - interval '1 minute' * (:third - job)
WHERE job IN (:first, :second);
UPDATE pulse_internal.approval
SET expires_at = clock_timestamp()
WHERE job = :third;

SELECT is(pulse_internal.expire_approvals(2), 2, 'approvals expire, at most so many at once');
SELECT is(pg_temp.state(:third), 'awaiting_approval', 'oldest first');
SELECT results_eq(
    format('SELECT state::text, ended_by COLLATE "default", error FROM pulse_internal.finished WHERE job = %s', :first),
    $$VALUES ('cancelled', 'expire', 'approval expired')$$,
    'an expired job is cancelled and says why'
);
SELECT is_empty(
    format('SELECT FROM pulse_internal.job_key WHERE job = %s', :first), 'its unique key is free'
);
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :second), 'PU105', NULL,
    'an expired job cannot be approved'
);
SELECT is(
    pulse.approve(:third), 'ready',
    'until the watchdog has come by, an approval still counts'
);
SELECT is(pulse_internal.expire_approvals(10), 0, 'nothing else expires');
SELECT is(pg_temp.state(:kept), 'awaiting_approval', 'what is within its time is left alone');
SELECT is(
    (
        SELECT a.expires_at - a.asked_at BETWEEN interval '59 minutes' AND interval '61 minutes'
        FROM pulse_internal.approval AS a WHERE a.job = :kept
    ),
    true,
    'the time to approve comes from the kind'
);

SELECT * FROM finish();

ROLLBACK;
