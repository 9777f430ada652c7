-- Names, flows, spawned jobs, steps, sleeps and signals.
BEGIN;

SELECT plan(92);

\o /dev/null
CREATE FUNCTION pg_temp.lease(lane text) RETURNS bigint LANGUAGE sql AS $$
    SELECT c.lease FROM pulse.claim_batch('w', lease.lane) AS c
$$;
CREATE FUNCTION pg_temp.named(name text) RETURNS bigint LANGUAGE sql AS $$
    SELECT max(j.job_id) FROM pulse.jobs AS j WHERE j.name = named.name
$$;
CREATE FUNCTION pg_temp.states(flow text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(coalesce(j.name, j.kind) || ':' || j.state, ' ' ORDER BY j.job_id)
    FROM pulse.jobs AS j WHERE j.flow = states.flow
$$;
CREATE FUNCTION pg_temp.pass(lane text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pulse_internal.waiting AS w SET run_at = clock_timestamp() - interval '1 s' WHERE w.lane = pass.lane;
    UPDATE pulse_internal.job_step SET until = clock_timestamp() - interval '1 s' WHERE until IS NOT NULL;
    DELETE FROM pulse_internal.due_mark;
END $$;
\o

-- Lists with names
SELECT count(*) AS jobs FROM pulse.enqueue_many('[
    {"name": "fetch", "kind": "fetch", "lane": "i", "flow": "import 7"},
    {"name": "part", "kind": "parse", "lane": "i", "flow": "import 7", "payload": {"n": 1}, "after": ["fetch"]},
    {"name": "part", "kind": "parse", "lane": "i", "flow": "import 7", "payload": {"n": 2}, "after": ["fetch"]},
    {"name": "merge", "kind": "merge", "lane": "i", "flow": "import 7", "after": ["part"]},
    {"kind": "clean", "lane": "i", "flow": "import 7", "after": ["merge", "part"], "after_failed": "run"}
]') \gset
SELECT is(pg_temp.states('import 7'), 'fetch:ready part:blocked part:blocked merge:blocked clean:blocked', 'a list with names is a flow');
SELECT is((SELECT count(*) FROM pulse_internal.doubt), 0::bigint, 'one that is written in one transaction leaves no doubt');
SELECT is(
    (SELECT count(*) FROM pulse.dependencies AS d WHERE d.job_id = pg_temp.named('merge')), 2::bigint,
    'a name stands for every earlier element that has it'
);
SELECT results_eq(
    $$SELECT f.name, f.kind, f.jobs, f.blocked, f.ready, f.after FROM pulse.flow('import 7') AS f$$,
    $$VALUES ('fetch', 'fetch', 1::bigint, 0::bigint, 1::bigint, '{}'::text []),
        ('part', 'parse', 2, 2, 0, '{fetch}'), ('merge', 'merge', 1, 1, 0, '{part}'),
        ('clean', 'clean', 1, 1, 0, '{merge,part}')$$,
    'flow() shows counts and graph in one, a row for each name'
);
SELECT is_empty($$SELECT * FROM pulse.flow('nothing')$$, 'flow() of nothing is nothing');
SELECT results_eq(
    $$SELECT c.flow, c.name FROM pulse.claim_batch('w', 'i') AS c$$, $$VALUES ('import 7', 'fetch')$$,
    'a claim hands out flow and name'
);
SELECT lease AS l FROM pulse_internal.lease \gset
SELECT pulse.complete(:l, '"pages"') \g /dev/null
SELECT is(pg_temp.states('import 7'), 'fetch:completed part:ready part:ready merge:blocked clean:blocked', 'an end releases what waits for it');
SELECT count(pulse.complete(x.lease, x.payload)) AS done FROM pulse.exchange('w', '{"i": 9}') AS x \gset
SELECT is(pg_temp.states('import 7'), 'fetch:completed part:completed part:completed merge:ready clean:blocked', 'and the last of several what waits for all');
SELECT pg_temp.lease('i') AS l \gset
SELECT results_eq(
    format('SELECT u.name, u.kind, u.state, u.result FROM pulse.upstream(%s) AS u', :l),
    $$VALUES ('part', 'parse', 'completed', '{"n": 1}'::jsonb), ('part', 'parse', 'completed', '{"n": 2}')$$,
    'upstream() hands over what ended before, in the order of ids'
);
SELECT throws_ok('SELECT * FROM pulse.upstream(1)', 'PU101', NULL, 'upstream() with a lost lease: PU101');
SELECT pulse.fail(:l, 'no', fatal => true) \g /dev/null
SELECT is(pg_temp.states('import 7'), 'fetch:completed part:completed part:completed merge:dead clean:ready', 'cleanup runs in any case');
SELECT results_eq($$SELECT done, remaining FROM pulse.retry_where('{"flow": "import 7"}')$$, 'VALUES (1::bigint, 0::bigint)', 'a filter by flow: retry_where');
SELECT results_eq($$SELECT done, remaining FROM pulse.cancel_where('{"flow": "import 7"}')$$, 'VALUES (2::bigint, 0::bigint)', 'a filter by flow: cancel_where');
SELECT is(pg_temp.states('import 7'), 'fetch:completed part:completed part:completed merge:cancelled clean:cancelled', 'a whole flow is cancelled at once');
SELECT is((SELECT count(*) FROM pulse.find_jobs('{"flow": "import 7"}')), 5::bigint, 'a filter by flow: find_jobs');

SELECT array_agg(j) AS ids FROM pulse.enqueue_many('[{"kind": "a", "lane": "n"}, {"kind": "b", "lane": "n", "name": "b"}]') AS j \gset
SELECT is((SELECT array_agg(DISTINCT j.flow) FROM pulse.jobs AS j WHERE j.lane = 'n'), ARRAY[(:'ids'::bigint [])[1]::text], 'a list with names gets the id of its first job as its flow');
SELECT pulse.enqueue_many('[{"kind": "a", "lane": "none"}]') AS plain \gset
SELECT is((SELECT j.flow FROM pulse.jobs AS j WHERE j.job_id = :plain), NULL, 'and one without none');
-- Neighbours that differ by their payloads alone, and what breaks such a run.
SELECT array_agg(j ORDER BY n) AS ids FROM pulse.enqueue_many('[
    {"kind": "k", "lane": "r", "payload": 1, "name": "x"},
    {"kind": "k", "lane": "r", "payload": 2, "name": "x"},
    {"kind": "k", "lane": "r", "payload": 3, "name": "x"},
    {"kind": "k", "lane": "r", "payload": 4, "name": "x", "after": ["x"]},
    {"kind": "k", "lane": "r", "payload": 5, "name": "x", "after": ["x"]},
    {"kind": "k", "lane": "r", "payload": 6, "name": "x", "unique_key": "6"},
    {"kind": "k", "lane": "r", "payload": 7, "name": "x", "unique_key": "6"},
    {"kind": "k", "lane": "r", "name": "x"},
    {"kind": "k", "lane": "r", "name": "x", "payload": null},
    {"kind": "k", "lane": "r", "name": "x", "requires_approval": true, "payload": 8},
    {"kind": "k", "lane": "r", "name": "x", "requires_approval": true, "payload": 9}
]') WITH ORDINALITY AS m (j, n) \gset
SELECT is((:'ids'::bigint [])[7], (:'ids'::bigint [])[6], 'a list: the second with a key is the first');
SELECT is(
    (
        SELECT string_agg(
            format(
                '%s %s %s', j.payload, j.state,
                (SELECT count(*) FROM pulse.dependencies AS d WHERE d.job_id = u.job)
            ),
            ', ' ORDER BY u.n
        )
        FROM unnest(:'ids'::bigint []) WITH ORDINALITY AS u (job, n)
        INNER JOIN pulse.jobs AS j ON j.job_id = u.job AND j.flow = (:'ids'::bigint [])[1]::text
        WHERE u.n <> 7
    ),
    '1 ready 0, 2 ready 0, 3 ready 0, 4 blocked 3, 5 blocked 4, 6 ready 0, {} ready 0, {} ready 0,'
    ' 8 awaiting_approval 0, 9 awaiting_approval 0',
    'a list: each has its own payload and waits for its own, alike or not'
);
SELECT is((:'ids'::bigint [])[2] + 1, (:'ids'::bigint [])[3], 'a list: ids are drawn in its order');
SELECT throws_ok($$SELECT pulse.enqueue_many('[{"kind": "a", "after": ["b"]}, {"kind": "b", "name": "b"}]')$$, 'PU002', NULL, 'name of a later element: PU002');
SELECT throws_ok($$SELECT pulse.enqueue_many('[{"kind": "a", "name": "a", "after": ["a"]}]')$$, 'PU002', NULL, 'name of the element itself: PU002');
SELECT throws_ok($$SELECT pulse.enqueue_many((SELECT jsonb_agg(jsonb_build_object('kind', 'a', 'after', jsonb_build_array('n' || n)) ORDER BY n DESC) FROM generate_series(1, 3) AS n))$$, 'PU002', 'after has the name ''n3'', which no earlier element has', 'of several the first is named');
SELECT throws_ok($$SELECT pulse.enqueue_many('[{"kind": "a", "after": ["nobody"]}]')$$, 'PU002', NULL, 'name of none: PU002');
SELECT throws_ok($$SELECT pulse.enqueue_many('[{"kind": "a", "after": "x"}]')$$, 'PU002', NULL, 'after that is no list: PU002');
SELECT throws_ok($$SELECT pulse.enqueue_many('[{"kind": "a", "after": [["x"]]}]')$$, 'PU002', NULL, 'after with something else in it: PU002');
SELECT throws_ok($$SELECT pulse.enqueue_many('[{"kind": "a", "after": [987654321]}]')$$, 'PU004', NULL, 'an id of nothing: PU004');
SELECT e AS ided FROM pulse.enqueue_many(format('[{"kind": "a", "lane": "n", "after": [%s, "%s", %s]}]', (:'ids'::bigint [])[1], (:'ids'::bigint [])[1], (:'ids'::bigint [])[2])::jsonb) AS e \gset
SELECT is((SELECT count(*) FROM pulse.dependencies AS d WHERE d.job_id = :ided), 2::bigint, 'ids as numbers and as strings, duplicates collapse');
SELECT pulse.enqueue('k', lane => 'u', unique_key => 'one') AS one \gset
SELECT count(*) AS jobs FROM pulse.enqueue_many('[{"kind": "k", "lane": "u", "unique_key": "one", "name": "one"}, {"kind": "k", "lane": "u", "name": "two", "after": ["one"]}]') \gset
SELECT is((SELECT d.after_job_id FROM pulse.dependencies AS d WHERE d.job_id = pg_temp.named('two')), :one::bigint, 'unique_key found an existing job: the name means that job');

-- Producers see and steer their own
CREATE ROLE ann;
CREATE ROLE bob;
\o /dev/null
SELECT pulse.grant_access('ann', 'producer'), pulse.grant_access('bob', 'producer');
SET LOCAL ROLE ann;
SELECT pulse.enqueue('k', lane => 'ann', flow => 'shared', name => 'first') AS anns;
SELECT pulse.enqueue('k', lane => 'ann', flow => 'shared', after => (SELECT array_agg(job_id) FROM pulse.jobs));
SET LOCAL ROLE bob;
\o
SELECT throws_ok(format('SELECT pulse.enqueue(''k'', after => ARRAY[%s])', :one), 'PU004', NULL, 'upstream not visible to the caller: PU004');
SELECT is_empty($$SELECT * FROM pulse.flow('shared')$$, 'flow() shows a producer its own jobs');
SELECT is_empty('SELECT * FROM pulse.dependencies', 'dependencies, too');
SELECT results_eq($$SELECT done, remaining FROM pulse.cancel_where('{"flow": "shared"}')$$, 'VALUES (0::bigint, 0::bigint)', 'cancel_where of a producer leaves the jobs of others alone');
SELECT throws_ok($$SELECT pulse.cancel_where('{"flow": "shared"}', force => true)$$, 'PU011', NULL, 'and it cannot force');
SET LOCAL ROLE ann;
SELECT matches((SELECT string_agg(w.reason, '; ') FROM pulse.why((SELECT max(job_id) FROM pulse.jobs)) AS w), '^waits for 1 of 1 job: [0-9]+ \(ready\)', 'why() says what a blocked job waits for');
SELECT results_eq($$SELECT done, remaining FROM pulse.cancel_where('{"flow": "shared"}')$$, 'VALUES (2::bigint, 0::bigint)', 'cancel_where of a producer acts on its own jobs');
RESET ROLE;
SELECT is((SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.name = 'first'), 'ann'::name, 'they were hers');
SET LOCAL ROLE ann;
SELECT pulse.enqueue('k', lane => 'hers') AS hers \gset
RESET ROLE;
SELECT pulse.enqueue('k', lane => 'ours') AS ours \gset
SELECT pg_temp.lease('hers') AS l \gset
SELECT s AS spawned_job FROM pulse.spawn(:l, 's', '[{"kind": "k", "lane": "hers"}]') AS s \gset
SELECT is((SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.job_id = :spawned_job), 'ann'::name, 'spawn enqueues for the role whose job runs');
SELECT throws_ok(format($$SELECT pulse.spawn(%s, 't', '[{"kind": "k", "after": [%s]}]')$$, :l, :ours), 'PU004', NULL, 'and with the rights of that role');

-- Spawn
SELECT pulse.enqueue('k', lane => 's', flow => 'tree', name => 'root') AS root \gset
SELECT pulse.enqueue('k', lane => 's', flow => 'tree', name => 'end', after => ARRAY[:root]) AS last \gset
SELECT pg_temp.lease('s') AS l \gset
SELECT array_agg(s) AS spawned FROM pulse.spawn(:l, 'parts', '[{"kind": "p", "lane": "s", "name": "x"}, {"kind": "p", "lane": "s", "name": "y", "after": ["x"]}]') AS s \gset
SELECT is(pg_temp.states('tree'), 'root:running end:blocked x:ready y:blocked', 'spawn: jobs of its flow');
-- proves: G21
SELECT is((SELECT array_agg(s) FROM pulse.spawn(:l, 'parts', '[{"kind": "other"}]') AS s), :'spawned'::bigint [], 'guarantee 21: spawned again, the same step gives the same ids');
SELECT throws_ok(format($$SELECT pulse.spawn(%s, 'more', '[{"kind": "k", "after": [%s]}]')$$, :l, :last), 'PU105', NULL, 'a spawned job cannot wait for who waits for us');
UPDATE pulse_internal.body SET unique_key = 'last' WHERE job = :last;
INSERT INTO pulse_internal.job_key (lane, unique_key, job) SELECT b.lane, 'last', b.job FROM pulse_internal.blocked AS b WHERE b.job = :last;
UPDATE pulse_internal.blocked SET keyed = true WHERE job = :last;
SELECT throws_ok(format($$SELECT pulse.spawn(%s, 'more', '[{"kind": "k", "lane": %s, "name": "n", "unique_key": "last"}, {"kind": "k", "after": ["n"]}]')$$, :l, (SELECT to_json(lane) FROM pulse_internal.blocked WHERE job = :last)), 'PU105', NULL, 'not even where a unique key makes its name mean that job');
SELECT throws_ok(format($$SELECT pulse.spawn(%s, 'more', '{"kind": "k"}')$$, :l), 'PU002', NULL, 'spawn takes a list');
SELECT throws_ok($$SELECT pulse.spawn(1, 'more', '[{"kind": "k"}]')$$, 'PU101', NULL, 'spawn with a lost lease: PU101');
SELECT throws_ok(format($$SELECT pulse.save_step(%s, 'parts', '1')$$, :l), 'PU002', NULL, 'a name is one step');
SELECT pulse.complete(:l) \g /dev/null
SELECT is(pg_temp.states('tree'), 'root:completed end:blocked x:ready y:blocked', 'who waited for the spawner waits for what it spawned');
SELECT pg_temp.lease('s') AS l \gset
SELECT count(*) AS nested FROM pulse.spawn(:l, 'parts', '[{"kind": "p", "lane": "s", "name": "z"}]') \gset
SELECT pulse.complete(:l) \g /dev/null
SELECT is(pg_temp.states('tree'), 'root:completed end:blocked x:completed y:blocked z:ready', 'nested at any depth: both wait for z');
SELECT count(pulse.complete(x.lease)) AS done FROM pulse.exchange('w', '{"s": 1}') AS x \gset
SELECT is(pg_temp.states('tree'), 'root:completed end:blocked x:completed y:ready z:completed', 'and go on when it has ended');
SELECT count(pulse.complete(x.lease)) AS done FROM pulse.exchange('w', '{"s": 1}') AS x \gset
SELECT is(pg_temp.states('tree'), 'root:completed end:ready x:completed y:completed z:completed', 'and the end comes last');
SELECT is((SELECT count(*) FROM pulse.dependencies AS d WHERE d.job_id = :last), 4::bigint, 'by edges to every one of them');

-- Steps
SELECT pulse.enqueue('order', lane => 'o', max_attempts => 9) AS ord \gset
SELECT pg_temp.lease('o') AS l \gset
SELECT is(pulse.save_step(:l, 'charge', '{"id": 1}'), '{"id": 1}'::jsonb, 'a step is saved');
SELECT is(pulse.save_step(:l, 'charge', '{"id": 2}'), '{"id": 1}'::jsonb, 'guarantee 21: the first write wins');
SELECT is(pulse.save_step(:l, 'nothing'), 'null'::jsonb, 'a step may have no result');
SELECT throws_ok(format($$SELECT pulse.save_step(%s, 'big', to_jsonb(repeat('x', 1048577)))$$, :l), 'PU003', NULL, 'a result above 1 MB: PU003');
SELECT throws_ok($$SELECT pulse.save_step(1, 'x', '1')$$, 'PU101', NULL, 'a zombie saves nothing: PU101');
SELECT throws_ok(format($$SELECT pulse.save_step(%s, '', '1')$$, :l), 'PU002', NULL, 'a step has a name');
SELECT pulse.fail(:l, 'no', retry_in => '0') \g /dev/null
SELECT pg_temp.pass('o') \g /dev/null
SELECT pg_temp.lease('o') AS l \gset
SELECT results_eq(
    format('SELECT s.step, s.result FROM pulse.steps(%s) AS s', :l), $$VALUES ('charge', '{"id": 1}'::jsonb), ('nothing', 'null')$$,
    'guarantee 21: failed step: done steps stay for the next attempt'
);

-- A sleep
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'cool off', '1 day') AS w), 'waiting', 'no signal is a sleep');
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'cool off', '1 day') AS w), 'waiting', 'asked again, because the answer was lost, it says the same');
SELECT ok((SELECT j.state = 'scheduled' AND j.run_at > clock_timestamp() + interval '23 h' AND j.failures = 1 FROM pulse.jobs AS j WHERE j.job_id = :ord), 'it holds no slot and is not charged');
SELECT pg_temp.pass('o') \g /dev/null
SELECT pg_temp.lease('o') AS l \gset
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'cool off', '1 day') AS w), 'timeout', 'when its time has come, it goes on');
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'cool off', '1 day') AS w), 'timeout', 'guarantee 21: and stays so');
SELECT throws_ok(format($$SELECT pulse.wait_for(%s, 'x', NULL)$$, :l), 'PU002', NULL, 'a timeout must be given');
SELECT throws_ok(format($$SELECT pulse.wait_for(%s, 'x', '-1 s')$$, :l), 'PU002', NULL, 'and not be negative');
SELECT throws_ok(format($$SELECT pulse.wait_for(%s, 'charge', '1 s')$$, :l), 'PU002', NULL, 'nor a saved step be waited for');

