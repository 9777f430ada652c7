-- Schedules: made, replaced, fired, missed, paused. Time passes by moving rows.
BEGIN;

SELECT plan(118);

CREATE ROLE pulse_test_olga;
CREATE ROLE pulse_test_otto;

-- Let a schedule have been due for so long; intervals are moved with their anchor.
CREATE FUNCTION pg_temp.due(name text, ago interval)
RETURNS timestamptz
LANGUAGE sql
AS $$
    UPDATE pulse_internal.schedule AS s
    SET next_at = clock_timestamp() - due.ago,
        anchor = clock_timestamp() - due.ago - s.every
    WHERE s.name = due.name AND s.every IS NOT NULL;

    UPDATE pulse_internal.schedule AS s
    SET next_at = clock_timestamp() - due.ago
    WHERE s.name = due.name AND s.every IS NULL
    RETURNING s.next_at;
$$;

CREATE FUNCTION pg_temp.ledger(name text, OUT fired bigint, OUT skipped bigint)
LANGUAGE sql
AS $$
    SELECT count(r.job), count(r.skipped)
    FROM pulse_internal.schedule_run AS r
    WHERE r.name = ledger.name
$$;

-- Making one

SELECT ok(
    pulse.schedule('minutely', 'k', cron => '* * * * *')
    BETWEEN clock_timestamp() AND clock_timestamp() + interval '61 seconds',
    'schedule returns the next occurrence'
);
SELECT is(
    (
        pulse.schedule('nightly', 'k', cron => '30 3 * * *', timezone => 'asia/kathmandu')
        AT TIME ZONE 'Asia/Kathmandu'
    )::time,
    '03:30',
    'a cron expression is about wall time in the time zone'
);
SELECT is(
    (SELECT s.timezone FROM pulse_internal.schedule AS s WHERE s.name = 'nightly'), 'Asia/Kathmandu',
    'time zones are kept as they are spelled'
);
SELECT ok(
    pulse.schedule('often', 'k', every => '90 seconds')
    BETWEEN clock_timestamp() + interval '80 seconds' AND clock_timestamp() + interval '91 seconds',
    'the first occurrence of an interval is one interval away'
);
SELECT is(
    pulse.schedule('once', 'k', at => '2999-12-31 12:00+00'), '2999-12-31 12:00+00',
    'at is the one occurrence there is'
);
SELECT results_eq(
    $$SELECT verb, after ->> 'name', after ->> 'cron' FROM pulse_internal.audit_entry WHERE verb = 'schedule' ORDER BY entry LIMIT 1$$,
    $$VALUES ('schedule', 'minutely', '* * * * *')$$,
    'the audit shows who scheduled what'
);
-- Else it fires when a minute begins during the tests below.
SELECT pulse.unschedule('minutely') \g /dev/null

