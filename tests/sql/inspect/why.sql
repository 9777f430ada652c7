-- Every reason a job is not running now, in words and in order.
BEGIN;

SELECT plan(28);

CREATE FUNCTION pg_temp.why(job_id bigint)
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(w.position || ' ' || w.reason, '; ' ORDER BY w.position)
    FROM pulse.why(why.job_id) AS w
$$;

SELECT pulse.hello('w1', '{a,b,c,default}', NULL) \g /dev/null

SELECT pulse.enqueue('k', '{}', lane => 'a') AS first_id \gset
SELECT matches(pg_temp.why(:first_id), '^1 runnable: it is first in lane a', 'a runnable job says so');

SELECT pulse.enqueue('k', '{}', lane => 'a') AS second_id \gset
SELECT is(pg_temp.why(:second_id), '1 1 job is ahead of it in lane a', 'a job says how many are ahead');
SELECT pulse.enqueue('k', '{}', lane => 'a', priority => 1) AS urgent_id \gset
SELECT matches(pg_temp.why(:urgent_id), 'runnable', 'none is ahead of a higher priority');
SELECT is(pg_temp.why(:first_id), '1 1 job is ahead of it in lane a', 'which is ahead of the others');
SELECT pulse.enqueue('k', '{}', lane => 'a', priority => 2) FROM generate_series(1, 1001) \g /dev/null
SELECT is(pg_temp.why(:second_id), '1 more than 1000 jobs are ahead of it in lane a', 'counting ends at 1000');

SELECT pulse.enqueue('k', '{}', lane => 'b', delay => '1 hour') AS later_id \gset
SELECT matches(pg_temp.why(:later_id), '^1 due in (60|59) min, at [0-9-]+', 'a delayed job says when it is due');

SELECT pulse.enqueue('k', '{}', lane => 'b', requires_approval => true) AS approval_id \gset
SELECT matches(pg_temp.why(:approval_id), '^1 awaiting approval until .*23 h left', 'a job that awaits approval says until when');

SELECT pulse.enqueue('k', '{}', lane => 'b') AS ready_id \gset
SELECT pulse.pause('deploy', 'version 2') \g /dev/null
SELECT pulse.drain_lane('b') \g /dev/null
SELECT pulse.pause('migration', NULL, 'b') \g /dev/null
SELECT pulse.set_lane('b', enabled => false) \g /dev/null
SELECT matches(
    pg_temp.why(:ready_id),
    '^1 everything is paused by deploy: version 2, since .*; 2 lane b is drained by drain since .*; 3 lane b is paused by migration since .*; 4 lane b is disabled',
    'every hold is named, with holder, reason and time, then the setting'
);
SELECT matches(pg_temp.why(:later_id), '^1 due in .*; 2 everything is paused', 'holds are named for a delayed job too');
SELECT pulse.resume('deploy') \g /dev/null
SELECT pulse.resume_lane('b') \g /dev/null
SELECT pulse.resume('migration', 'b') \g /dev/null
SELECT pulse.set_lane('b', enabled => true) \g /dev/null
SELECT matches(pg_temp.why(:ready_id), '^1 runnable', 'when all are gone it is runnable');

SELECT pulse.set_lane('c', max_slots => 1) \g /dev/null
SELECT pulse.enqueue('k', '{}', lane => 'c') AS running_id \gset
SELECT pulse.enqueue('k', '{}', lane => 'c') AS behind_id \gset
SELECT lease AS c_lease FROM pulse.claim_batch('w1', 'c') \gset
SELECT is(pg_temp.why(:behind_id), '1 lane c has 1 of 1 slots in use, by w1', 'full slots are named with who has them');
SELECT matches(pg_temp.why(:running_id), '^1 running since .* at worker w1, attempt 1$', 'a running job says where and since when');
SELECT pulse.cancel(:running_id) \g /dev/null
SELECT matches(pg_temp.why(:running_id), '; 2 its worker was asked to cancel it', 'and that it was asked to stop');
UPDATE pulse_internal.lease SET reap_at = NULL, lease_until = clock_timestamp() - interval '5 seconds' WHERE job = :running_id;
SELECT matches(pg_temp.why(:running_id), '; 3 its lease lapsed (4.9|5.[0-9]) s ago', 'and that its worker was lost');

