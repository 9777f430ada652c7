-- Many jobs in one call: one kind with many payloads, or a mixed list.
BEGIN;

SELECT plan(72);

CREATE FUNCTION pg_temp.queue()
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT
        (SELECT count(*) FROM pulse_internal.body) + (SELECT count(*) FROM pulse_internal.ready)
        + (SELECT count(*) FROM pulse_internal.waiting) + (SELECT count(*) FROM pulse_internal.approval)
        + (SELECT count(*) FROM pulse_internal.job_key)
$$;

-- One kind

CREATE TEMPORARY TABLE written AS
SELECT m.job, m.place
FROM pulse.enqueue_many(
    'k', ARRAY['{"n": 1}', '{"n": 2}', NULL, '{"n": 4}']::jsonb [], lane => 'l', priority => 3,
    max_attempts => 7, group_key => 'g', tags => '{t}', max_runtime => '1 h'
) WITH ORDINALITY AS m (job, place);
SELECT results_eq(
    'SELECT b.payload FROM written AS w JOIN pulse_internal.body AS b USING (job) ORDER BY w.place',
    $$VALUES ('{"n": 1}'::jsonb), ('{"n": 2}'), ('{}'), ('{"n": 4}')$$,
    'ids come back in the order of the payloads, and NULL is an empty object'
);
SELECT results_eq(
    'SELECT w.place FROM written AS w JOIN pulse_internal.ready AS r USING (job) ORDER BY r.rank, r.seq',
    'SELECT w.place FROM written AS w ORDER BY w.place', 'they stand in line in that order'
);
SELECT results_eq(
    $$
    SELECT DISTINCT r.lane COLLATE "default", r.rank, b.max_attempts, b.group_key COLLATE "default", b.tags,
        b.max_runtime, (SELECT n.name FROM pulse_internal.role_names AS n WHERE n.role = b.owner)
    FROM pulse_internal.ready AS r
    JOIN pulse_internal.body AS b USING (job)
    $$,
    $$VALUES ('l', -3, 7, 'g', '{t}'::text [], interval '1 h', session_user)$$,
    'each has every option'
);
SELECT is(
    (
        SELECT count(*)
        FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[500]), delay => '1 h')
    ),
    500::bigint, 'a delay schedules all of them'
);
SELECT is((SELECT count(*) FROM pulse_internal.waiting), 500::bigint, 'once');
SELECT is_empty(
    $$SELECT pulse.enqueue_many('k', '{}'::jsonb [])$$, 'no payload is no job'
);
SELECT is_empty(
    $$SELECT pulse.enqueue_many('k', '{}'::jsonb [], unique_key => 'u')$$, 'nor with a key'
);
SELECT is(
    (
        SELECT count(DISTINCT m)
        FROM pulse.enqueue_many('k', ARRAY['1', '2', '3']::jsonb [], unique_key => 'one') AS m
    ),
    1::bigint, 'with a key the first payload makes the job, and the others find it'
);
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.unique_key = 'one'), '1'::jsonb,
    'which keeps the first payload'
);
SELECT is(
    (
        SELECT count(*)
        FROM pulse.enqueue_many('k', ARRAY['1', '2']::jsonb [], requires_approval => true) AS m
        JOIN pulse_internal.approval AS a ON a.job = m
    ),
    0::bigint, 'a call that asks for approval is not seen by its own statement'
);
SELECT is((SELECT count(*) FROM pulse_internal.approval), 2::bigint, 'but asks for each job');
SELECT pulse.set_kind('careful', lane => 'slow', priority => 2, requires_approval => true);
SELECT is(
    (SELECT count(*) FROM pulse.enqueue_many('careful', ARRAY['1', '2']::jsonb [])), 2::bigint,
    'a kind may ask for it'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.approval AS a WHERE a.lane = 'slow' AND a.rank = -2), 2::bigint,
    'and gives lane and priority'
);

