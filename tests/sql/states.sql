-- The life of a job: every transition of docs/contract.md, and what must not happen.
BEGIN;

SELECT plan(125);

CREATE FUNCTION pg_temp.lease_of(job_id bigint)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT l.lease FROM pulse_internal.lease AS l WHERE l.job = lease_of.job_id $$;

-- A job in the state asked for, in a lane of its own.
CREATE FUNCTION pg_temp.job(state text, max_attempts integer DEFAULT 3)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_lane text := 'lane-' || nextval('pulse_internal.version');
    v_job bigint;
BEGIN
    v_job := pulse.enqueue(
        'k', lane => v_lane, max_attempts => job.max_attempts,
        delay => CASE WHEN job.state = 'scheduled' THEN interval '1 h' END,
        requires_approval => job.state = 'awaiting_approval'
    );
    IF job.state IN ('running', 'retrying', 'completed', 'dead', 'cancelling') THEN
        PERFORM pulse.claim_batch('w', v_lane);
    END IF;
    CASE job.state
        WHEN 'retrying' THEN
            PERFORM pulse.fail(pg_temp.lease_of(v_job), retry_in => '1 h');
        WHEN 'completed' THEN
            PERFORM pulse.complete(pg_temp.lease_of(v_job));
        WHEN 'dead' THEN
            PERFORM pulse.fail(pg_temp.lease_of(v_job), fatal => true);
        WHEN 'cancelled', 'cancelling' THEN
            PERFORM pulse.cancel(v_job);
        ELSE
            NULL;
    END CASE;
    RETURN v_job;
END;
$$;

