-- Failing: charged, kept, retried or dead.
BEGIN;

SELECT plan(62);

-- Makes what waits in a lane due, and claims it.
CREATE FUNCTION pg_temp.again(lane text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_lease bigint;
BEGIN
    UPDATE pulse_internal.waiting AS w
    SET run_at = clock_timestamp() - interval '1 second'
    WHERE w.lane = again.lane;
    DELETE FROM pulse_internal.due_mark;
    SELECT c.lease INTO v_lease
    FROM pulse.claim_batch('w', again.lane) AS c;
    RETURN v_lease;
END;
$$;

-- Retried, with a backoff, until dead

SELECT pg_temp.claim('life') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT lives_ok(format('SELECT pulse.fail(%s, %L)', :lease, 'first'), 'a run fails');
SELECT is(pg_temp.state(:job), 'retrying', 'and is retried');
SELECT row_eq(
    format(
        'SELECT w.attempts, w.failures, w.retrying, w.last_lease, w.last_verb FROM pulse_internal.waiting AS w WHERE w.job = %s',
        :job
    ),
    ROW (1, 1, true, :lease::bigint, 'fail'::text COLLATE "C"), 'charged one failure'
);
SELECT ok(
    (
        SELECT w.run_at BETWEEN now() + interval '0.9 s' AND clock_timestamp() + interval '1.1 s'
        FROM pulse_internal.waiting AS w
        WHERE w.job = :job
    ),
    'after one second, give or take 10 %'
);
SELECT pg_temp.again('life') AS lease2 \gset
SELECT row_eq(
    format('SELECT l.attempt, l.failures FROM pulse_internal.lease AS l WHERE l.lease = %s', :lease2),
    ROW (2, 1), 'the second run has attempt 2'
);
SELECT pulse.fail(:lease2, 'second');
SELECT ok(
    (
        SELECT w.run_at - max(x.failed_at) BETWEEN interval '3.59 s' AND interval '4.42 s'
        FROM pulse_internal.waiting AS w
        JOIN pulse_internal.failure AS x USING (job)
        WHERE w.job = :job
        GROUP BY w.run_at
    ),
    'then after four'
);
SELECT pg_temp.again('life') AS lease3 \gset
SELECT pulse.fail(:lease3, 'third');
SELECT is(pg_temp.state(:job), 'dead', 'the third failure is the last: dead');
SELECT row_eq(
    format(
        'SELECT f.state, f.ended_by, f.attempts, f.failures, f.lease, f.error FROM pulse_internal.finished AS f WHERE f.job = %s',
        :job
    ),
    ROW (
        'dead'::pulse_internal.outcome, 'fail'::text COLLATE "C", 3, 3, :lease3::bigint, 'third'::text
    ),
    'with its last error'
);
-- proves: G7
SELECT results_eq(
    format(
        'SELECT x.attempt, x.error, x.lease, x.worker FROM pulse_internal.failure AS x WHERE x.job = %s ORDER BY x.attempt',
        :job
    ),
    format(
        'VALUES (1, ''first'', %s::bigint, ''w''), (2, ''second'', %s, ''w''), (3, ''third'', %s, ''w'')',
        :lease, :lease2, :lease3
    ),
    'guarantee 7: the error of every attempt is kept'
);
-- proves: G16
SELECT lives_ok(
    format('SELECT pulse.fail(%s)', :lease3), 'guarantee 16: the last report succeeds again'
);
SELECT throws_ok(
    format('SELECT pulse.fail(%s)', :lease), 'PU101', NULL, 'an older one is lost'
);
-- proves: R12
SELECT throws_ok(
    format('SELECT pulse.complete(%s)', :lease3), 'PU101', NULL,
    'rule 12: another verb with that lease is lost'
);

-- Repeated, while it waits and when it is due

SELECT pg_temp.claim('repeat') AS lease \gset
SELECT pulse.fail(:lease, 'once');
SELECT lives_ok(
    format('SELECT pulse.fail(%s, %L)', :lease, 'twice'), 'a repeated report succeeds'
);
SELECT results_eq(
    'SELECT w.failures FROM pulse_internal.waiting AS w WHERE w.lane = ''repeat''', 'VALUES (1)',
    'and is not charged again'
);
SELECT results_eq(
    format('SELECT x.error FROM pulse_internal.failure AS x WHERE x.lease = %s', :lease),
    $$VALUES ('once')$$, 'the first error is kept'
);
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s' WHERE lane = 'repeat';
DELETE FROM pulse_internal.due_mark;
SELECT is(pulse_internal.promote('repeat', 10), 1, 'the job becomes ready');
SELECT lives_ok(
    format('SELECT pulse.fail(%s)', :lease), 'the report still succeeds again'
);
SELECT throws_ok(
    format('SELECT pulse.snooze(%s, %L)', :lease, '1 s'), 'PU101', NULL, 'another verb does not'
);
SELECT pg_temp.again('repeat') AS lease2 \gset
-- proves: G3
SELECT throws_ok(
    format('SELECT pulse.fail(%s)', :lease), 'PU101', NULL,
    'guarantee 3: once claimed again, the old lease is lost'
);
SELECT throws_ok('SELECT pulse.fail(711)', 'PU101', NULL, 'no such lease is lost');
SELECT throws_ok('SELECT pulse.fail(NULL)', 'PU101', NULL, 'so is none');

-- How it says

SELECT pg_temp.claim('fatal') AS lease \gset
SELECT pulse.fail(:lease, 'no way', fatal => true);
SELECT row_eq(
    'SELECT f.state, f.attempts, f.failures, f.error FROM pulse_internal.finished AS f WHERE f.lane = ''fatal''',
    ROW ('dead'::pulse_internal.outcome, 1, 1, 'no way'::text), 'a fatal failure is dead at once'
);
SELECT pg_temp.claim('maybe') AS lease \gset
SELECT pulse.fail(:lease, 'perhaps', fatal => NULL);
SELECT is((SELECT count(*) FROM pulse_internal.waiting AS w WHERE w.lane = 'maybe'), 1::bigint, 'fatal NULL is not fatal');
SELECT pg_temp.claim('retry-in') AS lease \gset
SELECT pulse.fail(:lease, retry_in => '5 min');
SELECT ok(
    (
        SELECT w.run_at - clock_timestamp() BETWEEN interval '290 s' AND interval '300 s'
        FROM pulse_internal.waiting AS w WHERE w.lane = 'retry-in'
    ),
    'retry_in goes before the backoff'
);
SELECT results_eq(
    format('SELECT x.error FROM pulse_internal.failure AS x WHERE x.lease = %s', :lease),
    $$VALUES ('failed')$$, 'a failure without an error says failed'
);
SELECT pg_temp.claim('at-once') AS lease \gset
SELECT pulse.fail(:lease, retry_in => '0');
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'at-once')), 1::bigint, 'retry_in 0 is due at once');
SELECT pg_temp.claim('only-one', max_attempts => 1) AS lease \gset
SELECT pulse.fail(:lease, retry_in => '1 s');
SELECT is(
    (SELECT f.state FROM pulse_internal.finished AS f WHERE f.lane = 'only-one'), 'dead'::pulse_internal.outcome,
    'with one attempt the first failure is the last, retry_in or not'
);
SELECT pulse.set_kind('k', backoff => 'fixed', backoff_base => '20 s', backoff_jitter => 0);
SELECT pg_temp.claim('kind') AS lease \gset
SELECT pulse.fail(:lease);
SELECT ok(
    (
        SELECT w.run_at - clock_timestamp() BETWEEN interval '10 s' AND interval '20 s'
        FROM pulse_internal.waiting AS w WHERE w.lane = 'kind'
    ),
    'the backoff is that of the kind'
);
SELECT pulse.set_kind('k', backoff => 'none');
SELECT pg_temp.again('kind') AS lease \gset
SELECT pulse.fail(:lease);
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'kind')), 1::bigint, 'or none at all');
SELECT pulse.set_kind('k', backoff => 'exponential');
SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'kind' \gset
UPDATE pulse_internal.lease SET failures = 1 WHERE lease = :lease;
SELECT pulse.fail(:lease);
SELECT is(
    (SELECT round(extract(epoch FROM w.run_at - clock_timestamp()), -1) FROM pulse_internal.waiting AS w WHERE w.lane = 'kind'),
    60::numeric, 'or exponential, capped at a minute'
);

