-- Enqueue: what a job is when it enters, and what is refused.
BEGIN;

SELECT plan(102);

CREATE FUNCTION pg_temp.queue()
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT
        (SELECT count(*) FROM pulse_internal.body) + (SELECT count(*) FROM pulse_internal.ready)
        + (SELECT count(*) FROM pulse_internal.waiting) + (SELECT count(*) FROM pulse_internal.approval)
        + (SELECT count(*) FROM pulse_internal.job_key)
$$;

-- What is written

SELECT pulse.enqueue('mail') AS job \gset
SELECT is(pg_temp.state(:job), 'ready', 'a job without run_at is ready at once');
SELECT row_eq(
    format(
        'SELECT b.kind, b.payload, b.max_attempts, b.max_runtime, b.unique_key, b.group_key, b.tags, (SELECT n.name FROM pulse_internal.role_names AS n WHERE n.role = b.owner) FROM pulse_internal.body AS b WHERE b.job = %s',
        :job
    ),
    ROW (
        'mail'::text COLLATE "C", '{}'::jsonb, 3, NULL::interval,
        NULL::text COLLATE "C", NULL::text COLLATE "C", NULL::text [], session_user
    ),
    'with an empty payload, 3 attempts and who enqueued it'
);
SELECT row_eq(
    format(
        'SELECT r.lane, r.rank, r.attempts, r.failures, r.keyed, r.last_lease FROM pulse_internal.ready AS r WHERE r.job = %s',
        :job
    ),
    ROW ('default'::text COLLATE "C", 0, 0, 0, false, NULL::bigint),
    'in the lane default, with priority 0'
);
SELECT pulse.enqueue(
    'mail', '{"to": "a@b.c"}', lane => 'post', priority => 7, max_attempts => 9,
    group_key => 'g', tags => '{a,b}', max_runtime => '1 hour', unique_key => 'u'
) AS job \gset
SELECT row_eq(
    format(
        'SELECT b.payload, b.max_attempts, b.max_runtime, b.unique_key, b.group_key, b.tags FROM pulse_internal.body AS b WHERE b.job = %s',
        :job
    ),
    ROW (
        '{"to": "a@b.c"}'::jsonb, 9, interval '1 hour', 'u'::text COLLATE "C",
        'g'::text COLLATE "C", '{a,b}'::text []
    ),
    'every option is kept'
);
SELECT row_eq(
    format('SELECT r.lane, r.rank, r.keyed FROM pulse_internal.ready AS r WHERE r.job = %s', :job),
    ROW ('post'::text COLLATE "C", -7, true),
    'and stands where the call put it'
);
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = pulse.enqueue('k', NULL)),
    NULL, 'a job is not seen by the statement that enqueues it'
);
SELECT pulse.enqueue('k', NULL) AS job \gset
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :job), '{}'::jsonb,
    'a payload that is NULL is an empty object'
);
SELECT pulse.enqueue('k', '[1, 2]') AS job \gset
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :job), '[1, 2]'::jsonb,
    'a payload may be any JSON'
);
SELECT cmp_ok(pulse.enqueue('k'), '<', pulse.enqueue('k'), 'ids grow');
SELECT results_eq(
    $$SELECT o.job_id > 0, o.created FROM pulse.enqueue_one('k') AS o$$,
    $$VALUES (true, true)$$, 'enqueue_one says that the job was created'
);

-- When

SELECT pulse.enqueue('k', run_at => clock_timestamp() + interval '1 hour') AS job \gset
SELECT is(pg_temp.state(:job), 'scheduled', 'a run_at in the future schedules');
SELECT pulse.enqueue('k', delay => '2 hours') AS job \gset
SELECT is(pg_temp.state(:job), 'scheduled', 'so does a delay');
SELECT ok(
    (
        SELECT w.run_at - clock_timestamp() BETWEEN interval '119 minutes' AND interval '2 hours'
        FROM pulse_internal.waiting AS w WHERE w.job = :job
    ),
    'by the clock, not by the start of the transaction'
);
SELECT pulse.enqueue('k', run_at => '2001-01-01') AS job \gset
SELECT is(pg_temp.state(:job), 'ready', 'a run_at in the past is ready at once');
SELECT pulse.enqueue('k', delay => '0') AS job \gset
SELECT is(pg_temp.state(:job), 'ready', 'so is a delay of nothing');
SELECT ok(
    (SELECT b.enqueued_at > now() FROM pulse_internal.body AS b WHERE b.job = :job),
    'times are the clock''s: later than the start of a transaction'
);