-- Signals
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'approval', '3 days', 'approved 7') AS w), 'waiting', 'a job waits for a signal');
SELECT is(pulse.signal('approved 8'), 0, 'another signal wakes nobody');
SET LOCAL ROLE bob;
SELECT is(pulse.signal('approved 7', '"bob"'), 0, 'one of another producer counts for its own jobs alone');
RESET ROLE;
-- proves: G22
SELECT is(pulse.signal('approved 7', '{"by": "ann"}'), 1, 'guarantee 22: the signal wakes who waits');
SELECT is(pulse.signal('approved 7', '{"by": "eve"}'), 0, 'the first of a name counts, later ones change nothing');
SELECT pg_temp.lease('o') AS l \gset
SELECT results_eq(
    format($$SELECT w.verdict, w.payload FROM pulse.wait_for(%s, 'approval', '3 days', 'approved 7') AS w$$, :l),
    $$VALUES ('received', '{"by": "ann"}'::jsonb)$$, 'and its payload comes with it'
);
SELECT results_eq(
    format($$SELECT w.verdict FROM pulse.wait_for(%s, 'early', '3 days', 'approved 8') AS w$$, :l),
    $$VALUES ('received')$$, 'guarantee 22: signal sent before anybody waits: kept'
);
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'late', '3 days', 'approved 9') AS w), 'waiting', 'another wait');
SELECT pulse.signal('approved 10', keep => '0') AS woke \gset
SELECT pg_temp.pass('o') \g /dev/null
SELECT pg_temp.lease('o') AS l \gset
SELECT is(pulse.signal('approved 9'), 0, 'a signal for a job that runs again wakes nobody');
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'late', '3 days', 'approved 9') AS w), 'received', 'signal and timeout together: a sent signal wins');
SELECT is((SELECT w.verdict FROM pulse.wait_for(:l, 'past', '0', 'approved 10') AS w), 'timeout', 'an expired signal is none');
SELECT is((SELECT pulse_internal.tick_signals(100)), 1, 'and tick removes it');
SELECT pulse.enqueue('k', lane => 'short') AS short \gset
SELECT (pulse.wait_for(pg_temp.lease('short'), 's', '1 day', 'brief')).verdict AS v \gset
SELECT is(pulse.signal('brief', '7', keep => '0'), 1, 'a signal that is not kept wakes who waits for it');
SELECT is(pulse_internal.tick_signals(100), 1, 'and is gone');
SELECT results_eq(
    $$SELECT w.verdict, w.payload FROM pulse.wait_for(pg_temp.lease('short'), 's', '1 day', 'brief') AS w$$,
    $$VALUES ('received', '7'::jsonb)$$, 'but the job was given it when it was woken'
);
SELECT throws_ok($$SELECT pulse.signal('')$$, 'PU002', NULL, 'a signal has a name');
SELECT throws_ok($$SELECT pulse.signal('x', keep => '-1 s')$$, 'PU002', NULL, 'and a time to be kept');
SELECT throws_ok($$SELECT pulse.signal('x', to_jsonb(repeat('x', 1048577)))$$, 'PU003', NULL, 'a payload above 1 MB: PU003');

