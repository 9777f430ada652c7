-- Giving back: release and snooze are not charged.
BEGIN;

SELECT plan(41);

CREATE FUNCTION pg_temp.release(VARIADIC leases bigint [])
RETURNS text []
LANGUAGE sql
AS $$ SELECT array_agg(r.verdict) FROM pulse.release(release.leases) AS r $$;

-- release

SELECT pg_temp.claim('one') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT is(pg_temp.release(:lease), '{ok}', 'a run is given back');
SELECT is(pg_temp.state(:job), 'ready', 'and is ready at once');
-- proves: G6
SELECT row_eq(
    format(
        'SELECT r.attempts, r.failures, r.last_lease, r.last_verb FROM pulse_internal.ready AS r WHERE r.job = %s',
        :job
    ),
    ROW (1, 0, :lease::bigint, 'release'::text COLLATE "C"),
    'guarantee 6: not charged, though the attempt counts on'
);
-- proves: G16
SELECT is(pg_temp.release(:lease), '{ok}', 'guarantee 16: a repeated release is ok');
SELECT is((SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'one'), 1::bigint, 'once');
-- proves: R12
SELECT throws_ok(
    format('SELECT pulse.%s', v.call), 'PU101', NULL,
    format('rule 12: %s of a released lease is lost', split_part(v.call, '(', 1))
)
FROM (
    VALUES
    (format('complete(%s)', :lease)), (format('fail(%s)', :lease)),
    (format('snooze(%s, ''1 s'')', :lease)), (format('ack_cancel(%s)', :lease)),
    (format('progress(%s, 1)', :lease))
) AS v (call);
SELECT c.lease AS lease2, c.attempt FROM pulse.claim_batch('w', 'one') AS c \gset
SELECT is(:attempt, 2, 'the next run has the next attempt');
SELECT is(pg_temp.release(:lease), '{lost}', 'and then the old lease is lost');
SELECT is(
    pg_temp.release(:lease2, NULL, 711, :lease2), '{ok,lost,lost,ok}',
    'one verdict for each lease, in order, twice where named twice'
);
SELECT is(pg_temp.release(VARIADIC '{}'), NULL, 'none for none');
SELECT is(pg_temp.release(VARIADIC NULL), NULL, 'nor for NULL');

-- However often

SELECT pg_temp.claim('often', max_attempts => 1) AS lease \gset
DO $$
BEGIN
    FOR v_round IN 1..20 LOOP
        PERFORM pulse.release(array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'often'));
        PERFORM pulse.claim_batch('w', 'often');
    END LOOP;
END;
$$;
SELECT results_eq(
    'SELECT l.attempt, l.failures FROM pulse_internal.lease AS l WHERE l.lane = ''often''',
    'VALUES (21, 0)', 'twenty rolling deploys kill no job, even with one attempt'
);

-- snooze

SELECT pg_temp.claim('nap', 'key') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT lives_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease, '10 minutes'), 'a run is put off'
);
SELECT is(pg_temp.state(:job), 'scheduled', 'and is scheduled');
SELECT ok(
    (
        SELECT w.run_at - clock_timestamp() BETWEEN interval '590 s' AND interval '600 s'
            AND w.attempts = 1 AND w.failures = 0 AND NOT w.retrying AND w.keyed
        FROM pulse_internal.waiting AS w WHERE w.job = :job
    ),
    'guarantee 6: for that long, not charged'
);
SELECT lives_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease, '1 second'),
    'guarantee 16: a repeated snooze succeeds'
);
SELECT ok(
    (SELECT w.run_at > clock_timestamp() + interval '9 min' FROM pulse_internal.waiting AS w WHERE w.job = :job),
    'and changes nothing'
);
SELECT throws_ok(
    format('SELECT pulse.complete(%s)', :lease), 'PU101', NULL,
    'rule 12: another verb with that lease is lost'
);
SELECT is(pg_temp.release(:lease), '{lost}', 'release too');
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s' WHERE job = :job;
DELETE FROM pulse_internal.due_mark;
SELECT is(pulse_internal.promote('nap', 1), 1, 'when it is due it is promoted');
SELECT lives_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease, '1 second'), 'the report still succeeds again'
);
SELECT c.lease AS lease2 FROM pulse.claim_batch('w', 'nap') AS c \gset
-- proves: G3
SELECT throws_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease, '1 second'), 'PU101', NULL,
    'guarantee 3: until the job is claimed again'
);
SELECT pulse.snooze(:lease2, '0');
SELECT is(pg_temp.state(:job), 'ready', 'a snooze of nothing is ready at once');
SELECT throws_ok('SELECT pulse.snooze(711, ''1 s'')', 'PU101', NULL, 'no such lease is lost');
SELECT throws_ok('SELECT pulse.snooze(NULL, ''1 s'')', 'PU101', NULL, 'so is none');
SELECT c.lease AS lease2 FROM pulse.claim_batch('w', 'nap') AS c \gset
SELECT throws_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease2, d.delay), 'PU002', NULL,
    format('a delay of %s is refused', coalesce(d.delay, 'NULL'))
)
FROM unnest('{NULL,-1 s,2 years,-178000000 years}'::text []) AS d (delay);
SELECT is(pg_temp.state(:job), 'running', 'and the job runs on');

-- After a cancel request, giving back is as good as acknowledging it.

SELECT pulse.cancel(:job, 'enough') AS c \gset
SELECT pulse.snooze(:lease2, '1 h');
SELECT row_eq(
    format('SELECT f.state, f.ended_by, f.error, f.failures FROM pulse_internal.finished AS f WHERE f.job = %s', :job),
    ROW ('cancelled'::pulse_internal.outcome, 'snooze'::text COLLATE "C", 'enough'::text, 0),
    'a snoozed job that was to be cancelled is cancelled'
);
SELECT is_empty('SELECT * FROM pulse_internal.job_key WHERE lane = ''nap''', 'and gives its key back');
SELECT lives_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease2, '1 h'), 'its report succeeds again'
);
SELECT pg_temp.claim('stop') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pulse.cancel(:job) AS c \gset
SELECT is(pg_temp.release(:lease), '{ok}', 'so is one that is released');
SELECT is(pg_temp.state(:job), 'cancelled', 'it must not run again');
SELECT is(pg_temp.release(:lease), '{ok}', 'and the release is ok again');
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
