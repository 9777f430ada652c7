-- One round trip: reports, then claims; and hello.
BEGIN;

SELECT plan(66);

CREATE FUNCTION pg_temp.leases(lane text)
RETURNS bigint []
LANGUAGE sql
AS $$ SELECT array_agg(l.lease ORDER BY l.lease) FROM pulse_internal.lease AS l WHERE l.lane = leases.lane $$;

-- Reports and claims

SELECT pg_temp.claim('work') AS lease FROM generate_series(1, 5) \g /dev/null
SELECT pg_temp.leases('work') AS l \gset
SELECT pulse.enqueue('k', jsonb_build_array(n), lane => 'work', group_key => 'g') AS job FROM generate_series(1, 3) AS n \g /dev/null
SELECT pulse.enqueue('k', '["other"]', lane => 'also', priority => 2) AS job \gset
CREATE TEMPORARY TABLE answer AS
SELECT e.*, row_number() OVER () AS place
FROM pulse.exchange(
    'alice',
    '{"work": 2, "also": 5, "none": 1, "zero": 0}',
    jsonb_build_array(
        jsonb_build_object('lease', ((:'l'::bigint [])[1])::text, 'result', '{"ok": true}'::jsonb),
        jsonb_build_object('lease', '711'),
        jsonb_build_object('lease', (:'l'::bigint [])[2])
    ),
    jsonb_build_array(
        jsonb_build_object('lease', ((:'l'::bigint [])[3])::text, 'error', 'oops', 'retry_in', '1 hour'),
        jsonb_build_object('lease', '712', 'error', 'whose?'),
        jsonb_build_object('lease', ((:'l'::bigint [])[4])::text, 'error', 'never', 'fatal', true)
    )
) AS e;
SELECT results_eq(
    'SELECT a.item, a.verdict, a.lease FROM answer AS a WHERE a.item <> ''job'' ORDER BY a.place',
    $$VALUES ('done', 'lost', 711::bigint), ('failed', 'lost', 712)$$,
    'first the reports that were not accepted, and why'
);
SELECT results_eq(
    'SELECT a.lane, a.payload FROM answer AS a WHERE a.item = ''job'' ORDER BY a.place',
    $$VALUES ('also', '["other"]'::jsonb), ('work', '[1]'), ('work', '[2]')$$,
    'then the jobs, lane by lane in the order of names, as many as wanted'
);
SELECT row_eq(
    'SELECT a.kind, a.attempt, a.failures, a.max_attempts, a.priority, a.group_key, a.verdict FROM answer AS a WHERE a.payload = ''[1]''',
    ROW ('k'::text, 1, 0, 3, 0, 'g'::text, NULL::text), 'with all that a claim gives'
);
SELECT is(
    (SELECT count(*) FROM answer AS a JOIN pulse_internal.lease AS l ON l.lease = a.lease AND l.worker = 'alice'),
    3::bigint, 'leased to the worker'
);
SELECT results_eq(
    'SELECT f.lease, f.state::text, f.result, f.error FROM pulse_internal.finished AS f WHERE f.lane = ''work'' ORDER BY f.lease',
    format(
        'VALUES (%s::bigint, ''completed'', ''{"ok": true}''::jsonb, NULL), (%s, ''completed'', NULL, NULL), (%s, ''dead'', NULL, ''never'')',
        (:'l'::bigint [])[1], (:'l'::bigint [])[2], (:'l'::bigint [])[4]
    ),
    'the reports have done what complete and fail do'
);
SELECT ok(
    (
        SELECT w.run_at - clock_timestamp() BETWEEN interval '59 min' AND interval '60 min'
        FROM pulse_internal.waiting AS w WHERE w.lane = 'work'
    ),
    'retry_in as well'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = (:'l'::bigint [])[5]), 1::bigint,
    'what was not reported runs on'
);

-- What has no result may be reported as a list of leases, beside others or alone.

