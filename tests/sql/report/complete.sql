-- Completing: the fence, repeated reports, batches.
BEGIN;

SELECT plan(41);

SELECT pg_temp.claim('one') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT lives_ok(
    format('SELECT pulse.complete(%s, %L)', :lease, '{"sum": 3}'), 'a lease completes its job'
);
SELECT row_eq(
    format(
        'SELECT f.state, f.ended_by, f.attempts, f.failures, f.lease, f.worker, f.result, f.error FROM pulse_internal.finished AS f WHERE f.job = %s',
        :job
    ),
    ROW (
        'completed'::pulse_internal.outcome, 'complete'::text COLLATE "C", 1, 0, :lease::bigint,
        'w'::text, '{"sum": 3}'::jsonb, NULL::text
    ),
    'with its result'
);
SELECT is_empty('SELECT * FROM pulse_internal.lease', 'and is running no more');
SELECT ok(
    (SELECT f.finished_at >= f.claimed_at FROM pulse_internal.finished AS f WHERE f.job = :job),
    'by the clock'
);

SELECT pg_temp.claim('odd') AS odd \gset
SELECT results_eq(
    format('SELECT v.verdict FROM pulse.complete_batch(''[5:5]={%s}'') AS v', :odd),
    ARRAY['ok'], 'a list of one lease, wherever its bounds are'
);

-- Again

-- proves: G16
SELECT lives_ok(
    format('SELECT pulse.complete(%s, %L)', :lease, '{"sum": 4}'),
    'guarantee 16: the same report succeeds again'
);
SELECT is(
    (SELECT f.result FROM pulse_internal.finished AS f WHERE f.job = :job), '{"sum": 3}'::jsonb,
    'and changes nothing'
);
-- proves: R12
SELECT throws_ok(
    format('SELECT pulse.%s', v.call), 'PU101', NULL,
    format('rule 12: %s of a lease that completed is lost', split_part(v.call, '(', 1))
)
FROM (
    VALUES
    (format('fail(%s)', :lease)), (format('snooze(%s, ''1 s'')', :lease)),
    (format('ack_cancel(%s)', :lease)), (format('progress(%s, 1)', :lease)),
    (format('checkpoint(%s, ''{}'')', :lease))
) AS v (call);
SELECT is(
    (SELECT r.verdict FROM pulse.release(ARRAY[:lease]) AS r), 'lost',
    'rule 12: release of a lease that completed is lost'
);
SELECT throws_ok('SELECT pulse.complete(711)', 'PU101', NULL, 'no such lease is lost');
SELECT throws_ok('SELECT pulse.complete(NULL)', 'PU101', NULL, 'so is none');
SELECT throws_ok('SELECT pulse.complete(-1)', 'PU101', NULL, 'and a negative one');

-- The fence

SELECT pg_temp.claim('fence') AS stale \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 s' WHERE lease = :stale;
SELECT pulse.reap() AS n \gset
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s';
DELETE FROM pulse_internal.due_mark;
SELECT c.lease AS fresh FROM pulse.claim_batch('w', 'fence') AS c \gset
-- proves: G3
SELECT throws_ok(
    format('SELECT pulse.complete(%s)', :stale), 'PU101', NULL,
    'guarantee 3: a lost lease completes nothing, though the same worker has the job again'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = :fresh), 1::bigint,
    'which goes on under its new lease'
);
SELECT lives_ok(format('SELECT pulse.complete(%s)', :fresh), 'and is completed with that');
SELECT pg_temp.claim('late') AS lease \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 h' WHERE lease = :lease;
-- proves: R8
SELECT lives_ok(
    format('SELECT pulse.complete(%s)', :lease),
    'rule 8: a lapsed lease that nobody took away still completes'
);

-- Size

SELECT pg_temp.claim('size') AS lease \gset
SELECT throws_ok(
    format('SELECT pulse.complete(%s, to_jsonb(repeat(%L, 1048577)))', :lease, 'x'),
    'PU003', NULL, 'a result above 1 MB is refused'
);
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'ok', 'and the job runs on'
);
SELECT lives_ok(
    format('SELECT pulse.complete(%s, to_jsonb(repeat(%L, 1048000)))', :lease, 'x'),
    'one below is taken'
);

-- Batches