SELECT throws_ok(
    'SELECT pulse.schedule(' || bad.arguments || ')', bad.code, NULL, bad.why || ' is refused'
)
FROM (
    VALUES
    ($$'x', 'k'$$, 'PU002', 'a schedule without a recurrence'),
    ($$'x', 'k', cron => '* * * * *', every => '1 hour'$$, 'PU002', 'a schedule with two recurrences'),
    ($$NULL, 'k', every => '1 hour'$$, 'PU002', 'a schedule without a name'),
    ($$'', 'k', every => '1 hour'$$, 'PU002', 'an empty name'),
    ($$'x', '', every => '1 hour'$$, 'PU002', 'an empty kind'),
    ($$'x', 'k', lane => '', every => '1 hour'$$, 'PU002', 'an empty lane'),
    ($$'x', 'k', every => '999 milliseconds'$$, 'PU002', 'an interval below a second'),
    ($$'x', 'k', every => '10 years 1 day'$$, 'PU002', 'an interval above ten years'),
    ($$'x', 'k', every => '1 month -1 day'$$, 'PU002', 'an interval that counts backwards in days'),
    ($$'x', 'k', every => '1 day -1 hour'$$, 'PU002', 'an interval that counts backwards in hours'),
    ($$'x', 'k', at => 'infinity'$$, 'PU002', 'an infinite moment'),
    ($$'x', 'k', at => '2001-01-01'$$, 'PU002', 'a moment in the past'),
    ($$'x', 'k', cron => '61 * * * *'$$, 'PU007', 'a bad cron expression'),
    ($$'x', 'k', cron => '0 0 30 2 *'$$, 'PU007', 'a cron expression that never fires'),
    ($$'x', 'k', every => '1 hour', timezone => 'Mars/Olympus'$$, 'PU008', 'an unknown time zone'),
    ($$'x', 'k', every => '1 hour', timezone => 'UTC+3'$$, 'PU008', 'a POSIX time zone'),
    ($$'x', 'k', every => '1 hour', timezone => NULL$$, 'PU008', 'no time zone'),
    ($$'x', 'k', every => '1 hour', catch_up => 'some'$$, 'PU002', 'an unknown catch_up'),
    ($$'x', 'k', every => '1 hour', catch_up => NULL$$, 'PU002', 'no catch_up'),
    ($$'x', 'k', every => '1 hour', catch_up_window => '-1 s'$$, 'PU002', 'a negative window'),
    ($$'x', 'k', every => '1 hour', max_attempts => 0$$, 'PU002', 'no attempt at all'),
    ($$'x', 'k', every => '1 hour', unique_for => '1 s'$$, 'PU002', 'unique_for without a key'),
    ($$'x', 'k', every => '1 hour', unique_key => ''$$, 'PU002', 'an empty key'),
    ($$'x', 'k', every => '1 hour', max_runtime => '2 years'$$, 'PU002', 'a max_runtime of two years'),
    (
        $$'x', 'k', every => '1 hour', payload => to_jsonb(repeat('x', 9000000))$$, 'PU003',
        'a payload above the limit'
    )
) AS bad (arguments, code, why);
SELECT is_empty($$SELECT FROM pulse_internal.schedule WHERE name = 'x'$$, 'and nothing of it is kept');

-- Firing

SELECT is(pulse_internal.fire_schedules(), 0, 'nothing fires before its time');
SELECT pulse.grant_access('pulse_test_olga', 'operator') \g /dev/null
SET LOCAL ROLE pulse_test_olga;
SELECT isnt(
    pulse.schedule(
        'full', 'report', '{"a": 1}', cron => '0 0 1 1 *', lane => 'slow', priority => 7,
        max_attempts => 9, unique_key => 'u', group_key => 'g', tags => '{x,y}',
        max_runtime => '90 minutes'
    ),
    NULL,
    'an operator makes schedules'
);
RESET ROLE;
SELECT pg_temp.due('full', '5 seconds') AS occurrence \gset
SELECT is(pulse_internal.fire_schedules(), 1, 'a due occurrence becomes a job');
SELECT results_eq(
    $$
    SELECT
        b.kind, b.payload, b.max_attempts, b.max_runtime, b.unique_key, b.group_key,
        b.tags, (SELECT n.name FROM pulse_internal.role_names AS n WHERE n.role = b.owner), r.lane, r.rank
    FROM pulse_internal.schedule_run AS s
    INNER JOIN pulse_internal.body AS b ON b.job = s.job
    INNER JOIN pulse_internal.ready AS r ON r.job = s.job
    WHERE s.name = 'full'
    $$,
    $$VALUES (
        'report' COLLATE "C", '{"a": 1}'::jsonb, 9, interval '90 minutes', 'u' COLLATE "C",
        'g' COLLATE "C", '{x,y}'::text [], 'pulse_test_olga'::name, 'slow' COLLATE "C", -7
    )$$,
    'with all that was asked, in the name of who scheduled it'
);
SELECT is(
    (SELECT r.occurrence FROM pulse_internal.schedule_run AS r WHERE r.name = 'full'), :'occurrence',
    'the ledger has the occurrence'
);
SELECT ok(
    (SELECT s.next_at > clock_timestamp() FROM pulse_internal.schedule AS s WHERE s.name = 'full'),
    'and the schedule waits for the next one'
);
SELECT is(pulse_internal.fire_schedules(), 0, 'an occurrence fires once');