-- The lease of a job, or the cancel grace, ended a second ago; then reap.
CREATE FUNCTION pg_temp.reap(job_id bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE pulse_internal.lease AS l
    SET lease_until = now() - interval '1 s', reap_at = now() - interval '1 s'
    WHERE l.job = reap.job_id;
    RETURN pulse.reap();
END;
$$;

-- What is due or too old, by an hour, or by as much as asked for.
CREATE FUNCTION pg_temp.age(by interval DEFAULT '2 h')
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.waiting SET run_at = run_at - age.by;
    UPDATE pulse_internal.approval SET expires_at = expires_at - age.by;
    UPDATE pulse_internal.finished SET finished_at = finished_at - age.by;
    DELETE FROM pulse_internal.due_mark;
    DELETE FROM pulse_internal.upkeep_run;
$$;

CREATE FUNCTION pg_temp.lane_of(job_id bigint)
RETURNS text
LANGUAGE sql
AS $$ SELECT j.lane FROM pulse.jobs AS j WHERE j.job_id = lane_of.job_id $$;

SELECT is(pg_temp.state(pg_temp.job(s.state)), s.state, format('a job can be %s', s.state))
FROM unnest(
    '{awaiting_approval,scheduled,ready,running,retrying,completed,dead,cancelled}'::text []
) AS s (state);

-- Row 1

SELECT pulse.enqueue('k', run_at => clock_timestamp()) AS job \gset
-- proves: T1
SELECT is(pg_temp.state(:job), 'ready', 'transition 1: nothing → ready, run_at due, enqueue');
SELECT pulse.enqueue('k', run_at => clock_timestamp() + interval '1 h') AS job \gset
SELECT is(
    pg_temp.state(:job), 'scheduled',
    'transition 1: nothing → scheduled, run_at in the future, enqueue'
);
SELECT m.job FROM pulse.enqueue_many('k', '{1}'::jsonb []) AS m (job) \gset
SELECT is(pg_temp.state(:job), 'ready', 'transition 1: nothing → ready, enqueue_many');
SELECT m.job FROM pulse.enqueue_many('k', '{1}'::jsonb [], delay => '1 h') AS m (job) \gset
SELECT is(pg_temp.state(:job), 'scheduled', 'transition 1: nothing → scheduled, enqueue_many');

-- Row 2

SELECT pulse.enqueue('k', requires_approval => true) AS job \gset
-- proves: T2
SELECT is(
    pg_temp.state(:job), 'awaiting_approval',
    'transition 2: nothing → awaiting_approval, the call asks for it, enqueue'
);
SELECT pulse.set_kind('careful', requires_approval => true);
SELECT pulse.enqueue('careful') AS job \gset
SELECT is(
    pg_temp.state(:job), 'awaiting_approval',
    'transition 2: nothing → awaiting_approval, the kind asks for it, enqueue'
);

-- Row 3

SELECT pg_temp.job('awaiting_approval') AS job \gset
-- proves: T3
SELECT is(
    pulse.approve(:job) || ' ' || pg_temp.state(:job), 'ready ready',
    'transition 3: awaiting_approval → ready, approve'
);
SELECT pulse.enqueue('k', requires_approval => true, delay => '1 h') AS job \gset
SELECT is(
    pulse.approve(:job) || ' ' || pg_temp.state(:job), 'scheduled scheduled',
    'transition 3: awaiting_approval → scheduled, approve'
);
SELECT pulse.enqueue('many', requires_approval => true) AS job FROM generate_series(1, 3) \g /dev/null
SELECT a.done FROM pulse.approve_where('{"kind": "many"}') AS a \gset
SELECT is(
    (SELECT count(*) FROM pulse.jobs AS j WHERE j.kind = 'many' AND j.state = 'ready'), 3::bigint,
    'transition 3: awaiting_approval → ready, many at once'
);

-- Row 4

SELECT pg_temp.job('awaiting_approval') AS job \gset
-- proves: T4
SELECT is(
    pulse.reject(:job, 'no') || ' ' || pg_temp.state(:job), 'cancelled cancelled',
    'transition 4: awaiting_approval → cancelled, reject'
);
SELECT pg_temp.job('awaiting_approval') AS job \gset
SELECT pg_temp.age('23 h');
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is(
    pg_temp.state(:job), 'awaiting_approval', 'transition 4: not before 24 hours have passed'
);
SELECT pg_temp.age('61 min');
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT is(
    pg_temp.state(:job), 'cancelled',
    'transition 4: awaiting_approval → cancelled, not approved in time, watchdog'
);

-- Row 5

SELECT pg_temp.job('scheduled') AS a, pg_temp.job('retrying') AS b \gset
SELECT pg_temp.age();
SELECT count(*) FROM pulse.tick() \g /dev/null
-- proves: T5
SELECT is(pg_temp.state(:a), 'ready', 'transition 5: scheduled → ready, due, tick');
SELECT is(pg_temp.state(:b), 'ready', 'transition 5: retrying → ready, due, tick');
SELECT pg_temp.job('scheduled') AS a, pg_temp.job('retrying') AS b \gset
SELECT pg_temp.lane_of(:a) AS la, pg_temp.lane_of(:b) AS lb \gset
SELECT pg_temp.age();
SELECT count(*) FROM pulse.claim_batch('w', :'la') \g /dev/null
SELECT count(*) FROM pulse.claim_batch('w', :'lb') \g /dev/null
SELECT is(
    pg_temp.state(:a), 'running', 'transition 5: scheduled → ready → running, due, claim_batch'
);
SELECT is(
    pg_temp.state(:b), 'running', 'transition 5: retrying → ready → running, due, claim_batch'
);

-- Row 6

SELECT pg_temp.job('ready') AS job \gset
SELECT pg_temp.lane_of(:job) AS lane \gset
SELECT pulse.set_lane(:'lane', enabled => false);
SELECT count(*) FROM pulse.claim_batch('w', :'lane') \g /dev/null
-- proves: T6
SELECT is(pg_temp.state(:job), 'ready', 'transition 6: not while the lane is not enabled');
SELECT pulse.set_lane(:'lane', enabled => true, max_slots => 1);
SELECT pulse.pause('p') AS p \gset
SELECT count(*) FROM pulse.claim_batch('w', :'lane') \g /dev/null
SELECT is(pg_temp.state(:job), 'ready', 'transition 6: not while there is a pause');
SELECT pulse.resume('p') AS p \gset
SELECT count(*) FROM pulse.claim_batch('w', :'lane') \g /dev/null
SELECT is(pg_temp.state(:job), 'running', 'transition 6: ready → running, claim_batch');
SELECT pulse.enqueue('k', lane => :'lane') AS second \gset
SELECT count(*) FROM pulse.claim_batch('w', :'lane') \g /dev/null
SELECT is(pg_temp.state(:second), 'ready', 'transition 6: not while no slot is free');

-- Row 7

SELECT pg_temp.job('running') AS job \gset
SELECT pg_temp.lease_of(:job) AS lease \gset
UPDATE pulse_internal.lease SET lease_until = now() + interval '1 s' WHERE job = :job;
SELECT h.verdict, h.lease_until > now() + interval '20 s' AS extended FROM pulse.heartbeat(ARRAY[:lease]) AS h \gset
-- proves: T7
SELECT is(
    concat_ws(' ', pg_temp.state(:job), :'verdict', :'extended'), 'running ok t',
    'transition 7: running → running, extended, heartbeat'
);
UPDATE pulse_internal.lease SET deadline = now() + interval '25 s', lease_until = now() + interval '1 s' WHERE job = :job;
SELECT count(*) FROM pulse.heartbeat(ARRAY[:lease]) \g /dev/null
SELECT ok(
    (SELECT l.lease_until = l.deadline FROM pulse_internal.lease AS l WHERE l.job = :job),
    'transition 7: never past max_runtime'
);

-- Row 8

SELECT pulse.complete(:lease, '{"r": 1}');
-- proves: T8
SELECT is(
    (SELECT format('%s %s', j.state, f.result) FROM pulse.jobs AS j JOIN pulse_internal.finished AS f ON f.job = j.job_id WHERE j.job_id = :job),
    'completed {"r": 1}', 'transition 8: running → completed, result stored, complete'
);

-- Row 9

SELECT pg_temp.job('running') AS job \gset
SELECT pulse.fail(pg_temp.lease_of(:job), 'oops');
-- proves: T9
SELECT is(
    pg_temp.state(:job), 'retrying',
    'transition 9: running → retrying, failures below max_attempts, fail'
);
SELECT pg_temp.job('running') AS job \gset
SELECT pg_temp.reap(:job) AS n \gset
SELECT is(
    pg_temp.state(:job), 'retrying',
    'transition 9: running → retrying, lease lapsed, reap'
);

-- Row 10

SELECT pg_temp.job('running', 1) AS job \gset
SELECT pulse.fail(pg_temp.lease_of(:job), 'oops');
-- proves: T10
SELECT is(
    pg_temp.state(:job), 'dead', 'transition 10: running → dead, failures = max_attempts, fail'
);
SELECT pg_temp.job('running', 5) AS job \gset
SELECT pulse.fail(pg_temp.lease_of(:job), 'oops', fatal => true);
SELECT is(pg_temp.state(:job), 'dead', 'transition 10: running → dead, fatal, fail');
SELECT pg_temp.job('running', 1) AS job \gset
SELECT pg_temp.reap(:job) AS n \gset
SELECT is(
    pg_temp.state(:job), 'dead', 'transition 10: running → dead, failures = max_attempts, reap'
);

-- Row 11

SELECT pg_temp.job('running') AS job \gset
SELECT r.verdict FROM pulse.release(ARRAY[pg_temp.lease_of(:job)]) AS r \gset
-- proves: T11
SELECT is(
    (SELECT format('%s %s', pg_temp.state(:job), r.failures) FROM pulse_internal.ready AS r WHERE r.job = :job),
    'ready 0', 'transition 11: running → ready, given back, not charged, release'
);
SELECT pg_temp.job('running') AS job \gset
SELECT pulse.snooze(pg_temp.lease_of(:job), '1 h');
SELECT is(
    (SELECT format('%s %s', pg_temp.state(:job), w.failures) FROM pulse_internal.waiting AS w WHERE w.job = :job),
    'scheduled 0', 'transition 11: running → scheduled, given back, not charged, snooze'
);

-- Row 12

SELECT pg_temp.job('cancelling') AS job \gset
-- proves: T12
SELECT is(pg_temp.state(:job), 'running', 'transition 12: a cancel request leaves a job running');
SELECT pulse.ack_cancel(pg_temp.lease_of(:job));
SELECT is(
    pg_temp.state(:job), 'cancelled', 'transition 12: running → cancelled, acknowledged, ack_cancel'
);
SELECT pg_temp.job('running') AS job \gset
SELECT pulse.cancel(:job, force => true) AS c \gset
SELECT is(pg_temp.state(:job), 'cancelled', 'transition 12: running → cancelled, forced, cancel');
SELECT pg_temp.job('cancelling') AS job \gset
UPDATE pulse_internal.lease SET cancel_by = now() - interval '1 s', lease_until = now() - interval '1 s', reap_at = NULL WHERE job = :job;
SELECT pulse.reap() AS n \gset
SELECT is(pg_temp.state(:job), 'cancelled', 'transition 12: running → cancelled, grace over, reap');
SELECT pg_temp.job('cancelling') AS job \gset
SELECT pg_temp.reap(:job) AS n \gset
SELECT is(
    pg_temp.state(:job), 'cancelled',
    'transition 12: running → cancelled, worker lost after a cancel request, reap'
);

-- Row 13

CREATE TEMPORARY TABLE waits AS
SELECT s.state, pg_temp.job(s.state) AS job
FROM unnest('{awaiting_approval,scheduled,ready,retrying}'::text []) AS s (state);
-- proves: T13
SELECT is(
    pulse.cancel(w.job), 'cancelled', format('transition 13: %s → cancelled, at once, cancel', w.state)
)
FROM waits AS w;

-- Row 14

CREATE TEMPORARY TABLE over AS
SELECT s.state, pg_temp.job(s.state) AS job
FROM unnest('{dead,cancelled}'::text []) AS s (state);
-- proves: T14
SELECT is(pulse.retry(o.job), 'ready', format('transition 14: %s → ready, retry', o.state))
FROM over AS o;
SELECT pg_temp.job('dead') AS job \gset
SELECT f.lease AS before, f.attempts FROM pulse_internal.finished AS f WHERE f.job = :job \gset
SELECT pulse.retry(:job) AS r, pg_temp.lane_of(:job) AS lane \gset
SELECT pg_temp.lane_of(:job) AS lane \gset
SELECT ok(
    (
        SELECT c.failures = 0 AND c.attempt = :attempts + 1 AND c.lease > :before
        FROM pulse.claim_batch('w', :'lane') AS c
    ),
    'transition 14: failures start again, attempts and leases go on growing'
);
SELECT pulse.enqueue('bulk', max_attempts => 1, lane => 'bulk') AS job FROM generate_series(1, 3) \g /dev/null
SELECT v.verdict FROM pulse.fail_batch(array(SELECT c.lease FROM pulse.claim_batch('w', 'bulk', 3) AS c)) AS v \g /dev/null
SELECT r.done FROM pulse.retry_where('{"kind": "bulk"}') AS r \gset
SELECT is(
    (SELECT count(*) FROM pulse.jobs AS j WHERE j.kind = 'bulk' AND j.state = 'ready'), 3::bigint,
    'transition 14: dead → ready, retry_where'
);

-- Row 15

CREATE TEMPORARY TABLE old AS
SELECT s.state, pg_temp.job(s.state) AS job
FROM unnest('{completed,dead,cancelled}'::text []) AS s (state);
SELECT pg_temp.age('8 days');
SELECT pulse.prune() AS n \gset
-- proves: T15
SELECT is(
    pg_temp.state(o.job), NULL, format('transition 15: %s → gone, older than its retention, prune', o.state)
)
FROM old AS o;

-- What must not happen: verbs by job id, in every state that does not allow them

CREATE TEMPORARY TABLE held AS
SELECT s.state, v.verb, pg_temp.job(s.state) AS job, v.call
FROM (
    VALUES
    ('approve', 'approve(%s)', '{scheduled,ready,running,retrying,completed,dead,cancelled}'::text []),
    ('reject', 'reject(%s)', '{scheduled,ready,running,retrying,completed,dead,cancelled}'),
    ('cancel', 'cancel(%s)', '{completed,dead}'),
    ('forced cancel', 'cancel(%s, force => true)', '{completed,dead}'),
    ('retry', 'retry(%s)', '{awaiting_approval,scheduled,ready,running,retrying,completed}'),
    ('delete_job', 'delete_job(%s)', '{awaiting_approval,scheduled,ready,running,retrying}')
) AS v (verb, call, states)
CROSS JOIN LATERAL unnest(v.states) AS s (state);
SELECT throws_ok(
    'SELECT pulse.' || format(h.call, h.job), 'PU105', NULL,
    format('a job that is %s allows no %s', h.state, h.verb)
)
FROM held AS h;
SELECT is_empty(
    'SELECT h.state, h.verb, pg_temp.state(h.job) FROM held AS h WHERE pg_temp.state(h.job) <> h.state',
    'and stays what it is'
);

-- And verbs by lease, once the run is over

CREATE TEMPORARY TABLE stale AS
SELECT s.how, v.verb, l.lease, v.call, l.job
FROM (
    VALUES ('completed'), ('failed'), ('dead'), ('snoozed'), ('cancelled by force'), ('reaped')
) AS s (how)
CROSS JOIN (
    VALUES ('complete', 'complete(%s)'), ('fail', 'fail(%s)'), ('snooze', 'snooze(%s, ''1 s'')'),
    ('ack_cancel', 'ack_cancel(%s)')
) AS v (verb, call)
CROSS JOIN LATERAL (
    -- Names the row outside, so that each row gets a job of its own.
    SELECT j.job, 0::bigint AS lease
    FROM (SELECT pg_temp.job('running') AS job WHERE s.how <> v.verb) AS j
) AS l
WHERE NOT (s.how = 'completed' AND v.verb = 'complete')
    AND NOT (s.how IN ('failed', 'dead') AND v.verb = 'fail')
    AND NOT (s.how = 'snoozed' AND v.verb = 'snooze');
UPDATE stale AS s SET lease = l.lease FROM pulse_internal.lease AS l WHERE l.job = s.job;
SELECT pulse.complete(s.lease) FROM stale AS s WHERE s.how = 'completed';
SELECT pulse.fail(s.lease) FROM stale AS s WHERE s.how = 'failed';
SELECT pulse.fail(s.lease, fatal => true) FROM stale AS s WHERE s.how = 'dead';
SELECT pulse.snooze(s.lease, '1 h') FROM stale AS s WHERE s.how = 'snoozed';
SELECT pulse.cancel(s.job, force => true) FROM stale AS s WHERE s.how = 'cancelled by force' \g /dev/null
SELECT pg_temp.reap(s.job) FROM stale AS s WHERE s.how = 'reaped' \g /dev/null
CREATE TEMPORARY TABLE before AS
SELECT s.job, pg_temp.state(s.job) AS state FROM stale AS s;
SELECT throws_ok(
    'SELECT pulse.' || format(s.call, s.lease), 'PU101', NULL,
    format('a run that was %s cannot %s', s.how, s.verb)
)
FROM stale AS s;
SELECT is_empty(
    'SELECT b.job FROM before AS b WHERE pg_temp.state(b.job) IS DISTINCT FROM b.state',
    'and its job stays what it is'
);
SELECT pulse.enqueue('k', lane => 'late', start_by => now() - interval '1 s') AS job \gset
-- proves: T16
SELECT is_empty(
    $$SELECT FROM pulse.claim_batch('w', 'late')$$, 'transition 16: a late job is not claimed'
);
SELECT is(pg_temp.state(:job), 'cancelled', 'transition 16: it is cancelled');
SELECT pg_temp.job('awaiting_approval') AS job \gset
SELECT pulse.cancel(:job) AS c \gset
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :job), 'PU105', NULL, 'an approve never undoes a cancel'
);
SELECT is(pg_temp.state(:job), 'cancelled', 'which stays');
SELECT pg_temp.job('cancelling') AS job \gset
SELECT pulse.ack_cancel(pg_temp.lease_of(:job));
SELECT pulse.retry(:job) AS r, pg_temp.lane_of(:job) AS lane \gset
SELECT c.lease FROM pulse.claim_batch('w', :'lane') AS c \gset
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'ok',
    'a cancel request does not survive a retry'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'every job stands in exactly one place');