SELECT pg_temp.queue() AS before \gset
SELECT throws_ok(
    format('SELECT pulse.enqueue_many(%s)', b.arguments), 'PU002', NULL,
    format('enqueue_many(%s) is refused', left(b.arguments, 80))
)
FROM (
    VALUES
    ('NULL, ''{1}''::jsonb []'), (''''', ''{1}''::jsonb []'),
    ('''k'', NULL::jsonb []'),
    ('''k'', ''{1}''::jsonb [], lane => '''''),
    ('''k'', ''{1}''::jsonb [], priority => 2000000001'),
    ('''k'', ''{1}''::jsonb [], priority => -2147483648'),
    ('''k'', ''{1}''::jsonb [], run_at => ''infinity'''),
    ('''k'', ''{1}''::jsonb [], delay => ''-1 s'''),
    ('''k'', ''{1}''::jsonb [], run_at => now(), delay => ''1 s'''),
    ('''k'', ''{1}''::jsonb [], max_attempts => 0'),
    ('''k'', ''{1}''::jsonb [], max_runtime => ''0'''),
    ('''k'', ''{1}''::jsonb [], group_key => repeat(''g'', 1001)'),
    ('''k'', ''{1}''::jsonb [], tags => array_fill(''t''::text, ARRAY[101])'),
    ('''k'', ''{1}''::jsonb [], unique_for => ''1 h'''),
    ('''k'', ''{1}''::jsonb [], unique_key => '''''),
    ('''k'', ''{1}''::jsonb [], unique_key => ''x'', on_conflict => ''y''')
) AS b (arguments);
SET LOCAL pulse.max_payload = '100 bytes';
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('k', ARRAY['1', to_jsonb(repeat('x', 200)), '3']::jsonb [])$$,
    'PU003', NULL, 'one payload that is too large refuses all'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('k', ARRAY['1', to_jsonb(repeat('x', 200))]::jsonb [], unique_key => 'b', on_conflict => 'replace')$$,
    'PU003', NULL, 'with a key too'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue_many(jsonb_build_array('{"kind": "k"}'::jsonb, jsonb_build_object('kind', 'k', 'payload', repeat('x', 200))))$$,
    'PU003', NULL, 'and in a list'
);
RESET pulse.max_payload;
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('k', ARRAY['1', to_jsonb(repeat('x', 8400000))]::jsonb [])$$,
    'PU003', NULL, 'at 8 MB without a setting'
);
SELECT is(pg_temp.queue(), :before::bigint, 'and what is refused leaves nothing behind');

-- A mixed list

DROP TABLE written;
SELECT pulse.enqueue('k', '{"was": 1}', unique_key => 'taken') AS taken \gset
CREATE TEMPORARY TABLE written AS
SELECT m.job, m.place
FROM pulse.enqueue_many($$[
    {"kind": "a", "payload": {"n": 1}, "unique_key": "z"},
    {"kind": "b", "payload": {"n": 2}, "lane": "l2", "priority": 5, "max_attempts": 2},
    {"kind": "c", "payload": {"n": 3}, "unique_key": "taken"},
    {"kind": "a", "payload": {"n": 4}, "unique_key": "y", "delay": "1 hour"},
    {"kind": "d", "payload": {"n": 5}, "requires_approval": true, "tags": ["x", "y"]},
    {"kind": "a", "payload": {"n": 6}, "unique_key": "z"},
    {"kind": "e", "max_runtime": "5 minutes", "group_key": "g", "run_at": null}
]$$) WITH ORDINALITY AS m (job, place);
SELECT is((SELECT count(*) FROM written), 7::bigint, 'a list answers for each element');
SELECT results_eq(
    $$
    SELECT w.place, j.kind COLLATE "default", j.payload, j.state
    FROM written AS w
    JOIN pulse.jobs AS j ON j.job_id = w.job
    ORDER BY w.place
    $$,
    $$
    VALUES (1::bigint, 'a', '{"n": 1}'::jsonb, 'ready'), (2, 'b', '{"n": 2}', 'ready'),
        (3, 'k', '{"was": 1}', 'ready'), (4, 'a', '{"n": 4}', 'scheduled'),
        (5, 'd', '{"n": 5}', 'awaiting_approval'), (6, 'a', '{"n": 1}', 'ready'),
        (7, 'e', '{}', 'ready')
    $$,
    'in its order, each with its own options, keys found or taken'
);
SELECT is(
    (SELECT w.job FROM written AS w WHERE w.place = 3), :taken::bigint,
    'a key that was taken gives the job that has it'
);
SELECT is(
    (SELECT w.job FROM written AS w WHERE w.place = 6),
    (SELECT w.job FROM written AS w WHERE w.place = 1),
    'a key twice in one list gives one job, the first'
);
SELECT row_eq(
    'SELECT b.max_attempts, r.lane, r.rank FROM written AS w JOIN pulse_internal.body AS b USING (job) JOIN pulse_internal.ready AS r USING (job) WHERE w.place = 2',
    ROW (2, 'l2'::text COLLATE "C", -5), 'options are read'
);
SELECT row_eq(
    'SELECT b.max_runtime, b.group_key FROM written AS w JOIN pulse_internal.body AS b USING (job) WHERE w.place = 7',
    ROW (interval '5 min', 'g'::text COLLATE "C"), 'all of them'
);
SELECT row_eq(
    'SELECT b.tags, (SELECT n.name FROM pulse_internal.role_names AS n WHERE n.role = b.owner) FROM written AS w JOIN pulse_internal.body AS b USING (job) WHERE w.place = 5',
    ROW ('{x,y}'::text [], session_user), 'tags too'
);
SELECT is_empty($$SELECT pulse.enqueue_many('[]')$$, 'an empty list is no job');
DROP TABLE written;
CREATE TEMPORARY TABLE written AS
SELECT m.job, m.place
FROM pulse.enqueue_many(
    (
        SELECT jsonb_agg(
            jsonb_build_object('kind', 'o', 'lane', 'order', 'unique_key', md5(n::text))
            ORDER BY n
        )
        FROM generate_series(1, 50) AS n
    )
) WITH ORDINALITY AS m (job, place);
SELECT results_eq(
    'SELECT w.place FROM written AS w JOIN pulse_internal.ready AS r USING (job) ORDER BY r.seq',
    'SELECT w.place FROM written AS w ORDER BY w.place',
    'keys are taken in sorted order, yet jobs stand in line in the order of the list'
);
SELECT pulse.enqueue_many(
    '[{"kind": "k", "payload": {"now": 2}, "unique_key": "taken", "on_conflict": "replace"}]'
) AS same \gset
SELECT is(:same::bigint, :taken::bigint, 'an element may replace');
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :taken), '{"now": 2}'::jsonb,
    'the payload'
);

SELECT pg_temp.queue() AS before \gset
SELECT throws_ok(
    format('SELECT pulse.enqueue_many(%L::jsonb)', b.jobs), b.code, NULL,
    format('the list %s is refused', left(b.jobs, 90))
)
FROM (
    VALUES
    (NULL, 'PU002'), ('null', 'PU002'), ('{}', 'PU002'), ('1', 'PU002'), ('"x"', 'PU002'),
    ('[1]', 'PU002'), ('[null]', 'PU002'), ('[[]]', 'PU002'),
    ('[{}]', 'PU002'),
    ('[{"kind": ""}]', 'PU002'),
    ('[{"kind": "k"}, {"kind": "k", "wat": 1}]', 'PU002'),
    ('[{"kind": "k"}, {"payload": 1}]', 'PU002'),
    ('[{"kind": "k", "priority": 2000000001}]', 'PU002'),
    ('[{"kind": "k", "lane": ""}]', 'PU002'),
    ('[{"kind": "k", "delay": "-1 s"}]', 'PU002'),
    ('[{"kind": "k", "run_at": "infinity"}]', 'PU002'),
    ('[{"kind": "k", "unique_for": "1 h"}]', 'PU002'),
    ('[{"kind": "k", "unique_key": "n", "on_conflict": "x"}]', 'PU002'),
    ('[{"kind": "k", "priority": "high"}]', '22P02'),
    ('[{"kind": "k", "delay": "soon"}]', '22007'),
    ('[{"kind": "k", "priority": 99999999999}]', '22003'),
    ('[{"kind": "k", "unique_key": "n2"}, {"kind": "k", "unique_key": "taken", "on_conflict": "error"}]', 'PU102')
) AS b (jobs, code);
SELECT is(pg_temp.queue(), :before::bigint, 'and leaves nothing behind: all or none');

-- A replace in a list obeys the same bounds as everywhere.

SELECT throws_ok(
    format('SELECT pulse.enqueue_many(%L::jsonb)', b.jobs), b.code, NULL, b.name
)
FROM (
    VALUES
    (
        '[{"kind": "k", "unique_key": "taken", "on_conflict": "replace", "run_at": "infinity"}]',
        'PU002', 'a replace in a list cannot put a job off for ever'
    ),
    (
        '[{"kind": "k", "unique_key": "taken", "on_conflict": "replace", "priority": 2100000000}]',
        'PU002', 'nor give a priority out of bounds'
    ),
    (
        jsonb_build_array(jsonb_build_object(
            'kind', 'k', 'unique_key', 'taken', 'on_conflict', 'replace',
            'payload', repeat('x', 8400000)
        ))::text,
        'PU003', 'nor a payload above 8 MB'
    )
) AS b (jobs, code, name);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong with any of it');

SELECT * FROM finish();

ROLLBACK;