UPDATE pulse_internal.schedule AS s SET next_at = :'occurrence' WHERE s.name = 'full';
SELECT is(pulse_internal.fire_schedules(), 0, 'an occurrence of the ledger does not fire again');
SELECT is(
    (SELECT count(*) FROM pulse_internal.schedule_run AS r WHERE r.name = 'full'), 1::bigint,
    'whatever next_at says'
);

SELECT pg_temp.due('full', '3 seconds') AS occurrence \gset
SELECT is(pulse_internal.fire_schedules(), 0, 'while the job of before has the unique key nothing is added');
SELECT matches(
    (
        SELECT r.skipped
        FROM pulse_internal.schedule_run AS r
        WHERE r.name = 'full' AND r.occurrence = :'occurrence'
    ),
    '^job \d+ has the unique key$',
    'and the ledger says so'
);

SELECT pg_temp.due('once', '2 seconds') \g /dev/null
UPDATE pulse_internal.schedule AS s SET at = s.next_at WHERE s.name = 'once';
SELECT is(pulse_internal.fire_schedules(), 1, 'a moment fires');
SELECT is(
    (SELECT s.next_at FROM pulse_internal.schedule AS s WHERE s.name = 'once'), NULL, 'once, and never again'
);

-- Intervals

SELECT pg_temp.due('often', '5 minutes') \g /dev/null
SELECT s.anchor FROM pulse_internal.schedule AS s WHERE s.name = 'often' \gset
SELECT is(pulse_internal.fire_schedules(), 1, 'a late interval fires its present occurrence');
SELECT is(
    (SELECT s.next_at FROM pulse_internal.schedule AS s WHERE s.name = 'often'),
    :'anchor'::timestamptz + 5 * interval '90 seconds',
    'and goes on in step with its anchor: it does not drift'
);

CREATE FUNCTION pg_temp.steps(every interval, anchor timestamptz, zone text, n integer)
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(
        to_char(
            pulse_internal.interval_occurrence(pulse_internal.recurrence(NULL, every, NULL, anchor, zone), i)
            AT TIME ZONE zone,
            'MM-DD HH24:MI'
        ),
        ', ' ORDER BY i
    )
    FROM generate_series(1, n) AS i
$$;

SELECT is(
    pg_temp.steps('1 month', '2026-01-31 09:00+00', 'UTC', 4),
    '02-28 09:00, 03-31 09:00, 04-30 09:00, 05-31 09:00',
    'the end of the month stays the end of the month'
);
SELECT is(
    pg_temp.steps('1 day', '2026-03-27 09:00 Europe/Berlin', 'Europe/Berlin', 3),
    '03-28 09:00, 03-29 09:00, 03-30 09:00',
    'a day is a day of the wall clock'
);
SELECT is(
    pg_temp.steps('24 hours', '2026-03-27 09:00 Europe/Berlin', 'Europe/Berlin', 3),
    '03-28 09:00, 03-29 10:00, 03-30 10:00',
    'and 24 hours are 24 hours'
);
SELECT is(
    pg_temp.steps('1 day', '2026-03-27 02:30 Europe/Berlin', 'Europe/Berlin', 3),
    '03-28 02:30, 03-29 03:00, 03-30 02:30',
    'a day that falls into a gap ends when the gap does'
);
SELECT is(
    pulse_internal.interval_occurrence(
        pulse_internal.recurrence(NULL, '1 day', NULL, '2026-10-24 02:30 Europe/Berlin', 'Europe/Berlin'), 1
    ),
    '2026-10-25 00:30+00',
    'a wall time that comes twice counts the first time'
);
SELECT is_empty(
    $$
    SELECT e.every, t.at
    FROM unnest('{1 second,7 seconds,1 hour,1 day,1 day 6 hours,2 weeks,1 month,1 year 1 day,10 years}'::interval []) AS e (every)
    CROSS JOIN generate_series('2026-01-31 02:30+00'::timestamptz, '2031-01-01', '37 days 5 hours') AS t (at)
    CROSS JOIN LATERAL pulse_internal.recurrence(NULL, e.every, NULL, '2026-01-31 01:30+00', 'Europe/Berlin') AS r
    CROSS JOIN LATERAL pulse_internal.interval_count(r, t.at) AS n
    WHERE (n > 0 AND pulse_internal.interval_occurrence(r, n) > t.at)
        OR pulse_internal.interval_occurrence(r, n + 1) <= t.at
        OR pulse_internal.occurrence_after(r, t.at) <> pulse_internal.interval_occurrence(r, n + 1)
    $$,
    'the next occurrence is the first one after the moment, for every interval'
);