-- Approval

SELECT pulse.enqueue('k', requires_approval => true) AS job \gset
SELECT is(pg_temp.state(:job), 'awaiting_approval', 'a call may ask for approval');
SELECT ok(
    (
        SELECT a.expires_at - clock_timestamp() BETWEEN interval '23:59' AND interval '24:00'
        FROM pulse_internal.approval AS a WHERE a.job = :job
    ),
    'which expires after 24 hours'
);
SELECT pulse.set_kind('careful', requires_approval => true, approval_expiry => '1 hour');
SELECT pulse.enqueue('careful', delay => '5 minutes') AS job \gset
SELECT is(pg_temp.state(:job), 'awaiting_approval', 'so may a kind, also for a scheduled job');
SELECT ok(
    (
        SELECT a.expires_at - clock_timestamp() BETWEEN interval '59 min' AND interval '60 min'
            AND a.run_at - clock_timestamp() BETWEEN interval '4 min' AND interval '5 min'
        FROM pulse_internal.approval AS a WHERE a.job = :job
    ),
    'with its own expiry, and its run_at kept'
);
SELECT pulse.enqueue('careful', requires_approval => false) AS job \gset
SELECT is(pg_temp.state(:job), 'awaiting_approval', 'and a call cannot waive what the kind asks for');

-- Sizes

SELECT lives_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 8 * 1024 * 1024 - 100)))$$,
    'a payload just below 8 MB is taken'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 8 * 1024 * 1024 + 1)))$$,
    'PU003', 'payload is larger than 8192 kB', 'one above it is not'
);
SET LOCAL pulse.max_payload = '1 kB';
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 1100)))$$,
    'PU003', NULL, 'pulse.max_payload lowers the limit'
);
SELECT lives_ok($$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 900)))$$, 'but not to nothing');
SET LOCAL pulse.max_payload = '9 MB';
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 8 * 1024 * 1024 + 1)))$$,
    'PU003', NULL, 'a session cannot raise it'
);
CREATE FUNCTION pg_temp.limit_of_database(size text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER DATABASE %I SET pulse.max_payload = %L', current_database(), size);
END;
$$;
SELECT pg_temp.limit_of_database('9 MB');
SELECT lives_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 8 * 1024 * 1024 + 1)))$$,
    'the owner of the database can'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 9 * 1024 * 1024 + 1)))$$,
    'PU003', 'payload is larger than 9216 kB', 'up to there'
);
SELECT pg_temp.limit_of_database('100 MB');
SET LOCAL pulse.max_payload = '1 GB';
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 64 * 1024 * 1024)))$$,
    'PU003', 'payload is larger than 64 MB', 'but nobody above 64 MB'
);
SELECT pg_temp.limit_of_database('1 kB');
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 1100)))$$,
    'PU003', NULL, 'nor a session above what the database says'
);
SELECT pg_temp.limit_of_database('');
RESET pulse.max_payload;

