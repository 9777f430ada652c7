-- The watchdog where pg_cron is not: what it says, and what its parts do alone. With
-- pg_cron: tests/engine/test_watchdog.py.
BEGIN;

SELECT plan(29);

-- Without pg_cron

SELECT is(pulse_internal.has_cron(), false, 'this database has no pg_cron');
SELECT throws_ok(
    'SELECT pulse.start_watchdog()', 'PU010', 'the watchdog needs pg_cron',
    'start_watchdog says that it needs pg_cron'
);
SELECT is(
    pulse.stop_watchdog(), 'pg_cron has no entries of pulse',
    'stop_watchdog has nothing to do, and says so'
);
SELECT results_eq(
    'SELECT * FROM pulse_internal.watchdog()',
    $$VALUES (false, false, 'pg_cron is not installed in this database')$$,
    'and so does what health asks'
);
SELECT is_empty(
    $$SELECT FROM pulse_internal.audit_entry WHERE verb ~ 'watchdog'$$, 'what changes nothing is not audited'
);
SELECT is(pulse_internal.watchdog_stopped(), false, 'the loop is not stopped by what is not there');

CREATE FUNCTION pg_temp.hint(statement text, OUT detail text, OUT hint text)
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END;
$$;

SELECT matches(
    (pg_temp.hint('SELECT pulse.start_watchdog()')).hint,
    'the administrator runs: (ALTER SYSTEM SET shared_preload_libraries|in \w+: SELECT cron.schedule_in_database)',
    'the hint is a statement for the administrator'
);

-- A schema that only looks like pg_cron

CREATE SCHEMA cron;
CREATE TABLE cron.job (
    jobid bigint, jobname text, schedule text, command text, database text, active boolean
);
CREATE FUNCTION cron.schedule(text, text, text)
RETURNS bigint
LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'planted code was run'; END; $$;
SELECT is(pulse_internal.has_cron(), false, 'a schema called cron is not pg_cron');
SELECT throws_ok(
    'SELECT pulse.start_watchdog()', 'PU010', 'the watchdog needs pg_cron',
    'and what was planted in it is not run'
);
SELECT is(
    pulse.stop_watchdog(), 'pg_cron has no entries of pulse', 'nor looked at by stop_watchdog'
);

-- Arguments

SELECT throws_ok(
    format('SELECT pulse.start_watchdog(%L)', bad.every), 'PU002',
    'every must be between 00:00:01 and 00:00:59',
    format('an interval of %s is refused', coalesce(bad.every, 'NULL'))
)
FROM (VALUES ('0 seconds'), ('-5 seconds'), ('1 minute'), (NULL)) AS bad (every);

-- The commands

SELECT is(
    pulse_internal.watchdog_loop_command('10 seconds'),
    'DO $pulse$ BEGIN IF pg_catalog.to_regprocedure(''pulse_internal.watchdog_loop(integer)'') IS NOT NULL THEN CALL pulse_internal.watchdog_loop(10); END IF; END $pulse$',
    'the loop is called if it is there'
);
SELECT lives_ok(
    pulse_internal.watchdog_command('pulse.tick()', 'PERFORM pulse.tick()'),
    'a command runs what is there'
);
SELECT isnt_empty('SELECT FROM pulse_internal.upkeep_run', 'and ticks');
SELECT lives_ok(
    pulse_internal.watchdog_command('pulse.gone()', 'PERFORM pulse.gone()'),
    'a command does nothing when its routine is gone'
);

-- One round of the loop

SELECT results_eq(
    $$SELECT r.ticks, r.is_due, r.pause BETWEEN 0.5 AND 1
    FROM pulse_internal.watchdog_round(10, clock_timestamp(), 0) AS r$$,
    'VALUES (1, true, true)',
    'the first round ticks and sleeps for a second at most'
);
SELECT results_eq(
    $$SELECT r.ticks, r.is_due, r.pause BETWEEN 0.5 AND 1
    FROM pulse_internal.watchdog_round(10, clock_timestamp() - interval '3 seconds', 1) AS r$$,
    'VALUES (1, false, true)',
    'before its time a round does not tick'
);
SELECT results_eq(
    $$SELECT r.ticks, r.pause IS NULL
    FROM pulse_internal.watchdog_round(10, clock_timestamp() - interval '35 seconds', 1) AS r$$,
    'VALUES (4, false)',
    'after a long tick the rounds that were missed are not made up for'
);
SELECT results_eq(
    $$SELECT r.pause IS NULL
    FROM pulse_internal.watchdog_round(10, clock_timestamp() - interval '51 seconds', 6) AS r$$,
    'VALUES (true)',
    'the loop ends when the next tick belongs to the next minute'
);
SELECT results_eq(
    $$SELECT r.pause IS NULL
    FROM pulse_internal.watchdog_round(1, clock_timestamp() - interval '59 seconds', 50) AS r$$,
    'VALUES (true)',
    'and when the minute is over'
);
SELECT results_eq(
    $$SELECT r.pause IS NULL
    FROM pulse_internal.watchdog_round(10, clock_timestamp() + interval '1 h', 1) AS r$$,
    'VALUES (true)',
    'and when the clock was set back: nothing would be due before the old time'
);
SELECT pulse_internal.note_cut('prune', 'retention', clock_timestamp(), true);
SELECT ok(
    NOT pulse_internal.watchdog_goes_on(clock_timestamp() + interval '1 h'),
    'a tick that has more to do does not go on until then either'
);
SET LOCAL statement_timeout = '2 s';
SELECT results_eq(
    $$SELECT r.is_due, r.pause IS NULL FROM pulse_internal.watchdog_round(10, clock_timestamp(), 0) AS r$$,
    'VALUES (false, true)',
    'and before a statement_timeout could cancel it'
);
SET LOCAL statement_timeout = 0;
SELECT throws_ok(
    'CALL pulse_internal.watchdog_loop(59)', '2D000', NULL,
    'the loop commits, so it cannot be called inside a transaction'
);
SELECT throws_ok('CALL pulse_internal.watchdog_tick()', '2D000', NULL, 'nor can what it calls');

-- What pg_cron runs is what tick runs, in an order of its own.
SELECT is(
    (
        SELECT array_agg(DISTINCT m [1] ORDER BY m [1])
        FROM pg_proc AS p
        CROSS JOIN LATERAL regexp_matches(
            substring(p.prosrc FROM 'ARRAY ARRAY\[(.+?)\] LOOP'), '''(\w+)''', 'g'
        ) AS m
        WHERE p.oid = 'pulse_internal.watchdog_tick()'::regprocedure
    ),
    (
        SELECT array_agg(DISTINCT t ORDER BY t)
        FROM pg_proc AS p
        CROSS JOIN LATERAL unnest(substring(p.prosrc FROM 'pulse_internal\.tick\(''(\{.+?\})''\)')::text []) AS t
        WHERE p.oid = 'pulse.tick()'::regprocedure
    ),
    'the watchdog leaves out no part of the upkeep'
);

SELECT * FROM finish();
ROLLBACK;