-- Missed occurrences

SELECT pulse.schedule('skip', 'k', every => '10 minutes') \g /dev/null
SELECT pg_temp.due('skip', '1 hour 5 minutes') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 0, 'skip: what is older than a minute does not fire');
SELECT results_eq(
    $$SELECT fired, skipped FROM pg_temp.ledger('skip')$$, 'VALUES (0::bigint, 7::bigint)',
    'and each occurrence is in the ledger'
);
SELECT is(
    (SELECT DISTINCT r.skipped FROM pulse_internal.schedule_run AS r WHERE r.name = 'skip'),
    'missed by more than 60 seconds, and catch_up is skip',
    'with the reason'
);
SELECT pg_temp.due('skip', '30 minutes 5 seconds') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 1, 'skip: the present occurrence fires');
SELECT results_eq(
    $$SELECT fired, skipped FROM pg_temp.ledger('skip')$$, 'VALUES (1::bigint, 10::bigint)',
    'and only that'
);

SELECT pulse.schedule('fast', 'k', every => '2 seconds') \g /dev/null
SELECT pg_temp.due('fast', '9 seconds') \g /dev/null
SELECT cmp_ok(pulse_internal.fire_schedules(), '>=', 5, 'an interval shorter than the tick loses nothing');
SELECT pulse.unschedule('fast') \g /dev/null

SELECT pulse.schedule('last', 'k', every => '10 minutes', catch_up => 'last') \g /dev/null
SELECT pg_temp.due('last', '1 hour 5 minutes') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 1, 'last: the newest missed occurrence fires');
SELECT results_eq(
    $$
    SELECT r.job IS NOT NULL
    FROM pulse_internal.schedule_run AS r
    WHERE r.name = 'last'
    ORDER BY r.occurrence
    $$,
    'VALUES (false), (false), (false), (false), (false), (false), (true)',
    'and those before it are skipped'
);
SELECT pulse.schedule('lastly', 'k', every => '10 days', catch_up => 'last') \g /dev/null
SELECT pg_temp.due('lastly', '25 hours') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 0, 'last: but not one that is older than the window');

SELECT pulse.schedule('cronlast', 'k', cron => '0 * * * *', catch_up => 'last') \g /dev/null
UPDATE pulse_internal.schedule AS s
SET next_at = date_trunc('hour', clock_timestamp()) - interval '5 hours'
WHERE s.name = 'cronlast';
SELECT is(pulse_internal.fire_schedules(), 1, 'last: a cron expression finds its newest occurrence');
SELECT is(
    (SELECT r.occurrence FROM pulse_internal.schedule_run AS r WHERE r.name = 'cronlast' AND r.job IS NOT NULL),
    date_trunc('hour', clock_timestamp()),
    'which is that of this hour'
);

SELECT pulse.schedule('all', 'k', every => '10 minutes', catch_up => 'all') \g /dev/null
SELECT pg_temp.due('all', '1 hour 5 minutes') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 7, 'all: every missed occurrence fires');
SELECT pulse.schedule(
    'window', 'k', every => '10 minutes', catch_up => 'all', catch_up_window => '26 minutes'
) \g /dev/null
SELECT pg_temp.due('window', '1 hour 5 minutes') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 3, 'all: but none that is older than the window');
SELECT results_eq(
    $$SELECT fired, skipped FROM pg_temp.ledger('window')$$, 'VALUES (3::bigint, 4::bigint)',
    'those are skipped'
);
SELECT matches(
    (SELECT DISTINCT r.skipped FROM pulse_internal.schedule_run AS r WHERE r.name = 'window' AND r.job IS NULL),
    '^missed, and older than the catch_up_window of 00:26:00$',
    'with that reason'
);

