-- Reaping: the one way back for a run whose worker is gone.
BEGIN;

SELECT plan(47);

-- The lease lapses a second ago.
CREATE FUNCTION pg_temp.lapse(lease bigint)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.lease AS l
    SET lease_until = now() - interval '1 second',
        reap_at = least(l.reap_at, now() - interval '1 second')
    WHERE l.lease = lapse.lease
$$;

-- Only what has lapsed

SELECT pg_temp.claim('alive') AS alive \gset
SELECT is(pulse.reap(), 0::bigint, 'a lease that holds is left alone');
SELECT is(
    (SELECT l.reap_at FROM pulse_internal.lease AS l WHERE l.lease = :alive),
    (SELECT l.lease_until FROM pulse_internal.lease AS l WHERE l.lease = :alive),
    'but reap will look when it ends'
);
SELECT pg_temp.claim('gone') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pg_temp.lapse(:lease);
SELECT is(pulse.reap(), 1::bigint, 'one that has lapsed is ended');
SELECT is(pulse.reap(), 0::bigint, 'once');
SELECT is(pg_temp.state(:job), 'retrying', 'its job is retried');
-- proves: G6
SELECT row_eq(
    format(
        'SELECT w.attempts, w.failures, w.retrying, w.last_lease, w.last_verb FROM pulse_internal.waiting AS w WHERE w.job = %s',
        :job
    ),
    ROW (1, 1, true, :lease::bigint, 'reap'::text COLLATE "C"),
    'guarantee 6: the crash is charged'
);
-- proves: G4
SELECT results_eq(
    format('SELECT x.error, x.attempt, x.worker FROM pulse_internal.failure AS x WHERE x.job = %s', :job),
    $$VALUES ('worker lease expired', 1, 'w')$$, 'guarantee 4: worker lease expired, it says'
);
SELECT ok(
    (
        SELECT w.run_at - x.failed_at BETWEEN interval '0.89 s' AND interval '1.12 s'
        FROM pulse_internal.waiting AS w
        JOIN pulse_internal.failure AS x USING (job)
        WHERE w.job = :job
    ),
    'after the normal backoff'
);
-- proves: G3
SELECT throws_ok(
    format('SELECT pulse.%s', v.call), 'PU101', NULL,
    format('guarantee 3: %s of a reaped lease is lost', split_part(v.call, '(', 1))
)
FROM (
    VALUES
    (format('complete(%s)', :lease)), (format('fail(%s)', :lease)),
    (format('snooze(%s, ''1 s'')', :lease)), (format('progress(%s, 1)', :lease)),
    (format('checkpoint(%s, ''{}'')', :lease)), (format('ack_cancel(%s)', :lease))
) AS v (call);
SELECT is(
    (SELECT r.verdict FROM pulse.release(ARRAY[:lease]) AS r), 'lost', 'release too'
);
SELECT is((SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'lost', 'and heartbeat');

-- Until dead

SELECT pg_temp.claim('killer', 'key') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
DO $$
BEGIN
    FOR v_run IN 1..3 LOOP
        UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s', reap_at = NULL
        WHERE lane = 'killer';
        DELETE FROM pulse_internal.upkeep_run;
        PERFORM pulse.reap();
        UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s'
        WHERE lane = 'killer';
        DELETE FROM pulse_internal.due_mark;
        PERFORM pulse.claim_batch('w', 'killer');
    END LOOP;
END;
$$;
SELECT is(
    pg_temp.state(:job), 'dead', 'guarantee 6: a job that kills its workers ends dead'
);
SELECT row_eq(
    format('SELECT f.attempts, f.failures, f.ended_by, f.error FROM pulse_internal.finished AS f WHERE f.job = %s', :job),
    ROW (3, 3, 'reap'::text COLLATE "C", 'worker lease expired'::text), 'after max_attempts'
);
SELECT is_empty('SELECT * FROM pulse_internal.job_key WHERE lane = ''killer''', 'and gives its key back');

-- Heartbeats move the time of the look, not the other way round.

SELECT pg_temp.lapse(:alive);
SELECT h.verdict FROM pulse.heartbeat(ARRAY[:alive]) AS h \gset
SELECT is(pulse.reap(), 0::bigint, 'a lease that was revived in time is left alone');
SELECT is(
    (SELECT l.reap_at = l.lease_until FROM pulse_internal.lease AS l WHERE l.lease = :alive), true,
    'and looked at again when it ends'
);

-- A wedged handler

SELECT pg_temp.claim('wedged', max_runtime => '1 h') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
UPDATE pulse_internal.lease
SET deadline = now() - interval '1 s', lease_until = now() - interval '1 s',
    reap_at = now() - interval '1 s'
WHERE lease = :lease;
SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h \gset
SELECT is(:'verdict'::text, 'deadline', 'a run past max_runtime beats on');
-- proves: G5
SELECT is(pulse.reap(), 1::bigint, 'guarantee 5: and is ended all the same');
SELECT is(
    (SELECT x.error FROM pulse_internal.failure AS x WHERE x.job = :job), 'max_runtime exceeded',
    'with an error that says so'
);

-- Cancel requests

SELECT pg_temp.claim('asked', 'key') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pulse.cancel(:job, 'no more') AS c \gset
SELECT is(pulse.reap(), 0::bigint, 'within the grace a run is left alone');
UPDATE pulse_internal.lease
SET cancel_by = now() - interval '1 s', lease_until = now() - interval '1 s',
    reap_at = now() - interval '1 s'
WHERE lease = :lease;
SELECT is(pulse.reap(), 1::bigint, 'when the grace is over it is ended');
SELECT row_eq(
    format('SELECT f.state, f.ended_by, f.error FROM pulse_internal.finished AS f WHERE f.job = %s', :job),
    ROW ('cancelled'::pulse_internal.outcome, 'reap'::text COLLATE "C", 'no more'::text),
    'cancelled, for the reason that was given'
);
SELECT is_empty('SELECT * FROM pulse_internal.job_key WHERE lane = ''asked''', 'and its key is free');
SELECT pg_temp.claim('lost-after') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pulse.cancel(:job) AS c \gset
SELECT pg_temp.lapse(:lease);
SELECT is(pulse.reap(), 1::bigint, 'a worker lost after a cancel request');
SELECT is(pg_temp.state(:job), 'cancelled', 'leaves a cancelled job, not a retry');

-- New leases become known by number, however they came.

SELECT pg_temp.claim('new') AS lease \gset
SELECT is(
    (SELECT l.reap_at FROM pulse_internal.lease AS l WHERE l.lease = :lease), NULL,
    'a short job never enters the index of reap'
);
UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s' WHERE lease = :lease;
SELECT is(pulse.reap(), 1::bigint, 'the sweep finds it when it has lapsed');
SELECT pg_temp.claim('bulk') AS lease FROM generate_series(1, 30) \g /dev/null
UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s' WHERE lane = 'bulk';
SELECT is(pulse.reap(7), 7::bigint, 'reap takes at most so many');
SELECT is((pulse_internal.reap(3)).ended, 3, 'in each step too');
SELECT is(pulse.reap(), 20::bigint, 'and then the rest');
SELECT is(
    (SELECT count(*) FROM pulse_internal.waiting AS w WHERE w.lane = 'bulk'), 30::bigint, 'none is lost'
);
DELETE FROM pulse_internal.upkeep_run;
SELECT pg_temp.claim('restored') AS lease \gset
SELECT pg_temp.lapse(:lease);
DELETE FROM pulse_internal.upkeep_run;
DELETE FROM pulse_internal.horizon;
SELECT is(pulse.reap(), 1::bigint, 'a restored database reaps without what tick remembered');

-- By a claim

SELECT pg_temp.claim('by-claim') AS lease \gset
SELECT pg_temp.lapse(:lease);
DELETE FROM pulse_internal.upkeep_run WHERE step IN ('sweep', 'inline');
SELECT is(pulse_internal.reap_if_overdue(1), 1, 'when nobody swept, a claim does');
SELECT pg_temp.claim('by-claim-2') AS lease \gset
SELECT pg_temp.lapse(:lease);
SELECT is(pulse_internal.reap_if_overdue(1), 0, 'not when another session did so lately');
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '16 s' WHERE step IN ('sweep', 'inline');
SELECT is(pulse_internal.reap_if_overdue(1), 1, 'again after 15 seconds');
SELECT pg_temp.claim('by-claim-3') AS lease \gset
SELECT pg_temp.lapse(:lease);
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at + interval '1 h' WHERE step IN ('sweep', 'inline');
SELECT is(pulse_internal.reap_if_overdue(1), 1, 'and when the clock stepped back');

DELETE FROM pulse_internal.upkeep_run;
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT pg_temp.claim('by-claim-4') AS lease \gset
SELECT pg_temp.lapse(:lease);
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '14 s';
SELECT is(pulse_internal.reap_if_overdue(1), 0, 'while tick sweeps, claims leave it to tick');

SELECT throws_ok(
    format('SELECT pulse.reap(%s)', coalesce(n.n, 'NULL')), 'PU002', NULL,
    format('reap(%s) is refused', coalesce(n.n, 'NULL'))
)
FROM unnest('{NULL,0,-1,1000001}'::text []) AS n (n);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