-- The list of errors is capped.

SELECT pulse.enqueue('k', lane => 'often', max_attempts => 1000) AS job \gset
SELECT pulse.set_kind('k', backoff => 'none');
DO $$
DECLARE
    v_lease bigint;
BEGIN
    FOR v_run IN 1..105 LOOP
        SELECT c.lease INTO v_lease
        FROM pulse.claim_batch('w', 'often') AS c;
        PERFORM pulse.fail(v_lease, 'error ' || v_run);
    END LOOP;
END;
$$;
SELECT results_eq(
    format('SELECT count(*), min(x.attempt), max(x.attempt) FROM pulse_internal.failure AS x WHERE x.job = %s', :job),
    'VALUES (100::bigint, 6, 105)', 'guarantee 7: the newest 100 errors are kept'
);

-- Sizes and bounds

SELECT pg_temp.claim('size') AS lease \gset
SELECT throws_ok(
    format('SELECT pulse.fail(%s, repeat(%L, 1048577))', :lease, 'x'), 'PU003', NULL,
    'an error above 1 MB is refused'
);
SELECT throws_ok(
    format('SELECT pulse.fail(%s, repeat(%L, 524289))', :lease, 'ü'), 'PU003', NULL,
    'in bytes, not in characters'
);
SELECT throws_ok(
    format('SELECT pulse.fail(%s, retry_in => %L)', :lease, r.pause), 'PU002', NULL,
    format('retry_in %s is refused', r.pause)
)
FROM unnest('{-1 s,2 years,-100 years}'::text []) AS r (pause);
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'ok', 'and the job runs on'
);
SELECT lives_ok(
    format('SELECT pulse.fail(%s, repeat(%L, 1048576))', :lease, 'x'), '1 MB is taken'
);

