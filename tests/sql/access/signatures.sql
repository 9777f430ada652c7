-- The signature of a caller: the default of a verb's last argument, and no other value, says who
-- calls. docs/decisions/identity.md lists what a hostile role may try.
BEGIN;

SELECT plan(42);

CREATE ROLE tap_mallory;
CREATE ROLE tap_ann;
CREATE ROLE tap_bob;
SELECT pulse.grant_access('tap_mallory', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_ann', 'operator') \g /dev/null
SELECT pulse.grant_access('tap_ann', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_bob', 'operator') \g /dev/null
CREATE SCHEMA tap_s;
GRANT ALL ON SCHEMA tap_s TO PUBLIC;

-- The caller of a verb that paused for this holder, as the audit names it.
CREATE FUNCTION pg_temp.paused_by(holder text)
RETURNS name
LANGUAGE sql
AS $$
    SELECT a.who
    FROM pulse.audit AS a
    WHERE a.verb = 'pause'
        AND a.after ->> 'holder' = paused_by.holder
$$;

-- Values that are not the default

SET LOCAL ROLE tap_ann;
SELECT throws_ok(
    'SELECT pulse.pause(''x'', signature => gen_random_uuid())', 'PU012', NULL,
    'an invented signature is refused'
);
SELECT throws_ok(
    'SELECT pulse.pause(''x'', signature => NULL)', 'PU012', NULL, 'and so is NULL'
);
SELECT throws_ok(
    'SELECT * FROM pulse.cancel_where(''{"all": true}'', signature => NULL)', 'PU012', NULL,
    'also by a bulk verb'
);
SELECT throws_ok(
    $$
    SELECT pulse.pause(h.holder, signature => s.signature)
    FROM (SELECT pulse_internal.sign() AS signature OFFSET 0) AS s
    CROSS JOIN (VALUES ('first'), ('second')) AS h (holder)
    $$,
    'PU012', NULL, 'a signature that was used is refused'
);
SELECT lives_ok(
    'SELECT pulse.pause(''by hand'', signature => pulse_internal.sign())',
    'a caller may give its own signature, which is what the default does'
);
SELECT pulse_internal.sign() AS kept \gset
SELECT throws_ok(
    format('SELECT pulse.pause(''x'', signature => %L)', :'kept'), 'PU012', NULL,
    'a signature of an earlier statement is refused'
);
SELECT pulse_internal.sign() AS kept \gset
SET LOCAL ROLE tap_bob;
SELECT throws_ok(
    format('SELECT pulse.pause(''x'', signature => %L)', :'kept'), 'PU012', NULL,
    'that of another role is refused after SET ROLE'
);
SET LOCAL ROLE tap_mallory;
SELECT throws_ok(
    format('SELECT pulse.cancel(1, signature => %L)', :'kept'), 'PU012', NULL,
    'also to a role of another level'
);
RESET ROLE;
SELECT throws_ok(
    $$
    WITH planted AS (
        INSERT INTO pulse_internal.signature (signer, transaction)
        VALUES ('tap_ann'::regrole, '3')
        RETURNING signature
    )

    SELECT pulse.pause('x', signature => p.signature)
    FROM planted AS p
    $$,
    'PU012', NULL, 'a signature of another transaction is refused'
);
SELECT is(pg_temp.paused_by('x'), NULL, 'none of them paused anything');
SELECT is(pg_temp.paused_by('by hand'), 'tap_ann', 'the own signature named its role');

-- The form

SET LOCAL ROLE tap_mallory;
SELECT throws_ok(
    format('INSERT INTO pulse_internal.signing_form (%s) VALUES (NULL)', c.name), '42703', NULL,
    'the form has no place for the ' || c.name
)
FROM (VALUES ('signer'), ('transaction'), ('statement')) AS c (name);
SELECT is_empty(
    'SELECT FROM pulse_internal.signing_form',
    'a caller reads no signature, not even one that nobody has used'
);
SELECT throws_ok(
    c.statement, '42501', NULL, 'a caller can do nothing else with the form: ' || c.statement
)
FROM (
    VALUES
    ('UPDATE pulse_internal.signing_form SET signature = gen_random_uuid()'),
    ('DELETE FROM pulse_internal.signing_form'),
    ('SELECT pulse_internal.redeem(gen_random_uuid())')
) AS c (statement);
RESET ROLE;

-- Every way to reach the default

SET LOCAL ROLE tap_ann;
PREPARE pauses (text) AS SELECT pulse.pause($1);
SET LOCAL plan_cache_mode = force_generic_plan;
EXECUTE pauses ('prepared by ann') \g /dev/null
SET LOCAL ROLE tap_bob;
EXECUTE pauses ('prepared for bob') \g /dev/null
RESET plan_cache_mode;
RESET ROLE;
SELECT is(
    pg_temp.paused_by('prepared by ann'), 'tap_ann', 'a prepared statement acts as the role that executes it'
);
SELECT is(pg_temp.paused_by('prepared for bob'), 'tap_bob', 'also when another role prepared it');

SET LOCAL ROLE tap_ann;
DECLARE pausing CURSOR FOR SELECT pulse.pause('fetched ' || n) FROM generate_series(1, 2) AS n;
FETCH pausing \g /dev/null
SET LOCAL ROLE tap_bob;
FETCH pausing \g /dev/null
RESET ROLE;
SELECT is(pg_temp.paused_by('fetched 1'), 'tap_ann', 'a cursor acts as the role that fetches');
SELECT is(pg_temp.paused_by('fetched 2'), 'tap_bob', 'each time it does');

SET LOCAL ROLE tap_ann;
CREATE FUNCTION tap_s.cursor_of_ann() RETURNS refcursor
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    v_cursor refcursor := 'lent';
BEGIN
    OPEN v_cursor FOR SELECT pulse.pause('through a cursor');
    RETURN v_cursor;
END;
$$;
SET LOCAL ROLE tap_mallory;
SELECT tap_s.cursor_of_ann() \g /dev/null
FETCH lent \g /dev/null
RESET ROLE;
SELECT is(
    pg_temp.paused_by('through a cursor'), 'tap_mallory',
    'a cursor that another role opened lends the right to call and not the name'
);

SET LOCAL ROLE tap_ann;
SELECT count(pulse.pause('row ' || n)) FROM generate_series(1, 3) AS n \g /dev/null
CREATE VIEW tap_s.pausing AS SELECT pulse.pause('by a view') AS paused;
CREATE FUNCTION tap_s.inlined() RETURNS boolean
LANGUAGE sql
AS 'SELECT pulse.pause(''inlined'')';
CREATE FUNCTION tap_s.as_ann(holder text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER
AS 'SELECT pulse.pause(holder)';
CREATE FUNCTION tap_s.job_of_ann() RETURNS bigint
LANGUAGE sql SECURITY DEFINER
AS 'SELECT pulse.enqueue(''tap'')';
GRANT SELECT ON tap_s.pausing TO PUBLIC;
SET LOCAL ROLE tap_bob;
SELECT p.paused FROM tap_s.pausing AS p \g /dev/null
SELECT tap_s.inlined() \g /dev/null
SELECT pulse.pause('before'), tap_s.as_ann('within'), pulse.pause('after') \g /dev/null
SELECT pulse.pause('argument ' || tap_s.as_ann('as an argument')) \g /dev/null
RESET ROLE;
SELECT is(
    (SELECT count(*) FROM pulse.audit AS a WHERE a.who = 'tap_ann' AND a.after ->> 'holder' LIKE 'row _'),
    3::bigint, 'each of many rows is signed'
);
SELECT is(pg_temp.paused_by('by a view'), 'tap_bob', 'a view acts as the role that reads it');
SELECT is(pg_temp.paused_by('inlined'), 'tap_bob', 'an inlined function as its caller');
SELECT is(pg_temp.paused_by('within'), 'tap_ann', 'a SECURITY DEFINER function as its owner');
SELECT ok(
    pg_temp.paused_by('before') = 'tap_bob' AND pg_temp.paused_by('after') = 'tap_bob',
    'and the calls around it in the same statement as the caller'
);
SELECT is(
    pg_temp.paused_by('as an argument'), 'tap_ann', 'also within the arguments of a verb of another role'
);
SELECT is(pg_temp.paused_by('argument true'), 'tap_bob', 'which keeps its own');

SET LOCAL ROLE tap_mallory;
SELECT throws_ok('SELECT pulse.pause(''x'')', '42501', NULL, 'a producer may not pause');
SELECT lives_ok('SELECT tap_s.as_ann(''lent'')', 'but through a function of an operator');
SELECT tap_s.job_of_ann() AS of_ann, pulse.enqueue('tap') AS own \gset
SELECT throws_ok(
    format('SELECT pulse.cancel(%s)', :of_ann), 'PU004', NULL,
    'a job that it enqueues through that role is not its own'
);
SELECT is(pulse.cancel(:own), 'cancelled', 'the job beside it in the same statement is');
RESET ROLE;
SELECT is(pg_temp.paused_by('lent'), 'tap_ann', 'which acts as the operator');
SELECT bag_eq(
    $$SELECT j.enqueued_by::text FROM pulse.jobs AS j WHERE j.kind = 'tap'$$,
    '{tap_ann,tap_mallory}'::text [], 'two roles in one session own their jobs'
);
SET LOCAL ROLE tap_ann;
SELECT pulse.schedule('of ann', 'tap', every => '1 day') \g /dev/null
SET LOCAL ROLE tap_bob;
SELECT pulse.schedule('of bob', 'tap', every => '1 day') \g /dev/null
RESET ROLE;
SELECT bag_eq(
    'SELECT s.name, s.created_by::text FROM pulse.schedules AS s',
    $$VALUES ('of ann', 'tap_ann'), ('of bob', 'tap_bob')$$, 'and their schedules'
);

SET LOCAL SESSION AUTHORIZATION tap_bob;
SELECT pulse.pause('logged in') \g /dev/null
RESET SESSION AUTHORIZATION;
SELECT is(pg_temp.paused_by('logged in'), 'tap_bob', 'SET SESSION AUTHORIZATION names its role');

-- Subtransactions

SET LOCAL ROLE tap_ann;
DO $$
DECLARE
    v_signature uuid;
BEGIN
    BEGIN
        v_signature := pulse_internal.sign();
        PERFORM pulse.pause('rolled back');
        RAISE division_by_zero;
    EXCEPTION
        WHEN division_by_zero THEN
            PERFORM pulse.pause('after a rollback');
    END;
    BEGIN
        PERFORM pulse.pause('x', signature => v_signature);
    EXCEPTION
        WHEN SQLSTATE 'PU012' THEN
            PERFORM pulse.pause('refused');
    END;
END;
$$;
RESET ROLE;
SELECT is(
    pg_temp.paused_by('after a rollback'), 'tap_ann', 'a subtransaction that is rolled back disturbs no signature'
);
SELECT is(pg_temp.paused_by('refused'), 'tap_ann', 'and takes those with it that it made');

-- A signature belongs to a role and not to its name

DO $$
DECLARE
    v_signature uuid;
BEGIN
    SET LOCAL ROLE tap_ann;
    v_signature := pulse_internal.sign();
    RESET ROLE;
    ALTER ROLE tap_ann RENAME TO tap_anna;
    CREATE ROLE tap_ann;
    PERFORM pulse.pause('renamed', signature => v_signature);
END;
$$;
SELECT is(
    pg_temp.paused_by('renamed'), 'tap_anna', 'a role that takes the name of another takes no signature'
);
SELECT throws_ok(
    $test$
    DO $$
    DECLARE
        v_signature uuid;
    BEGIN
        CREATE ROLE tap_gone;
        PERFORM pulse.grant_access('tap_gone', 'operator');
        SET LOCAL ROLE tap_gone;
        v_signature := pulse_internal.sign();
        RESET ROLE;
        DROP OWNED BY tap_gone;
        DROP ROLE tap_gone;
        PERFORM pulse.pause('x', signature => v_signature);
    END;
    $$
    $test$,
    'PU012', NULL, 'that of a role that was dropped is refused'
);

SELECT * FROM finish();

ROLLBACK;