SELECT pg_temp.claim('plain') AS lease FROM generate_series(1, 4) \g /dev/null
SELECT pg_temp.leases('plain') AS l \gset
SELECT results_eq(
    format(
        $$
        SELECT e.item, e.verdict, e.lease
        FROM pulse.exchange(
            'w', done => '[{"lease": "%s", "result": 3}]', completed => '{%1$s, %s, 713, %s}'
        ) AS e
        $$, (:'l'::bigint [])[3], (:'l'::bigint [])[1], (:'l'::bigint [])[2]
    ),
    $$VALUES ('done', 'lost', 713::bigint)$$,
    'a lease of completed that was lost has a verdict, too'
);
SELECT results_eq(
    'SELECT f.lease, f.state::text, f.result FROM pulse_internal.finished AS f WHERE f.lane = ''plain'' ORDER BY f.lease',
    format(
        'VALUES (%s::bigint, ''completed'', NULL::jsonb), (%s, ''completed'', NULL), (%s, ''completed'', ''3'')',
        (:'l'::bigint [])[1], (:'l'::bigint [])[2], (:'l'::bigint [])[3]
    ),
    'each has its own result, or none; one in both lists keeps its result'
);
SELECT is_empty(
    format(
        $$SELECT * FROM pulse.exchange('w', done => '[{"lease": "%s"}]', completed => '{%s}')$$,
        (:'l'::bigint [])[3], (:'l'::bigint [])[4]
    ),
    'no results at all: completed, and repeated'
);
SELECT is_empty($$SELECT * FROM pulse.exchange('w', completed => '{}')$$, 'nothing completed: nothing');
SELECT is(
    (SELECT count(*) FROM pulse_internal.finished AS f WHERE f.lane = 'plain'), 4::bigint, 'all have ended'
);

-- A slot that is given back is used in the same trip.

SELECT pulse.set_lane('one-slot', max_slots => 1);
SELECT pg_temp.claim('one-slot') AS lease \gset
SELECT pulse.enqueue('k', '["next"]', lane => 'one-slot') AS job \gset
SELECT is_empty($$SELECT * FROM pulse.exchange('w', '{"one-slot": 1}')$$, 'a full lane gives nothing');
SELECT results_eq(
    format(
        'SELECT e.item, e.verdict, e.payload FROM pulse.exchange(''w'', ''{"one-slot": 1}'', ''[{"lease": "%s"}]'') AS e',
        :lease
    ),
    $$VALUES ('job', NULL::text, '["next"]'::jsonb)$$,
    'reporting comes first, so its slot is free for the claim'
);

-- Repeated

-- proves: G16
SELECT is_empty(
    format(
        'SELECT * FROM pulse.exchange(''w'', done => ''[{"lease": "%s"}, {"lease": "%s"}]'') AS e',
        :lease, :lease
    ),
    'guarantee 16: repeated reports are accepted'
);
SELECT is_empty($$SELECT * FROM pulse.exchange('w')$$, 'nothing to report, nothing wanted: nothing');
SELECT is_empty(
    $$SELECT * FROM pulse.exchange('w', '{"work": 9}', kinds => '{other}')$$,
    'kinds are obeyed'
);
SELECT ok(
    (
        SELECT e.lease_until - clock_timestamp() BETWEEN interval '110 s' AND interval '120 s'
        FROM pulse.exchange('w', '{"work": 1}', lease_for => '2 minutes') AS e
    ),
    'lease_for too'
);

-- Verdicts instead of errors

SELECT pg_temp.claim('big') AS lease \gset
SELECT results_eq(
    format(
        $$
        SELECT e.item, e.verdict
        FROM pulse.exchange(
            'w', '{}',
            jsonb_build_array(jsonb_build_object('lease', '%1$s', 'result', repeat('x', 1048577))),
            jsonb_build_array(jsonb_build_object('lease', '%1$s', 'error', repeat('x', 1048577)))
        ) AS e
        $$, :lease
    ),
    $$VALUES ('done', 'too_large'), ('failed', 'too_large')$$, 'too large is a verdict'
);
SELECT results_eq(
    $$SELECT e.verdict FROM pulse.exchange('w', done => '[{}, {"lease": null}]', failed => '[{}]') AS e$$,
    $$VALUES ('lost'), ('lost'), ('lost')$$, 'a report without a lease is lost'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = :lease), 1::bigint, 'nothing changed'
);

-- All or none