SELECT pulse.enqueue('k', '{}', lane => 'default') AS failed_id \gset
SELECT lease AS d_lease FROM pulse.claim_batch('w1') \gset
SELECT pulse.fail(:d_lease, 'no route to host', '1 hour') \g /dev/null
SELECT matches(pg_temp.why(:failed_id), '^1 due in .*; 2 retrying after failure 1 of 3: no route to host$', 'a retrying job says after what');
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 second' WHERE job = :failed_id;
SELECT matches(pg_temp.why(:failed_id), '^1 retrying after', 'a retry that is due is not due any more');

SELECT pulse.enqueue('k', '{}', lane => 'default') AS done_id \gset
SELECT lease AS e_lease FROM pulse.claim_batch('w1', max_jobs => 2) ORDER BY job_id DESC LIMIT 1 \gset
SELECT pulse.complete(:e_lease) \g /dev/null
SELECT matches(pg_temp.why(:done_id), '^1 finished: completed at .*, ended by complete$', 'a finished job says how');
SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l WHERE l.job = :failed_id \g /dev/null
SELECT matches(pg_temp.why(:failed_id), ', ended by complete$', 'and nothing of the failures before it completed');

SELECT pulse.enqueue('k', '{}', lane => 'nobody') AS lonely_id \gset
SELECT matches(pg_temp.why(:lonely_id), '^1 no live worker takes lane nobody', 'a lane without a worker is named');
SELECT pulse.hello('w2', '{nobody}', '{x}') \g /dev/null
SELECT matches(pg_temp.why(:lonely_id), '^1 no live worker takes kind k: the 1 of lane nobody', 'so is a kind that none takes');
UPDATE pulse_internal.worker SET kinds = '{x,k}' WHERE worker = 'w2';
SELECT matches(pg_temp.why(:lonely_id), '^1 runnable', 'a worker that takes the kind is enough');
UPDATE pulse_internal.worker SET seen_at = clock_timestamp() - interval '3 minutes' WHERE worker = 'w2';
SELECT matches(pg_temp.why(:lonely_id), '^1 no live worker takes lane nobody', 'one that was not seen is not');

SELECT pulse.hello('w3', '{due}') \g /dev/null
SELECT pulse.enqueue('k', lane => 'due') AS low_id \gset
SELECT count(pulse.enqueue('k', lane => 'due', priority => p, delay => '1 hour')) FROM unnest('{9,9,5,0,-1}'::integer []) AS p \g /dev/null
SELECT matches(pg_temp.why(:low_id), '^1 runnable', 'a job of higher priority that is due later is not ahead');
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 second' WHERE lane = 'due';
SELECT is(
    pg_temp.why(:low_id), '1 3 jobs are due in lane due with a higher priority: the next claim or tick puts them in line',
    'jobs of higher priority that are due go before it'
);

SELECT throws_ok('SELECT * FROM pulse.why(0)', 'PU004', NULL, 'an unknown job is PU004');
CREATE ROLE tap_alice;
SELECT pulse.grant_access('tap_alice', 'producer') \g /dev/null
SET LOCAL ROLE tap_alice;
SELECT pulse.enqueue('k') AS own_id \gset
RESET ROLE;
CREATE FUNCTION pg_temp.as_alice(query text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    SET LOCAL ROLE tap_alice;
    EXECUTE query;
    RESET ROLE;
END;
$$;
SELECT throws_ok(
    format('SELECT pg_temp.as_alice(%L)', format('SELECT * FROM pulse.why(%s)', :lonely_id)),
    'PU004', NULL, 'the job of another role is PU004 for a producer'
);
RESET ROLE;
SELECT lives_ok(
    format('SELECT pg_temp.as_alice(%L)', format('SELECT * FROM pulse.why(%s)', :own_id)),
    'its own job is not'
);
SELECT is(
    (SELECT array_agg(w.position ORDER BY w.position) FROM pulse.why(:own_id) AS w), '{1}',
    'positions count from 1'
);

SELECT * FROM finish();

ROLLBACK;