SELECT pg_temp.claim('batch', 'b' || n) AS lease FROM generate_series(1, 4) AS n \g /dev/null
SELECT array_agg(l.lease ORDER BY l.lease) AS b FROM pulse_internal.lease AS l WHERE l.lane = 'batch' \gset
SELECT results_eq(
    format(
        $$
        SELECT v.lease, v.verdict
        FROM pulse.complete_batch(
            %1$L::bigint [] || ARRAY[NULL, 711, (%1$L::bigint [])[1]],
            ARRAY['1', to_jsonb(repeat('x', 1048577)), NULL, '4']::jsonb []
        ) AS v
        $$, :'b'
    ),
    format(
        $$
        SELECT x.lease, x.verdict
        FROM unnest(
            %1$L::bigint [] || ARRAY[NULL, 711, (%1$L::bigint [])[1]],
            '{ok,too_large,ok,ok,lost,lost,ok}'::text []
        ) AS x (lease, verdict)
        $$, :'b'
    ),
    'a batch has a verdict for each lease, in order'
);
SELECT results_eq(
    'SELECT f.result FROM pulse_internal.finished AS f WHERE f.lane = ''batch'' ORDER BY f.lease',
    $$VALUES ('1'::jsonb), (NULL), ('4')$$, 'each with the result at its place'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lane = 'batch'), 1::bigint,
    'the one that is too large runs on'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.job_key AS k WHERE k.lane = 'batch'), 1::bigint,
    'the others have given their keys back'
);
SELECT results_eq(
    format('SELECT v.verdict FROM pulse.complete_batch(%L) AS v', :'b'),
    $$VALUES ('ok'), ('ok'), ('ok'), ('ok')$$,
    'repeated, all are ok; without results the rest completes too'
);
SELECT pulse.enqueue('k', lane => 'quiet') FROM generate_series(1, 3) \g /dev/null
SELECT array_agg(c.lease) AS q FROM pulse.claim_batch('w', 'quiet', 3) AS c \gset
SELECT is_empty(
    format('SELECT * FROM pulse.complete_batch((%L::bigint [])[1:2], quiet => true)', :'q'),
    'quiet: what is ok is not said'
);
SELECT results_eq(
    format('SELECT v.lease, v.verdict FROM pulse.complete_batch(%L::bigint [] || 1::bigint, quiet => true) AS v', :'q'),
    $$VALUES (1::bigint, 'lost')$$, 'only what is not, also beside repeated reports'
);
SELECT is_empty(
    $$SELECT * FROM pulse_internal.lease AS l WHERE l.lane = 'quiet'$$, 'and the rest is done'
);
SELECT is_empty($$SELECT * FROM pulse.complete_batch('{}')$$, 'an empty batch is nothing');
SELECT is_empty('SELECT * FROM pulse.complete_batch(NULL)', 'nor is NULL');
SELECT results_eq(
    $$SELECT v.verdict FROM pulse.complete_batch('{NULL,NULL}', ARRAY['1', '2', '3']::jsonb []) AS v$$,
    $$VALUES ('lost'), ('lost')$$, 'more results than leases do no harm'
);
SELECT pulse.enqueue('k', lane => 'mixed') FROM generate_series(1, 3) \g /dev/null
SELECT c.lease AS l1 FROM pulse.claim_batch('w', 'mixed') AS c \gset
SELECT c.lease AS l2 FROM pulse.claim_batch('w', 'mixed') AS c \gset
SELECT c.lease AS l3 FROM pulse.claim_batch('w', 'mixed') AS c \gset
SELECT count(*) FROM pulse.complete_batch(ARRAY[:l3, NULL, :l1, 711, :l2, :l1], ARRAY['3', '0', '1', '0', '2', '9']::jsonb []) \g /dev/null
SELECT results_eq(
    $$SELECT f.result FROM pulse_internal.finished AS f WHERE f.lane = 'mixed' ORDER BY f.lease$$,
    $$VALUES ('1'::jsonb), ('2'), ('3')$$, 'in whatever order they are named; of two for one lease the first'
);
SELECT pg_temp.claim('twice') AS lease \gset
SELECT results_eq(
    format(
        'SELECT v.verdict FROM pulse.complete_batch(ARRAY[%1$s, %1$s, %1$s], ARRAY[''1'', ''1'', ''1'']::jsonb []) AS v',
        :lease
    ),
    $$VALUES ('ok'), ('ok'), ('ok')$$, 'a lease named three times completes once'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.finished AS f WHERE f.lane = 'twice'), 1::bigint, 'only'
);
SELECT pg_temp.claim('twice-large') AS lease \gset
SELECT v.verdict
FROM pulse.complete_batch(
    ARRAY[:lease, :lease], ARRAY[to_jsonb(repeat('x', 1048577)), '"small"']
) AS v \g /dev/null
SELECT is_empty(
    $$
    SELECT f.lease
    FROM pulse_internal.finished AS f
    WHERE pg_column_size(f.result) > 1048576
        OR length(f.result #>> '{}') > 1048576
    $$,
    'a result above 1 MB is never kept, not even beside a smaller one of the same lease'
);

-- After a cancel request

SELECT pg_temp.claim('cancelled') AS lease \gset
SELECT pulse.cancel(l.job) AS c FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT lives_ok(format('SELECT pulse.complete(%s)', :lease), 'a run may still complete');
SELECT is(
    (SELECT f.state FROM pulse_internal.finished AS f WHERE f.lane = 'cancelled'),
    'completed'::pulse_internal.outcome, 'and then it is completed'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
