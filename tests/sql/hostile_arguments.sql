-- Every argument of every public function gets what nobody should pass: NULL, empty,
-- huge, negative, infinite, odd shapes. The answer is an error of pulse (PU0xx, PU1xx) or
-- of PostgreSQL's data exceptions, or a success after which no job is lost.
BEGIN;

SELECT plan(4);

-- A job in every state, two of them running.
SELECT pulse.enqueue('k', lane => s.lane, delay => s.delay, requires_approval => s.lane = 'approval')
FROM (
    VALUES ('approval', NULL), ('later', interval '1 h'), ('ready', NULL), ('busy', NULL),
    ('busy', NULL), ('dead', NULL), ('done', NULL)
) AS s (lane, delay) \g /dev/null
SELECT pulse.fail(c.lease, fatal => true) FROM pulse.claim_batch('w', 'dead') AS c;
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'done') AS c;
SELECT count(*) FROM pulse.claim_batch('w', 'busy', 2) \g /dev/null
SELECT pulse.schedule('s', 'k', every => '1 hour') \g /dev/null

-- What a call gets for the arguments that it must have.
CREATE FUNCTION pg_temp.usual(argument text, type text)
RETURNS text
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN usual.argument = 'lease' THEN (SELECT min(l.lease)::text FROM pulse_internal.lease AS l)
        WHEN usual.argument = 'leases' THEN (SELECT array_agg(l.lease)::text FROM pulse_internal.lease AS l)
        WHEN usual.argument = 'job_id' THEN (SELECT min(r.job)::text FROM pulse_internal.ready AS r)
        WHEN usual.argument = 'filter' THEN '{"kind": "k"}'
        WHEN usual.argument = 'jobs' THEN '[{"kind": "k"}]'
        WHEN usual.argument = 'role' THEN 'nobody'
        WHEN usual.argument = 'access' THEN 'viewer'
        WHEN usual.argument = 'every' THEN '1 hour'
        WHEN usual.type = 'text[]' THEN '{k}'
        WHEN usual.type = 'jsonb[]' THEN '{1,2}'
        WHEN usual.type = 'jsonb' THEN '{}'
        WHEN usual.type IN ('integer', 'bigint', 'double precision') THEN '1'
        WHEN usual.type = 'interval' THEN '1 minute'
        ELSE 'ready'
    END
$$;

CREATE TEMPORARY TABLE hostile AS
SELECT v.type, format('%L::%s', u.value, v.type) AS value
FROM (
    VALUES
    ('text', ARRAY[NULL, '', E'\u00fc\n''"%s$1', 'infinity', ' ', 'drain']),
    ('name', ARRAY[NULL, '', 'nobody', 'public', repeat('n', 70)]),
    ('boolean', ARRAY[NULL, 'true', 'false']),
    ('integer', ARRAY[NULL, '0', '-1', '2147483647', '-2147483648']),
    ('bigint', ARRAY[NULL, '0', '-1', '9223372036854775807', '-9223372036854775808']),
    ('double precision', ARRAY[NULL, 'NaN', 'Infinity', '-Infinity', '1e308', '-1e-300']),
    ('interval', ARRAY[NULL, '0', '-1 us', '1 us', '178000000 years', '-178000000 years']),
    (
        'timestamp with time zone',
        ARRAY[NULL, 'infinity', '-infinity', '4713-01-02 BC', '294276-12-31', '1970-01-01']
    ),
    (
        'jsonb',
        ARRAY[
            NULL, 'null', '[]', '{}', '1', '-1e400', '"x"', '[[[]]]', '[null]', '{"a": null}',
            '{"": 1}', '{"kind": {}}', '{"kind": []}', '[{"lease": {}}]', '[{"kind": {}}]',
            '{"ready": -1}'
        ]
    ),
    ('text[]', ARRAY[NULL, '{}', '{NULL}', '{""}', '{{a,b},{c,d}}', array_fill('a'::text, ARRAY[5000])::text]),
    ('bigint[]', ARRAY[NULL, '{}', '{NULL}', '{0,-1}', '{{1,2},{3,4}}', '[-5:-4]={1,2}']),
    ('jsonb[]', ARRAY[NULL, '{}', '{NULL}', '{{1,2},{3,4}}']),
    ('interval[]', ARRAY[NULL, '{}', '{NULL}', '{-1 s}', '{178000000 years}']),
    ('boolean[]', ARRAY[NULL, '{}', '{NULL}', '{{t,f},{f,t}}']),
    (
        'pulse_internal.caller_signature',
        ARRAY[NULL, '00000000-0000-0000-0000-000000000000']
    )
) AS v (type, values)
CROSS JOIN LATERAL unnest(v.values) AS u (value)
UNION ALL
VALUES ('text', 'repeat(''x'', 20000)'), ('jsonb', 'to_jsonb(repeat(''x'', 9000000))');