SELECT pulse.schedule('flood', 'k', every => '1 second', catch_up => 'all') \g /dev/null
SELECT pg_temp.due('flood', '1500.5 seconds') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 1000, 'a call fires at most a thousand of one schedule');
SELECT cmp_ok(pulse_internal.fire_schedules(), '>=', 501, 'and the next call the rest');
SELECT pulse.unschedule('flood') \g /dev/null

SELECT pulse.schedule('late', 'k', at => clock_timestamp() + interval '1 hour') \g /dev/null
UPDATE pulse_internal.schedule AS s
SET at = clock_timestamp() - interval '3 hours', next_at = clock_timestamp() - interval '3 hours'
WHERE s.name = 'late';
SELECT is(pulse_internal.fire_schedules(), 1, 'a single moment fires late rather than never');
SELECT pulse.schedule('too late', 'k', at => clock_timestamp() + interval '1 hour') \g /dev/null
UPDATE pulse_internal.schedule AS s
SET at = clock_timestamp() - interval '2 days', next_at = clock_timestamp() - interval '2 days'
WHERE s.name = 'too late';
SELECT is(pulse_internal.fire_schedules(), 0, 'but not later than the window');
SELECT results_eq(
    $$SELECT fired, skipped FROM pg_temp.ledger('too late')$$, 'VALUES (0::bigint, 1::bigint)',
    'then it is skipped'
);

-- A long absence

SELECT pulse.schedule('second', 'k', every => '1 second') \g /dev/null
SELECT pg_temp.due('second', '31536000.5 seconds') \g /dev/null
SELECT cmp_ok(
    pulse_internal.fire_schedules(), '<=', 61, 'after a year a schedule of every second fires its last minute'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.schedule_run AS r WHERE r.name = 'second' AND r.job IS NULL),
    101::bigint,
    'and writes a hundred and one skipped rows'
);
SELECT matches(
    (SELECT max(r.skipped) FROM pulse_internal.schedule_run AS r WHERE r.name = 'second'),
    '; this row stands for 315358[34]\d occurrences, the last at ',
    'the last of which says how many it stands for'
);
SELECT pulse.unschedule('second') \g /dev/null
SELECT pulse.schedule('minute', 'k', cron => '* * * * *') \g /dev/null
UPDATE pulse_internal.schedule AS s
SET next_at = date_trunc('minute', clock_timestamp()) - interval '400 days'
WHERE s.name = 'minute';
SELECT is(pulse_internal.fire_schedules(), 1, 'after a year a schedule of every minute fires once');
SELECT matches(
    (SELECT max(r.skipped) FROM pulse_internal.schedule_run AS r WHERE r.name = 'minute'),
    '; this row stands for more than 1000 occurrences, the last at ',
    'and its last skipped row counts no further than a thousand'
);

SELECT pulse.unschedule('minute') \g /dev/null

-- One bad schedule

SELECT pulse.schedule('bad', 'k', every => '1 hour') \g /dev/null
SELECT pulse.schedule('good', 'k', every => '1 hour') \g /dev/null
UPDATE pulse_internal.schedule AS s SET options = '{"max_attempts": -1}' WHERE s.name = 'bad';
SELECT pg_temp.due('bad', '8 seconds') \g /dev/null
SELECT pg_temp.due('good', '5 seconds') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 1, 'a schedule that fails does not keep another from firing');
SELECT matches(
    (SELECT s.last_error FROM pulse_internal.schedule AS s WHERE s.name = 'bad'), '^PU002: max_attempts must be',
    'its error is kept'
);
SELECT is_empty($$SELECT FROM pulse_internal.schedule_run WHERE name = 'bad'$$, 'its occurrence is not lost');
SELECT is(pulse_internal.fire_schedules(), 0, 'it is not tried again at once');
UPDATE pulse_internal.schedule AS s
SET retry_at = clock_timestamp(), options = '{}'
WHERE s.name = 'bad';
SELECT is(pulse_internal.fire_schedules(), 1, 'and fires when it can');
SELECT is(
    (SELECT s.last_error FROM pulse_internal.schedule AS s WHERE s.name = 'bad'), NULL, 'which clears the error'
);
UPDATE pulse_internal.schedule AS s SET options = '{"max_attempts": -1}' WHERE s.name = 'bad';
SELECT pg_temp.due('bad', '50 seconds') \g /dev/null
SELECT pulse_internal.fire_schedules() \g /dev/null
SELECT pg_temp.due('bad', '70 seconds') \g /dev/null
UPDATE pulse_internal.schedule AS s SET retry_at = NULL WHERE s.name = 'bad';
SELECT pulse_internal.fire_schedules() \g /dev/null
SELECT matches(
    (
        SELECT r.skipped
        FROM pulse_internal.schedule_run AS r
        WHERE r.name = 'bad' AND r.skipped IS NOT NULL
    ),
    '^missed by more than 60 seconds.*; last error: PU002: max_attempts must be',
    'what failed until it was too late is skipped, with its error'
);

