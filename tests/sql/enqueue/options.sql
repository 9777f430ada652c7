-- Every way to enqueue gives the same answer about the options of a job: the five doors
-- are asked with the same options, and must raise the same error or none.
BEGIN;

SELECT plan(51);

-- The SQLSTATE and the message of the error that a statement raises; NULL if none.
CREATE FUNCTION pg_temp.answer(statement text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_state text;
    v_message text;
BEGIN
    EXECUTE statement;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE, v_message = MESSAGE_TEXT;
    RETURN concat_ws(' ', v_state, v_message);
END;
$$;

-- What enqueue, enqueue_one, both enqueue_many (the list with a key that is taken as
-- well) and schedule answer, each once. The options are {"name": "SQL expression"}.
CREATE FUNCTION pg_temp.answers(options jsonb)
RETURNS text []
LANGUAGE plpgsql
AS $$
DECLARE
    v_named text;
    v_json text;
    v_doors text [];
BEGIN
    SELECT
        coalesce(string_agg(format(', %s => %s', o.key, o.value), ''), ''),
        'jsonb_build_object(''kind'', ''k'''
        || coalesce(string_agg(format(', %L, %s', o.key, o.value), ''), '') || ')'
    INTO v_named, v_json
    FROM jsonb_each_text(answers.options) AS o;

    v_doors := ARRAY[
        format('SELECT pulse.enqueue(''k''%s)', v_named),
        format('SELECT pulse.enqueue_one(''k''%s)', v_named),
        format('SELECT pulse.enqueue_many(''k'', ARRAY[''1'']::jsonb []%s)', v_named),
        format('SELECT pulse.enqueue_many(''k'', ''{}''::jsonb []%s)', v_named),
        format('SELECT pulse.enqueue_many(jsonb_build_array(%s))', v_json)
    ];
    IF NOT answers.options ? 'unique_key' AND NOT answers.options ? 'unique_for' THEN
        v_doors := v_doors || format(
            'SELECT pulse.enqueue_many(jsonb_build_array(%s || ''{"unique_key": "taken"}''))', v_json
        );
    END IF;
    IF NOT answers.options ?| '{run_at,delay,on_conflict}' THEN
        v_doors := v_doors || format(
            'SELECT pulse.schedule(''s'', ''k'', every => ''1 h''%s)', v_named
        );
    END IF;

    RETURN array(
        SELECT DISTINCT coalesce(pg_temp.answer(d.door), 'taken') AS answer
        FROM unnest(v_doors) AS d (door)
        ORDER BY answer
    );
END;
$$;

SELECT pulse.enqueue('k', unique_key => 'taken') \g /dev/null

SELECT is(
    pg_temp.answers(b.options::jsonb), ARRAY[b.answer],
    format('%s: %s', left(b.options, 90), b.answer)
)
FROM (
    VALUES
    ('{"lane": "''''"}', 'PU002 lane must be a name of 1 to 200 characters'),
    ('{"lane": "repeat(''l'', 201)"}', 'PU002 lane must be a name of 1 to 200 characters'),
    ('{"priority": "2000000001"}', 'PU002 priority must be between -2000000000 and 2000000000'),
    ('{"priority": "-2147483648"}', 'PU002 priority must be between -2000000000 and 2000000000'),
    ('{"run_at": "''infinity''"}', 'PU002 run_at must be a moment in time'),
    ('{"run_at": "now()", "delay": "''1 s''"}', 'PU002 run_at and delay exclude each other'),
    ('{"delay": "''-1 s''"}', 'PU002 delay must be between 00:00:00 and 100 years'),
    ('{"delay": "''101 years''"}', 'PU002 delay must be between 00:00:00 and 100 years'),
    ('{"max_attempts": "0"}', 'PU002 max_attempts must be between 1 and 100000'),
    ('{"max_attempts": "100001"}', 'PU002 max_attempts must be between 1 and 100000'),
    ('{"unique_key": "''''"}', 'PU002 size of unique_key in bytes must be between 1 and 1000'),
    ('{"unique_key": "repeat(''x'', 1001)"}', 'PU002 size of unique_key in bytes must be between 1 and 1000'),
    ('{"unique_key": "repeat(''€'', 334)"}', 'PU002 size of unique_key in bytes must be between 1 and 1000'),
    ('{"unique_for": "''1 h''"}', 'PU002 unique_for needs a unique_key'),
    ('{"unique_key": "''x''", "unique_for": "''-1 s''"}', 'PU002 unique_for must be between 00:00:00 and 10 years'),
    ('{"unique_key": "''taken''", "unique_for": "''11 years''"}', 'PU002 unique_for must be between 00:00:00 and 10 years'),
    ('{"on_conflict": "''bogus''"}', 'PU002 on_conflict must be one of skip, replace, error, follow, cancel'),
    ('{"group_key": "repeat(''g'', 1001)"}', 'PU002 length of group_key must be between 0 and 1000'),
    ('{"tags": "array_fill(''t''::text, ARRAY[101])"}', 'PU002 number of tags must be between 0 and 100'),
    ('{"tags": "ARRAY[ARRAY[''a'', ''b''], ARRAY[''c'', ''d'']]"}', 'PU002 tags must be a flat list'),
    ('{"max_runtime": "''0''"}', 'PU002 max_runtime must be between 00:00:00.001 and 1 year'),
    ('{"max_runtime": "''2 years''"}', 'PU002 max_runtime must be between 00:00:00.001 and 1 year'),
    -- Within the bounds by months of 30 days, and beyond all time when added to a moment: a claim, a
    -- report or a release that did so would fail for all its jobs.
    ('{"max_runtime": "''70000000 months -2099999999 days''"}', 'PU002 max_runtime must not count backwards'),
    ('{"delay": "''70000000 months -2099999999 days''"}', 'PU002 delay must not count backwards'),
    ('{"unique_key": "''x''", "unique_for": "''70000000 months -2099999999 days''"}', 'PU002 unique_for must not count backwards'),
    ('{"expires_in": "''-1 month 30 days 1 hour''"}', 'PU002 expires_in must not count backwards'),
    ('{"max_runtime": "''1 day -1 microsecond''"}', 'PU002 max_runtime must not count backwards'),
    ('{}', 'taken'),
    ('{"lane": "NULL", "priority": "NULL", "unique_key": "NULL", "tags": "NULL"}', 'taken'),
    ('{"on_conflict": "NULL"}', 'taken'),
    ('{"delay": "''0''"}', 'taken'),
    ('{"delay": "''100 years''"}', 'taken'),
    ('{"run_at": "''9999-12-31 00:00+00''"}', 'taken'),
    ('{"group_key": "''''"}', 'taken'),
    ('{"tags": "''{}''::text []"}', 'taken'),
    ('{"tags": "ARRAY[''a'', NULL]"}', 'taken'),
    ('{"unique_key": "repeat(''€'', 333)", "unique_for": "''0''"}', 'taken')
) AS b (options, answer);

SELECT is(
    array(
        SELECT DISTINCT pg_temp.answer(format(
            'SELECT set_config(''intervalstyle'', %L, true), pulse.enqueue(''k'', delay => %L)',
            s.style, d.delay
        ))
        FROM unnest('{1 day -1 hour,-1 day 25 hours,1 month -1 day,-1 month 31 days}'::text []) AS d (delay)
    ),
    ARRAY['PU002 delay must not count backwards'],
    format('a delay that counts backwards in part is refused with intervalstyle %s', s.style)
)
FROM unnest('{postgres,postgres_verbose,sql_standard,iso_8601}'::text []) AS s (style);

-- An element that finds its key taken is as wrong as one that does not.
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('[{"kind": "k", "unique_key": "l"}, {"kind": "k", "unique_key": "l", "unique_for": "-1 s"}]')$$,
    'PU002', NULL, 'an option of an element whose key an earlier element has is checked'
);

-- A payload

SELECT throws_ok(
    format('SELECT pulse.%s', d.door), 'PU003', 'payload is larger than 8192 kB',
    format('%s refuses a payload above 8 MB', split_part(d.door, '(', 1))
)
FROM (
    VALUES
    ($$schedule('s', 'k', to_jsonb(repeat('x', 8400000)), every => '1 h')$$),
    ($$enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'k', 'unique_key', 'taken', 'payload', repeat('x', 8400000))))$$)
) AS d (door);
SELECT pulse.enqueue('payloads', NULL) \g /dev/null
SELECT pulse.enqueue('payloads', 'null') \g /dev/null
SELECT pulse.enqueue_many('payloads', ARRAY[NULL, 'null']::jsonb []) \g /dev/null
SELECT pulse.enqueue_many('[{"kind": "payloads", "payload": null}]') \g /dev/null
SELECT results_eq(
    $$SELECT b.payload FROM pulse_internal.body AS b WHERE b.kind = 'payloads' ORDER BY b.job$$,
    $$VALUES ('{}'::jsonb), ('null'), ('{}'), ('null'), ('{}')$$,
    'no payload is an empty object; JSON null stays, but in a list it says: not given'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong with any of it');


-- Limits that hold whatever the value is made of

SELECT throws_ok(
    $$
    SELECT pulse.enqueue('k', jsonb_build_object('n', jsonb_agg(1e131071::numeric)))
    FROM generate_series(1, 100)
    $$,
    'PU003', NULL, 'numbers that are small as jsonb and huge as text are refused'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', run_at => '294276-01-01')$$,
    'PU002', NULL, 'run_at is a year that clients can read'
);
SELECT throws_ok(
    $$SELECT pulse.schedule('far', 'k', at => '200000-01-01')$$,
    'PU002', NULL, 'and so is the moment of a schedule'
);

-- Each of these is wrong by itself, in single enqueues of both doors.
CREATE TEMP TABLE wrong (option text);
INSERT INTO wrong (option)
VALUES
($$run_at => 'infinity'$$), ($$delay => '-1 s'$$), ('max_attempts => 0'), ($$unique_key => ''$$),
($$unique_for => '1 h'$$), ($$on_conflict => 'no'$$), ($$group_key => repeat('g', 100000)$$),
($$tags => array_fill('t'::text, ARRAY[1000])$$), ($$max_runtime => '0 s'$$), ($$headers => '1'$$),
($$start_by => 'infinity'$$), ($$expires_in => '-1 s'$$), ('after => ARRAY[NULL]::bigint []'),
($$after_failed => 'no'$$), ($$flow => ''$$), ($$name => '1'$$), ($$lane => ''$$),
('priority => 2100000000');
SELECT pulse.enqueue('k') \g /dev/null
SELECT s.last_value AS drawn FROM pulse_internal.job_id AS s \gset
SELECT is_empty(
    $$
        SELECT w.option, d.door
        FROM wrong AS w
        CROSS JOIN (VALUES ('enqueue'), ('enqueue_one')) AS d (door)
        WHERE pg_temp.answer(format('SELECT pulse.%s(''k'', %s)', d.door, w.option))
            NOT LIKE 'PU00_ %' IS NOT FALSE
    $$,
    'each of them is refused'
);
SELECT is(s.last_value, :drawn::bigint, 'and draws no id') FROM pulse_internal.job_id AS s;

SELECT * FROM finish();

ROLLBACK;