-- A value from a table is compressed, and a number is larger as text.
CREATE TEMPORARY TABLE squeezed AS
SELECT to_jsonb(repeat('x', 9000000)) AS long, to_jsonb(repeat('x', 2000000)) AS result;
SELECT cmp_ok(
    (SELECT pg_column_size(s.long) FROM squeezed AS s), '<', 200000, 'nine megabytes fit into few'
);
SELECT throws_ok(
    'SELECT pulse.enqueue(''k'', s.long) FROM squeezed AS s',
    'PU003', NULL, 'the size of a payload is the one that is handed out'
);
SELECT throws_ok(
    'SELECT pulse.enqueue_many(''k'', ARRAY[s.long]) FROM squeezed AS s',
    'PU003', NULL, 'in enqueue_many'
);
SELECT throws_ok(
    'SELECT pulse.enqueue_many(jsonb_build_array(jsonb_build_object(''kind'', ''k'', ''payload'', s.long))) FROM squeezed AS s',
    'PU003', NULL, 'and in a list'
);
SELECT throws_ok(
    'SELECT pulse.enqueue(''k'', to_jsonb(array_fill(1e131000, ARRAY[100])))',
    'PU003', NULL, '100 numbers of 131,000 digits are too large'
);
SELECT throws_ok(
    'SELECT pulse.enqueue_many(''k'', ARRAY[to_jsonb(array_fill(1e131000, ARRAY[100]))])',
    'PU003', NULL, 'in enqueue_many too'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', tags => ARRAY[repeat('t', 20001)])$$,
    'PU002', NULL, 'a tag is no place for data'
);
SELECT pulse.enqueue('k', lane => 'squeezed', priority => 9) FROM generate_series(1, 2) \g /dev/null
SELECT c.lease AS squeezed FROM pulse.claim_batch('w', 'squeezed') AS c \gset
SELECT c.lease AS sound FROM pulse.claim_batch('w', 'squeezed') AS c \gset
SELECT throws_ok(
    format('SELECT pulse.complete(%s, s.result) FROM squeezed AS s', :squeezed),
    'PU003', NULL, 'so is that of a result'
);
SELECT throws_ok(
    format('SELECT pulse.checkpoint(%s, s.result) FROM squeezed AS s', :squeezed),
    'PU003', NULL, 'and of a checkpoint'
);
SELECT results_eq(
    format(
        'SELECT v.verdict FROM pulse.complete_batch(ARRAY[%s, %s], ARRAY[to_jsonb(array_fill(1e131000, ARRAY[100])), ''1'']) AS v',
        :squeezed, :sound
    ),
    $$VALUES ('too_large'), ('ok')$$,
    'one result that is too large leaves the others alone'
);
SET LOCAL pulse.max_payload = '';
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 8 * 1024 * 1024 + 1)))$$,
    'PU003', NULL, 'an empty setting is the default'
);
SELECT lives_ok(
    format('SELECT pulse.enqueue(%L, lane => %L)', repeat('ü', 200), repeat('ü', 200)),
    'names have up to 200 characters'
);
SELECT lives_ok(
    $$SELECT pulse.enqueue('k', group_key => repeat('g', 1000), tags => array_fill('t'::text, ARRAY[100]))$$,
    'a group_key has up to 1,000 characters, a job up to 100 tags'
);

-- What is refused, and leaves nothing behind

SELECT pg_temp.queue() AS before \gset
SELECT throws_ok(
    format('SELECT pulse.%s(%s)', f.name, b.arguments), 'PU002', NULL,
    format('%s(%s) is refused', f.name, left(b.arguments, 70))
)
FROM (VALUES ('enqueue'), ('enqueue_one')) AS f (name)
CROSS JOIN (
    VALUES
    ('NULL'), (''''''), ('repeat(''k'', 201)'),
    ('''k'', lane => '''''), ('''k'', lane => repeat(''l'', 201)'),
    ('''k'', priority => 2000000001'), ('''k'', priority => -2000000001'),
    ('''k'', priority => 2147483647'), ('''k'', priority => -2147483648'),
    ('''k'', run_at => ''infinity'''), ('''k'', run_at => ''-infinity'''),
    ('''k'', delay => ''-1 microsecond'''), ('''k'', delay => ''1000 years'''),
    ('''k'', run_at => now(), delay => ''1 s'''),
    ('''k'', max_attempts => 0'), ('''k'', max_attempts => -1'),
    ('''k'', max_attempts => 2147483647'),
    ('''k'', max_runtime => ''0'''), ('''k'', max_runtime => ''-1 s'''),
    ('''k'', max_runtime => ''2 years'''),
    ('''k'', group_key => repeat(''g'', 1001)'),
    ('''k'', tags => array_fill(''t''::text, ARRAY[101])'),
    ('''k'', unique_key => '''''), ('''k'', unique_key => repeat(''u'', 1001)'),
    ('''k'', unique_for => ''1 hour'''),
    ('''k'', unique_key => ''x'', unique_for => ''-1 s'''),
    ('''k'', unique_key => ''x'', unique_for => ''11 years'''),
    ('''k'', unique_key => ''x'', on_conflict => ''overwrite''')
) AS b (arguments);
SELECT is(pg_temp.queue(), :before::bigint, 'what is refused leaves nothing behind');

-- Part of the caller's transaction

SAVEPOINT before_it;
SELECT pulse.enqueue('k', unique_key => 'rolled-back') AS job \gset
ROLLBACK TO before_it;
SELECT is(pg_temp.queue(), :before::bigint, 'rolled back, an enqueue never happened');

-- The bell

SELECT is(pulse_internal.ring('default'), false, 'while nobody sleeps nobody is woken');

SELECT * FROM finish();

ROLLBACK;