-- Each call runs in a subtransaction that never commits. check() for each would take long;
-- that every job stands in one place is what a half-done change would break first.
CREATE FUNCTION pg_temp.try(statement text, OUT code text, OUT message text)
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE try.statement;
    IF (SELECT count(*) FROM pulse_internal.body) <> (SELECT count(*) FROM pulse_internal.approval)
        + (SELECT count(*) FROM pulse_internal.blocked)
        + (SELECT count(*) FROM pulse_internal.waiting) + (SELECT count(*) FROM pulse_internal.ready)
        + (SELECT count(*) FROM pulse_internal.lease) + (SELECT count(*) FROM pulse_internal.finished)
    THEN
        RAISE EXCEPTION USING ERRCODE = 'TTT01', MESSAGE = 'a job is lost or doubled';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'TTT00', MESSAGE = 'went well';
EXCEPTION
    WHEN OTHERS THEN
        code := SQLSTATE;
        message := left(SQLERRM, 200);
END;
$$;

CREATE TEMPORARY TABLE argument AS
SELECT
    p.oid AS function,
    p.proname AS name,
    a.name AS argument,
    format_type(a.type, NULL) AS type,
    a.place <= p.pronargs - p.pronargdefaults AS required
FROM pg_proc AS p
CROSS JOIN LATERAL unnest(
    p.proargnames[1:p.pronargs], p.proargtypes::oid []
) WITH ORDINALITY AS a (name, type, place)
WHERE p.pronamespace = 'pulse'::regnamespace
    -- The watchdog needs pg_cron; the bell is a lock of the session.
    AND p.proname !~ '(watchdog|bell)$';

CREATE TEMPORARY TABLE tried AS
SELECT c.call, t.*
FROM argument AS a
INNER JOIN hostile AS h ON h.type = a.type
CROSS JOIN LATERAL (
    SELECT format(
        'SELECT FROM pulse.%I(%s)',
        a.name,
        concat_ws(
            ', ',
            format('%I => %s', a.argument, h.value),
            -- A schedule has exactly one recurrence.
            CASE
                WHEN a.name = 'schedule' AND a.argument NOT IN ('cron', 'every', 'at')
                    THEN 'every => ''1 hour'''
            END,
            (
                SELECT string_agg(
                    format('%I => %L::%s', o.argument, pg_temp.usual(o.argument, o.type), o.type),
                    ', '
                )
                FROM argument AS o
                WHERE o.function = a.function
                    AND o.required
                    AND o.argument <> a.argument
            )
        )
    ) AS call
) AS c
CROSS JOIN LATERAL pg_temp.try(c.call) AS t;

SELECT is_empty(
    'SELECT type FROM argument EXCEPT SELECT type FROM hostile',
    'there are hostile values for every type of argument'
);
SELECT cmp_ok((SELECT count(*) FROM tried), '>', 500::bigint, 'hundreds of calls were made');
SELECT is_empty(
    $$
    SELECT left(t.call, 300), t.code, t.message
    FROM tried AS t
    WHERE t.code <> 'TTT00'
        AND t.code !~ '^PU[01]'
        AND t.code !~ '^22'
        -- Arrays of arrays: searching for elements in them is not supported.
        AND t.code <> '0A000'
    $$,
    'each was refused cleanly, or went well and lost no job'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'and nothing is left of any of them');

SELECT * FROM finish();

ROLLBACK;
