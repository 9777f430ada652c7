-- Progress and checkpoints: what a run says while it runs.
BEGIN;

SELECT plan(36);

SELECT pg_temp.claim('one') AS lease \gset
SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = :lease \gset
SELECT lives_ok(
    format('SELECT pulse.progress(%s, 0.25, %L)', :lease, 'page 1'), 'a run tells its progress'
);
SELECT results_eq(
    format('SELECT p.fraction, p.note, p.lease FROM pulse_internal.job_progress AS p WHERE p.job = %s', :job),
    format('VALUES (0.25::double precision, %L, %s::bigint)', 'page 1', :lease), 'which is kept'
);
SELECT lives_ok(format('SELECT pulse.progress(%s, 0.5)', :lease), 'and again');
SELECT results_eq(
    format('SELECT p.fraction, p.note FROM pulse_internal.job_progress AS p WHERE p.job = %s', :job),
    'VALUES (0.5::double precision, NULL)', 'the newest counts'
);
SELECT lives_ok(
    format('SELECT pulse.progress(%s, %s)', :lease, f.fraction),
    format('a fraction of %s is fine', f.fraction)
)
FROM unnest('{0,1,0.1}'::text []) AS f (fraction);
SELECT lives_ok(
    format('SELECT pulse.progress(%s, NULL, %L)', :lease, 'working'),
    'a note alone is fine'
);
SELECT throws_ok(
    format('SELECT pulse.progress(%s, %L)', :lease, f.fraction), 'PU002', NULL,
    format('a fraction of %s is refused', f.fraction)
)
FROM unnest('{-0.01,1.01,NaN,Infinity,-Infinity,1e308,-1e308}'::text []) AS f (fraction);
SELECT throws_ok(
    format('SELECT pulse.progress(%s, 1, repeat(%L, 10001))', :lease, 'n'), 'PU002', NULL,
    'a note has up to 10,000 characters'
);
SELECT throws_ok('SELECT pulse.progress(711, 0.5)', 'PU101', NULL, 'no such lease is lost');
SELECT throws_ok('SELECT pulse.progress(NULL, 0.5)', 'PU101', NULL, 'so is none');
SELECT is(
    (SELECT count(*) FROM pulse_internal.job_progress), 1::bigint, 'and nothing is written'
);

-- Checkpoints

SELECT lives_ok(
    format('SELECT pulse.checkpoint(%s, %L)', :lease, '{"page": 1}'), 'a run leaves a checkpoint'
);
SELECT lives_ok(
    format('SELECT pulse.checkpoint(%s, %L)', :lease, '{"page": 2}'), 'and a newer one'
);
SELECT results_eq(
    format('SELECT c.data FROM pulse_internal.job_checkpoint AS c WHERE c.job = %s', :job),
    $$VALUES ('{"page": 2}'::jsonb)$$, 'which replaces it'
);
SELECT throws_ok(
    format('SELECT pulse.checkpoint(%s, to_jsonb(repeat(%L, 1048577)))', :lease, 'x'),
    'PU003', NULL, 'a checkpoint above 1 MB is refused'
);
SELECT lives_ok(
    format('SELECT pulse.checkpoint(%s, to_jsonb(repeat(%L, 1048000)))', :lease, 'x'),
    'one below is taken'
);
SELECT pulse.checkpoint(:lease, '{"page": 3}');
SELECT throws_ok(
    'SELECT pulse.checkpoint(711, ''{}'')', 'PU101', NULL, 'no such lease is lost'
);
SELECT throws_ok('SELECT pulse.checkpoint(NULL, ''{}'')', 'PU101', NULL, 'so is none');

-- The next attempt

SELECT pulse.fail(:lease, retry_in => '0');
-- proves: G3
SELECT throws_ok(
    format('SELECT pulse.checkpoint(%s, %L)', :lease, '{"page": 99}'), 'PU101', NULL,
    'guarantee 3: a lost lease leaves no checkpoint'
);
SELECT throws_ok(
    format('SELECT pulse.progress(%s, 1)', :lease), 'PU101', NULL,
    'guarantee 3: nor tells a progress'
);
SELECT c.lease AS lease2, c.checkpoint FROM pulse.claim_batch('w', 'one') AS c \gset
SELECT is(:'checkpoint'::jsonb, '{"page": 3}'::jsonb, 'the next attempt is handed the checkpoint');
SELECT r.verdict FROM pulse.release(ARRAY[:lease2]) AS r \gset
SELECT is(
    (SELECT c.checkpoint FROM pulse.claim_batch('w', 'one') AS c), '{"page": 3}'::jsonb,
    'and each one after it, until there is a newer'
);
SELECT l.lease AS lease3 FROM pulse_internal.lease AS l WHERE l.lane = 'one' \gset
SELECT lives_ok(
    format('SELECT pulse.checkpoint(%s, NULL)', :lease3), 'NULL takes it back'
);
SELECT r.verdict FROM pulse.release(ARRAY[:lease3]) AS r \gset
SELECT is(
    (SELECT nullif(c.checkpoint, 'null') FROM pulse.claim_batch('w', 'one') AS c), NULL,
    'and nothing is handed on'
);
SELECT pg_temp.claim('fresh') AS lease \gset
SELECT is(
    (SELECT count(*) FROM pulse_internal.job_checkpoint AS c JOIN pulse_internal.lease AS l USING (job) WHERE l.lease = :lease),
    0::bigint, 'a first run has none'
);

-- Kept when the job has ended

SELECT pulse.progress(:lease, 1, 'done');
SELECT pulse.complete(:lease);
SELECT is(
    (SELECT p.note FROM pulse_internal.job_progress AS p WHERE p.lease = :lease), 'done',
    'progress stays with a finished job until it is pruned'
);
SELECT pg_temp.claim('reaped') AS lease \gset
SELECT pulse.checkpoint(:lease, '"survives"');
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 s' WHERE lease = :lease;
SELECT pulse.reap() AS n \gset
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s';
DELETE FROM pulse_internal.due_mark;
SELECT is(
    (SELECT c.checkpoint FROM pulse.claim_batch('w', 'reaped') AS c), '"survives"'::jsonb,
    'a checkpoint survives the loss of its worker'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
