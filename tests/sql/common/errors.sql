-- Above READ COMMITTED a lock taken first and a look afterwards see nothing new, so the
-- whole file runs at REPEATABLE READ: rule 1, which guarantees 9 and 10 rest on.
BEGIN ISOLATION LEVEL REPEATABLE READ;

SELECT plan(58);

-- What an error says, beyond its code.
CREATE FUNCTION pg_temp.complaint(statement text)
RETURNS text []
LANGUAGE plpgsql
AS $$
DECLARE
    v_code text;
    v_message text;
    v_detail text;
    v_hint text;
BEGIN
    EXECUTE statement;
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS
            v_code = RETURNED_SQLSTATE,
            v_message = MESSAGE_TEXT,
            v_detail = PG_EXCEPTION_DETAIL,
            v_hint = PG_EXCEPTION_HINT;
        RETURN ARRAY[v_code, v_message, v_detail, v_hint];
END;
$$;

-- Enqueue is the caller's transaction, whatever its level.

-- proves: R1
SELECT lives_ok($$SELECT pulse.enqueue('k')$$, 'rule 1: enqueue works at REPEATABLE READ');
SELECT lives_ok(
    $$SELECT pulse.enqueue_one('k', unique_key => 'once')$$,
    'rule 1: enqueue_one with a key works at REPEATABLE READ'
);
SELECT lives_ok(
    $$SELECT pulse.enqueue_many('k', ARRAY['{}', '{}']::jsonb [])$$,
    'rule 1: enqueue_many works at REPEATABLE READ'
);
SELECT lives_ok(
    $$SELECT pulse.enqueue_many('[{"kind": "k"}]')$$,
    'rule 1: a mixed enqueue_many works at REPEATABLE READ'
);
SELECT lives_ok('SELECT * FROM pulse.jobs', 'the views can be read at every level');
SELECT lives_ok('SELECT * FROM pulse.check()', 'check() runs at every level');
SELECT lives_ok('SELECT * FROM pulse.health()', 'health() runs at every level');

-- Every verb that locks and then looks refuses.

SELECT throws_ok(
    'SELECT pulse.' || c.call, 'PU001', NULL,
    format('rule 1: %s refuses REPEATABLE READ', split_part(c.call, '(', 1))
)
FROM (
    VALUES
    ('claim_batch(''w'')'),
    ('exchange(''w'', ''{"default": 1}'')'),
    ('heartbeat(''{1}'')'),
    ('complete(1)'),
    ('complete_batch(''{1}'')'),
    ('fail(1, ''no'')'),
    ('fail_batch(''{1}'')'),
    ('snooze(1, ''1 second'')'),
    ('release(''{1}'')'),
    ('ack_cancel(1)'),
    ('progress(1, 0.5)'),
    ('checkpoint(1, ''{}'')'),
    ('tick()'),
    ('reap()'),
    ('prune()'),
    ('pause(''me'')'),
    ('resume(''me'')'),
    ('drain_lane(''default'')'),
    ('pause_lane(''default'')'),
    ('resume_lane(''default'')'),
    ('set_lane(''default'')'),
    ('set_kind(''k'')'),
    ('cancel(1)'),
    ('reprioritize(1, 5)'),
    ('move(1, ''other'')'),
    ('retry(1)'),
    ('delete_job(1)'),
    ('approve(1)'),
    ('reject(1)')
) AS c (call);

SELECT is_empty(
    'SELECT * FROM pulse_internal.lease', 'and nothing was claimed by a call that was refused'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.ready), 5::bigint, 'nor was anything lost'
);
SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc LIKE '%pulse\_internal.require\_read\_committed(%'
        -- The manifest names all functions and calls none.
        AND p.proname <> 'manifest'
        AND p.provolatile <> 'v'
    $$,
    'rule 1: what asks for READ COMMITTED is VOLATILE, so that each statement looks anew'
);

-- Code, message, DETAIL and HINT

SELECT is(
    pg_temp.complaint($$SELECT pulse.claim_batch('w')$$),
    ARRAY[
        'PU001',
        'claim_batch needs the isolation level READ COMMITTED',
        'This transaction is REPEATABLE READ.',
        'Call it in a transaction of its own, or SET TRANSACTION ISOLATION LEVEL READ COMMITTED.'
    ],
    'PU001 says what the level is and what to do'
);
SELECT is(
    pg_temp.complaint($$SELECT pulse.enqueue('k', priority => 2100000000)$$),
    ARRAY[
        'PU002',
        'priority must be between -2000000000 and 2000000000',
        'It is 2100000000.',
        'Pass a value inside these bounds.'
    ],
    'PU002 names the argument, its bounds and what it was'
);
SELECT is(
    pg_temp.complaint($$SELECT pulse.enqueue('')$$),
    ARRAY[
        'PU002', 'kind must be a name of 1 to 200 characters', 'It is empty.',
        'Pass kind => ''a-name''.'
    ],
    'PU002 says that a name is empty'
);
SELECT is(
    (pg_temp.complaint(format('SELECT pulse.enqueue(%L)', repeat('k', 201))))[3],
    'It has 201 characters.', 'PU002 says how long a name is'
);
SELECT is(
    (pg_temp.complaint('SELECT pulse.enqueue(NULL)'))[3], 'It is NULL.',
    'PU002 says that a name is NULL'
);
SELECT ok(
    c.complaint[1] = e.code
    AND c.complaint[2] <> '' AND lower(left(c.complaint[2], 1)) = left(c.complaint[2], 1)
    AND c.complaint[3] LIKE '%.' AND c.complaint[4] LIKE '%.',
    format('%s has a message in lower case and sentences as DETAIL and HINT', e.code)
)
FROM (
    VALUES
    ('PU002', $$SELECT pulse.enqueue('k', unique_for => '1 day')$$),
    ('PU002', $$SELECT pulse.enqueue('k', run_at => now(), delay => '1 s')$$),
    ('PU002', $$SELECT pulse.enqueue('k', run_at => 'infinity')$$),
    ('PU002', $$SELECT pulse.enqueue('k', delay => '-1 s')$$),
    ('PU002', $$SELECT pulse.enqueue('k', unique_key => 'x', on_conflict => 'maybe')$$),
    ('PU002', $$SELECT pulse.enqueue_many('{}')$$),
    ('PU003', $$SELECT pulse_internal.require_size(11, ROW('result', 'bytes', 0, 10, NULL, NULL, NULL), 'Be brief.')$$),
    ('PU004', $$SELECT pulse_internal.raise_no_such_job(1)$$),
    ('PU101', $$SELECT pulse_internal.raise_lease_lost(1)$$),
    ('PU102', $$SELECT pulse.enqueue('k', unique_key => 'once', on_conflict => 'error')$$),
    ('PU105', $$SELECT pulse_internal.raise_wrong_state(1, 'dead', 'approve', 'Look first.')$$),
    ('PU107', $$SELECT pulse_internal.raise_kept_moving(1)$$)
) AS e (code, statement)
CROSS JOIN LATERAL (SELECT pg_temp.complaint(e.statement) AS complaint) AS c;
SELECT is(
    (pg_temp.complaint('SELECT pulse_internal.raise_lease_lost(NULL)'))[2], 'lease NULL is lost',
    'a lease that is NULL is named so'
);
SELECT is(
    (pg_temp.complaint('SELECT pulse_internal.raise_no_such_job(NULL)'))[2],
    'job NULL does not exist', 'a job that is NULL is named so'
);

SELECT * FROM finish();

ROLLBACK;