-- Replacing

SELECT s.next_at, s.anchor FROM pulse_internal.schedule AS s WHERE s.name = 'often' \gset
SELECT is(
    pulse.schedule('often', 'other', '{"b": 2}', every => '90 seconds'), :'next_at',
    'saying the same recurrence again keeps the next occurrence'
);
SELECT results_eq(
    $$SELECT s.kind, s.payload, s.anchor FROM pulse_internal.schedule AS s WHERE s.name = 'often'$$,
    format(
        $$VALUES ('other' COLLATE "C", '{"b": 2}'::jsonb, %L::timestamptz)$$, :'anchor'
    ),
    'and its anchor, with the new kind and payload'
);
SELECT cmp_ok(
    pulse.schedule('often', 'other', every => '80 seconds'), '>',
    clock_timestamp() + interval '70 seconds',
    'another recurrence begins anew'
);
SELECT isnt_empty(
    $$SELECT FROM pulse_internal.schedule_run WHERE name = 'often' AND job IS NOT NULL$$, 'the ledger stays'
);
SELECT pg_temp.due('often', '100 seconds') \g /dev/null
SELECT pulse.schedule('often', 'other', every => '70 seconds') \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse_internal.schedule_run AS r WHERE r.name = 'often' AND r.skipped = 'the schedule was replaced'),
    2::bigint,
    'what was due under the old recurrence is skipped'
);
SELECT is(
    pulse.schedule('once', 'k', at => s.at), NULL, 'a moment that has fired does not fire again'
)
FROM pulse_internal.schedule AS s
WHERE s.name = 'once';

-- Pausing

SELECT pulse.grant_access('pulse_test_otto', 'operator') \g /dev/null
SET LOCAL ROLE pulse_test_otto;
SELECT is(pulse.pause_schedule('good', 'too loud'), true, 'pause_schedule pauses');
RESET ROLE;
SELECT is(pulse.pause_schedule('good', 'again'), false, 'and says when it was paused already');
SELECT pg_temp.due('good', '3 hours 1 second') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 0, 'a paused schedule does not fire');
SELECT is(
    pulse.schedule('good', 'k', every => '1 hour') IS NULL, false, 'replacing it is possible'
);
SELECT is(
    (SELECT s.paused_by FROM pulse_internal.schedule AS s WHERE s.name = 'good'), 'pulse_test_otto',
    'and leaves it paused'
);
SELECT cmp_ok(
    pulse.resume_schedule('good'), '>', clock_timestamp(),
    'resume_schedule returns the next occurrence'
);
SELECT is(
    (
        SELECT count(*)
        FROM pulse_internal.schedule_run AS r
        WHERE r.name = 'good' AND r.skipped = 'paused by pulse_test_otto: too loud'
    ),
    4::bigint,
    'and what was missed is skipped, with who and why'
);
SELECT is(pulse_internal.fire_schedules(), 0, 'it is not made up for');
SELECT is(
    pulse.resume_schedule('good'),
    (SELECT s.next_at FROM pulse_internal.schedule AS s WHERE s.name = 'good'),
    'resuming twice changes nothing'
);
SELECT pg_temp.due('good', '1 second') \g /dev/null
SELECT is(pulse_internal.fire_schedules(), 1, 'afterwards it fires again');
SELECT results_eq(
    $$
    SELECT verb, who, reason
    FROM pulse.audit
    WHERE verb IN ('pause_schedule', 'resume_schedule')
    ORDER BY entry
    $$,
    $$VALUES
        ('pause_schedule', 'pulse_test_otto'::name, 'too loud'),
        ('resume_schedule', current_user, NULL)$$,
    'both are in the audit'
);