SELECT throws_ok(
    format('SELECT pulse.exchange(%s)', replace(b.arguments, '@', :'lease')), b.code, NULL,
    format('exchange(%s) is refused', left(b.arguments, 80))
)
FROM (
    VALUES
    ('NULL, ''{"work": 1}'', ''[{"lease": "@"}]''', 'PU002'),
    (''''', ''{"work": 1}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": -1}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": null}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"": 1}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": "many"}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": [1]}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": 1}'', ''[[{"lease": "@"}]]''', 'PU002'),
    ('''w'', ''{"work": 1}'', ''[[]]''', 'PU002'),
    ('''w'', ''{"work": 1}'', ''[{"lease": "9999999999999999999"}]''', 'PU002'),
    ('''w'', ''{"work": 1}'', ''[{"lease": "@"}]'', kinds => ''{{a},{b}}''', 'PU002'),
    ('''w'', ''{"work": 1.5}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": 99999999999}'', ''[{"lease": "@"}]''', 'PU002'),
    ('''w'', ''{"work": 1}'', ''[{"lease": "@"}]'', kinds => ''{}''', 'PU002'),
    ('''w'', ''{"work": 1}'', ''[{"lease": "@"}]'', lease_for => ''0''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}]'', ''[{"lease": "1", "retry_in": "-1 s"}]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}, {"lease": "abc"}]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}, 1]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": ""}]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}]'', ''[{"lease": "1", "retry_in": "soon"}]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}]'', ''[{"lease": "1", "fatal": "very"}]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}, {"lease": ""}]''', 'PU002'),
    ('''w'', ''{}'', ''[{"lease": "@"}]'', ''[{"lease": "abc"}]''', 'PU002'),
    ('''w'', NULL', 'PU002'), ('''w'', ''[]''', 'PU002'), ('''w'', ''1''', 'PU002'),
    ('''w'', ''null''', 'PU002'),
    ('''w'', done => NULL', 'PU002'), ('''w'', done => ''{}''', 'PU002'),
    ('''w'', failed => NULL', 'PU002'), ('''w'', failed => ''"x"''', 'PU002'),
    ('''w'', completed => ''{{@}}''', 'PU002')
) AS b (arguments, code);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = :lease), 1::bigint,
    'and reports nothing: the whole exchange happens or none of it'
);

-- hello

SELECT lives_ok(
    $$SELECT pulse.hello('alice', '{a,b}', '{k}')$$, 'a worker says that it is there'
);
SELECT results_eq(
    'SELECT w.worker, w.lanes, w.kinds, w.seen_by FROM pulse_internal.worker AS w',
    $$VALUES ('alice', '{a,b}'::text [], '{k}'::text [], session_user)$$, 'which is kept'
);
SELECT w.seen_at FROM pulse_internal.worker AS w \gset
SELECT pulse.hello('alice', '{a,b}', '{k}') \g /dev/null
SELECT is(
    (SELECT w.seen_at FROM pulse_internal.worker AS w), :'seen_at', 'once in 30 seconds is enough'
);
UPDATE pulse_internal.worker SET seen_at = seen_at - interval '31 s';
SELECT pulse.hello('alice', '{a,b}', '{k}') \g /dev/null
SELECT cmp_ok(
    (SELECT w.seen_at FROM pulse_internal.worker AS w), '>', :'seen_at'::timestamptz,
    'then it is written again'
);
SELECT pulse.hello('alice', '{a}', '{k}') \g /dev/null
SELECT is((SELECT w.lanes FROM pulse_internal.worker AS w), '{a}', 'other lanes are written at once');
SELECT pulse.hello('alice', '{a}') \g /dev/null
SELECT is((SELECT w.kinds FROM pulse_internal.worker AS w), NULL, 'other kinds too; none is all of them');
SELECT pulse.hello('bob') \g /dev/null
SELECT is(
    (SELECT w.lanes FROM pulse_internal.worker AS w WHERE w.worker = 'bob'), '{default}',
    'the lane default, if none is named'
);
SELECT lives_ok($$SELECT pulse.hello('carol', NULL, NULL)$$, 'NULL lanes are none');
SELECT throws_ok('SELECT pulse.hello(NULL)', 'PU002', NULL, 'a worker has a name');
SELECT throws_ok($$SELECT pulse.hello('')$$, 'PU002', NULL, 'not an empty one');
SELECT throws_ok(
    $$SELECT pulse.hello(repeat('w', 201))$$, 'PU002', NULL, 'of up to 200 characters'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