-- What is kept, and for how long
SELECT pulse.complete(:l, '"shipped"') \g /dev/null
SELECT pulse.enqueue('k', lane => 'keep', after => ARRAY[:ord, :root]) AS child \gset
UPDATE pulse_internal.finished SET finished_at = clock_timestamp() - interval '1 year' WHERE job IN (:ord, :root);
SELECT is(pulse.prune(), 0::bigint, 'result of an upstream: kept as long as an unfinished job depends on it');
SELECT throws_ok(format('SELECT pulse.delete_job(%s)', :ord), 'PU105', NULL, 'delete_job of one that is needed: PU105');
SELECT pulse.cancel(:child) \g /dev/null
SELECT lives_ok(format('SELECT pulse.delete_job(%s)', :child), 'what depended on it goes');
SELECT is(pulse.prune(), 1::bigint, 'and then it may go; the root is still needed');
SELECT is((SELECT count(*) FROM pulse_internal.job_step WHERE job = :ord), 0::bigint, 'with their steps');
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing');

-- The name lock: no signal of a role has the lock of another role's

INSERT INTO pulse_internal.role (role, name) OVERRIDING SYSTEM VALUE
SELECT n, 'sender ' || n FROM generate_series(70001, 70002) AS n;
SELECT is_empty(
    $$
    SELECT a.n
    FROM generate_series(1, 500) AS a (n)
    WHERE pulse_internal.signal_key('s' || a.n, 70001) >> 16
        IN (pulse_internal.signal_key('t' || a.n, 70002) >> 16, pulse_internal.signal_key('t' || a.n, 0) >> 16)
        OR pulse_internal.signal_key('s' || a.n, 70001) >> 16 <> pulse_internal.signal_key('s', 70001) >> 16
    $$,
    'the role alone decides about the upper half of a lock key'
);
SELECT ok(
    (SELECT count(DISTINCT pulse_internal.signal_key('s' || n, 70001)) > 450 FROM generate_series(1, 500) AS n),
    'the name about the lower one'
);

SELECT * FROM finish();
ROLLBACK;