-- Removing

SELECT lives_ok($$SELECT pulse.unschedule('good')$$, 'unschedule removes a schedule');
SELECT is_empty($$SELECT FROM pulse_internal.schedule WHERE name = 'good'$$, 'it is gone');
SELECT isnt_empty($$SELECT FROM pulse_internal.schedule_run WHERE name = 'good'$$, 'its ledger stays');
SELECT isnt_empty(
    $$SELECT FROM pulse_internal.audit_entry WHERE verb = 'unschedule' AND before ->> 'name' = 'good'$$,
    'the audit says so'
);
SELECT throws_ok(
    format('SELECT pulse.%s(''good'')', verb), 'PU005', 'schedule ''good'' does not exist',
    format('%s of a schedule that is not there is refused', verb)
)
FROM unnest('{pause_schedule,resume_schedule,unschedule}'::text []) AS verb;

-- What tick had no time for is not late: a session ticked.

SELECT pulse.schedule('behind', 'k', every => '1 minute') \g /dev/null
SELECT pg_temp.due('behind', '5 minutes 5 seconds') \g /dev/null
SELECT pulse_internal.note_cut('schedules', 'due', clock_timestamp() - interval '10 minutes', true);
SELECT is(pulse_internal.fire_schedules(), 6, 'while ticks run out of time every occurrence fires, however late');
SELECT pg_temp.due('behind', '5 minutes 5 seconds') \g /dev/null
DELETE FROM pulse_internal.schedule_run WHERE name = 'behind';
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '2 minutes' WHERE step = 'cut:schedules';
SELECT is(pulse_internal.fire_schedules(), 1, 'when nothing ticked since, they were missed as ever');
DELETE FROM pulse_internal.upkeep_run WHERE step = 'cut:schedules';
DELETE FROM pulse_internal.schedule WHERE name = 'behind';

-- As many as are due, while there is time

SELECT count(pulse.schedule('herd ' || n, 'k', every => '1 minute')) FROM generate_series(1, 250) AS n \g /dev/null
UPDATE pulse_internal.schedule SET next_at = anchor WHERE name LIKE 'herd%';
SELECT is(pulse_internal.fire_schedules(), 100, 'without a time a call fires a hundred schedules');
SELECT is(pulse_internal.fire_schedules('-infinity'), 1, 'one when the time is over');
SELECT is(pulse_internal.fire_schedules('infinity'), 149, 'and all of them while there is time');
DELETE FROM pulse_internal.schedule WHERE name LIKE 'herd%';

-- The ledger is kept for 90 days

UPDATE pulse_internal.schedule_run AS r
SET handled_at = clock_timestamp() - interval '91 days'
WHERE r.name = 'second';
SELECT is(pulse_internal.prune_rows('pulse_internal.schedule_run', 'handled_at', '90 days', 60), 60, 'old rows are deleted, so many at a time');
SELECT cmp_ok(pulse_internal.prune_rows('pulse_internal.schedule_run', 'handled_at', '90 days', 1000), '>', 100, 'until there are none');
SELECT is(pulse_internal.prune_rows('pulse_internal.schedule_run', 'handled_at', '90 days', 1000), 0, 'and only those');

SELECT pulse.schedule('reasoned', 'k', cron => '0 0 * * *') \g /dev/null
SELECT throws_ok(
    $$SELECT pulse.pause_schedule('reasoned', repeat('x', 1048577))$$,
    'PU003', NULL, 'the reason of a pause has a size'
);

SELECT * FROM finish();
ROLLBACK;