-- 17

-- proves: T17
SELECT is(
    pulse.reschedule(pg_temp.job(s.state), clock_timestamp() + interval '2 h'), s.then_is,
    format('transition 17: %s → %s, reschedule', s.state, s.then_is)
)
FROM (
    VALUES ('ready', 'scheduled'), ('scheduled', 'scheduled'), ('retrying', 'retrying')
) AS s (state, then_is);
SELECT is(
    pulse.run_now(pg_temp.job('retrying')), 'ready', 'transition 5: retrying → ready, run_now'
);

-- 18 to 20: jobs that wait for jobs; flows/after.sql has every case

SELECT pulse.enqueue('k', lane => 'up') AS up \gset
-- proves: T18
SELECT is(
    pg_temp.state(pulse.enqueue('k', lane => 'down', after => ARRAY[:up], delay => d.delay, requires_approval => d.approval)),
    'blocked', 'transition 18: nothing → blocked'
)
FROM (VALUES (NULL::interval, false), ('1 h', false), (NULL, true)) AS d (delay, approval);
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'up') AS c \g /dev/null
-- proves: T19
SELECT bag_eq(
    $$SELECT j.state FROM pulse.jobs AS j WHERE j.lane = 'down'$$,
    $$VALUES ('ready'), ('scheduled'), ('awaiting_approval')$$,
    'transition 19: blocked → ready, scheduled, awaiting_approval'
);
SELECT pulse.enqueue('k', lane => 'up') AS up \gset
SELECT pulse.enqueue('k', lane => 'down', after => ARRAY[:up]) AS down \gset
SELECT is(pulse.cancel(:up), 'cancelled', 'the upstream is cancelled');
-- proves: T20
SELECT is(pg_temp.state(:down), 'cancelled', 'transition 20: blocked → cancelled, with its upstream');
SELECT is(pulse.retry(:down), 'blocked', 'transition 18: cancelled → blocked, retry');
SELECT is(pulse.cancel(:down), 'cancelled', 'transition 13: blocked → cancelled, cancel');
SELECT pulse.enqueue('k', lane => 'up') AS up \gset
SELECT pulse.enqueue('k', lane => 'down', after => ARRAY[:up], start_by => clock_timestamp() + interval '1 h') AS down \gset
UPDATE pulse_internal.body SET start_by = clock_timestamp() WHERE job = :down;
UPDATE pulse_internal.expiry SET start_by = (SELECT b.start_by FROM pulse_internal.body AS b WHERE b.job = :down) WHERE job = :down;
SELECT pulse_internal.tick_expiry('infinity') AS expired \gset
SELECT is(pg_temp.state(:down), 'cancelled', 'transition 16: blocked → cancelled, start_by');

SELECT is_empty('SELECT * FROM pulse.check()', 'and still every job stands in exactly one place');

SELECT * FROM finish();

ROLLBACK;