-- Batches

SELECT pulse.set_kind('k', backoff => 'quadratic');
SELECT pg_temp.claim('batch', 'b' || n) AS lease FROM generate_series(1, 5) AS n \g /dev/null
SELECT array_agg(l.lease ORDER BY l.lease) AS b FROM pulse_internal.lease AS l WHERE l.lane = 'batch' \gset
SELECT results_eq(
    format(
        $$
        SELECT v.lease, v.verdict
        FROM pulse.fail_batch(
            %1$L::bigint [] || ARRAY[NULL, 711, (%1$L::bigint [])[1]],
            ARRAY['one', repeat('x', 1048577), NULL, 'four', 'five'],
            ARRAY['1 h', NULL, NULL, NULL, '2 h']::interval [],
            ARRAY[false, true, NULL, true]
        ) AS v
        $$, :'b'
    ),
    format(
        $$
        SELECT x.lease, x.verdict
        FROM unnest(
            %1$L::bigint [] || ARRAY[NULL, 711, (%1$L::bigint [])[1]],
            '{ok,too_large,ok,ok,ok,lost,lost,ok}'::text []
        ) AS x (lease, verdict)
        $$, :'b'
    ),
    'a batch has a verdict for each lease, in order'
);
SELECT results_eq(
    'SELECT x.error FROM pulse_internal.failure AS x JOIN pulse_internal.body AS b USING (job) WHERE b.unique_key LIKE ''b_'' ORDER BY x.lease',
    $$VALUES ('one'), ('failed'), ('four'), ('five')$$, 'each with the error at its place'
);
SELECT results_eq(
    $$
    SELECT round(extract(epoch FROM w.run_at - clock_timestamp()) / 3600)
    FROM pulse_internal.waiting AS w
    WHERE w.lane = 'batch'
    ORDER BY w.last_lease
    $$,
    'VALUES (1::numeric), (0), (2)', 'its retry_in'
);
SELECT is(
    (SELECT f.lease FROM pulse_internal.finished AS f WHERE f.lane = 'batch'), (:'b'::bigint [])[4],
    'and whether it is fatal'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.job_key AS k WHERE k.lane = 'batch'), 4::bigint,
    'only the dead one has given its key back'
);
SELECT is(
    (SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'batch'), (:'b'::bigint [])[2],
    'the one whose error is too large runs on'
);
SELECT results_eq(
    format('SELECT v.verdict FROM pulse.fail_batch(%L) AS v', :'b'),
    $$VALUES ('ok'), ('ok'), ('ok'), ('ok'), ('ok')$$, 'repeated, all are ok'
);
SELECT pulse.enqueue('k', lane => 'quiet') FROM generate_series(1, 3) \g /dev/null
SELECT array_agg(c.lease) AS q FROM pulse.claim_batch('w', 'quiet', 3) AS c \gset
SELECT is_empty(
    format('SELECT * FROM pulse.fail_batch((%L::bigint [])[1:2], quiet => true)', :'q'),
    'quiet: what is ok is not said'
);
SELECT results_eq(
    format('SELECT v.lease, v.verdict FROM pulse.fail_batch(%L::bigint [] || 1::bigint, quiet => true) AS v', :'q'),
    $$VALUES (1::bigint, 'lost')$$, 'only what is not, also beside repeated reports'
);
SELECT is_empty(
    $$SELECT * FROM pulse_internal.lease AS l WHERE l.lane = 'quiet'$$, 'and the rest is done'
);
SELECT is_empty($$SELECT * FROM pulse.fail_batch('{}')$$, 'an empty batch is nothing');
SELECT is_empty('SELECT * FROM pulse.fail_batch(NULL)', 'nor is NULL');
SELECT results_eq(
    $$SELECT v.verdict FROM pulse.fail_batch('{NULL}', '{a,b,c}') AS v$$, $$VALUES ('lost')$$,
    'more errors than leases do no harm'
);
SELECT pg_temp.claim('twice') AS lease \gset
SELECT results_eq(
    format('SELECT v.verdict FROM pulse.fail_batch(ARRAY[%1$s, %1$s], ARRAY[''x'', ''y'']) AS v', :lease),
    $$VALUES ('ok'), ('ok')$$, 'a lease named twice fails once'
);
SELECT results_eq(
    $$SELECT w.failures, f.error FROM pulse_internal.waiting AS w JOIN pulse_internal.failure AS f USING (job) WHERE w.lane = 'twice'$$,
    $$VALUES (1, 'x')$$, 'charged once, with the first error'
);
SELECT pg_temp.claim('odd') AS first, pg_temp.claim('odd') AS second \gset
SELECT results_eq(
    format(
        'SELECT v.verdict FROM pulse.fail_batch(ARRAY[%s, %s], (''[0:1]={x,'' || repeat(''y'', 1048577) || ''}'')::text [], fatal => ''[0:1]={f,t}'') AS v',
        :first, :second
    ),
    $$VALUES ('ok'), ('too_large')$$, 'errors are read by their place, wherever the array begins'
);
SELECT row_eq(
    format('SELECT w.retrying, f.error FROM pulse_internal.waiting AS w JOIN pulse_internal.failure AS f USING (job) WHERE f.lease = %s', :first),
    ROW(true, 'x'::text), 'so nothing too large gets in beside one that was measured'
);
SELECT pg_temp.claim('all-or-none') AS lease \gset
SELECT throws_ok(
    format('SELECT pulse.fail_batch(ARRAY[%1$s, 1], retry_in => ARRAY[''1 s'', ''-1 s'']::interval [])', :lease),
    'PU002', NULL, 'a bad retry_in refuses the batch'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = :lease), 1::bigint, 'as a whole'
);

-- After a cancel request

SELECT pg_temp.claim('cancelled', 'c') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT pulse.cancel(:job, 'enough') AS c \gset
SELECT pulse.fail(:lease, 'stopped');
SELECT is(
    pg_temp.state(:job), 'cancelled', 'a run that fails after a cancel request is cancelled'
);
SELECT row_eq(
    format('SELECT f.ended_by, f.error, f.failures FROM pulse_internal.finished AS f WHERE f.job = %s', :job),
    ROW ('fail'::text COLLATE "C", 'enough'::text, 1), 'for the reason of the request'
);
SELECT is_empty(
    'SELECT * FROM pulse_internal.job_key WHERE lane = ''cancelled''', 'and gives its key back'
);
SELECT lives_ok(format('SELECT pulse.fail(%s)', :lease), 'its report succeeds again');
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
