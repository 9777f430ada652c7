-- Cron expressions: what can be read, what is refused, and when they fire.
BEGIN;

SELECT plan(91);

-- The wall times of the first n occurrences after a moment, with their offset.
CREATE FUNCTION pg_temp.fires(cron text, zone text, after timestamptz, n integer)
RETURNS text
LANGUAGE sql
AS $$
    WITH RECURSIVE f AS (
        SELECT pulse_internal.cron_parse(fires.cron) AS fields
    ), o AS (
        SELECT 1 AS i, pulse_internal.cron_next(f.fields, fires.zone, fires.after) AS at
        FROM f
        UNION ALL
        SELECT o.i + 1, pulse_internal.cron_next(f.fields, fires.zone, o.at)
        FROM o, f
        WHERE o.i < fires.n
    )
    SELECT string_agg(to_char(at AT TIME ZONE 'UTC', 'DD HH24:MI'), ', ' ORDER BY i)
    FROM o
$$;

CREATE FUNCTION pg_temp.next(cron text, after text, zone text DEFAULT 'UTC')
RETURNS text
LANGUAGE sql
AS $$
    SELECT to_char(
        pulse_internal.cron_next(
            pulse_internal.cron_parse(next.cron), next.zone, next.after::timestamp AT TIME ZONE next.zone
        ) AT TIME ZONE next.zone,
        'YYYY-MM-DD HH24:MI Dy'
    )
$$;

-- Fields

SELECT is((pulse_internal.cron_parse('5 4 3 2 1')).minutes, '{5}', 'a field can be one value');
SELECT is((pulse_internal.cron_parse('1,3,2,3 * * * *')).minutes, '{1,2,3}', 'or a list, in any order');
SELECT is((pulse_internal.cron_parse('* 9-12 * * *')).hours, '{9,10,11,12}', 'or a range');
SELECT is((pulse_internal.cron_parse('*/20 * * * *')).minutes, '{0,20,40}', 'or a step');
SELECT is((pulse_internal.cron_parse('10-30/10 * * * *')).minutes, '{10,20,30}', 'or a range with a step');
SELECT is((pulse_internal.cron_parse('5/25 * * * *')).minutes, '{5,30,55}', 'or a step from a value on');
SELECT is(
    (pulse_internal.cron_parse('1-3,10-20/5,40 * * * *')).minutes, '{1,2,3,10,15,20,40}',
    'or a list of all of these'
);
SELECT is(
    (pulse_internal.cron_parse('0 0 * JAN,mar-May *')).months, '{1,3,4,5}', 'months have names, in any case'
);
SELECT is((pulse_internal.cron_parse('0 0 * * mon-Fri')).weekdays, '{1,2,3,4,5}', 'weekdays have names');
SELECT is((pulse_internal.cron_parse('0 0 * * 7')).weekdays, '{0}', 'seven is Sunday');
SELECT is((pulse_internal.cron_parse('0 0 * * 0,7')).weekdays, '{0}', 'and so is zero');
SELECT is((pulse_internal.cron_parse('0 0 * * 5-7')).weekdays, '{0,5,6}', 'a range may end on day seven');
SELECT is((pulse_internal.cron_parse('0 0 * * fri-sun')).weekdays, '{0,5,6}', 'or on Sunday by name');
SELECT is((pulse_internal.cron_parse('0 0 * * *')).weekdays, '{0,1,2,3,4,5,6}', 'a star is every value, once');
SELECT is(
    pulse_internal.cron_parse(E'  0\t3  * *   * '), pulse_internal.cron_parse('0 3 * * *'), 'blanks do not matter'
);
SELECT is(pulse_internal.cron_parse('@hourly'), pulse_internal.cron_parse('0 * * * *'), '@hourly is 0 * * * *');
SELECT is(pulse_internal.cron_parse('@daily'), pulse_internal.cron_parse('0 0 * * *'), '@daily is 0 0 * * *');
SELECT is(pulse_internal.cron_parse('@midnight'), pulse_internal.cron_parse('0 0 * * *'), '@midnight is @daily');
SELECT is(pulse_internal.cron_parse('@weekly'), pulse_internal.cron_parse('0 0 * * 0'), '@weekly is 0 0 * * 0');
SELECT is(pulse_internal.cron_parse('@monthly'), pulse_internal.cron_parse('0 0 1 * *'), '@monthly is 0 0 1 * *');
SELECT is(pulse_internal.cron_parse('@Yearly'), pulse_internal.cron_parse('0 0 1 1 *'), '@yearly is 0 0 1 1 *');
SELECT is(pulse_internal.cron_parse('@annually'), pulse_internal.cron_parse('0 0 1 1 *'), '@annually is @yearly');

SELECT throws_ok(
    format('SELECT pulse_internal.cron_parse(%L)', bad.cron), 'PU007', NULL,
    format('%L is refused: %s', bad.cron, bad.why)
)
FROM (
    VALUES
    ('', 'it is empty'),
    ('* * * *', 'four fields'),
    ('* * * * * *', 'six fields'),
    ('60 * * * *', 'no minute 60'),
    ('* 24 * * *', 'no hour 24'),
    ('* * 0 * *', 'no day 0'),
    ('* * 32 * *', 'no day 32'),
    ('* * * 13 *', 'no month 13'),
    ('* * * * 8', 'no weekday 8'),
    ('* * * 0 *', 'no month 0'),
    ('-1 * * * *', 'a sign'),
    ('1- * * * *', 'half a range'),
    ('1-2-3 * * * *', 'a range of three'),
    ('*-5 * * * *', 'a range from a star'),
    ('5,, * * * *', 'a hole in a list'),
    ('30-10 * * * *', 'a range that runs backwards'),
    ('0 0 * * sat-mon', 'a range of weekdays that runs backwards'),
    ('*/0 * * * *', 'a step of nothing'),
    ('*/61 * * * *', 'a step longer than the field'),
    ('*/x * * * *', 'a step that is no number'),
    ('99999999999 * * * *', 'a number out of all bounds'),
    ('0 0 * january *', 'names have three letters'),
    ('mon * * * *', 'a weekday in the minutes'),
    ('0 0 L * *', 'no last day'),
    ('0 0 * * 1#2', 'no second Monday'),
    ('@reboot', 'a database does not boot'),
    ('@often', 'an unknown shorthand'),
    ('0 0 30 2 *', '30 February never comes'),
    ('0 0 31 4,6,9,11 *', 'no short month has a day 31')
) AS bad (cron, why);

SELECT throws_ok(
    $$SELECT pulse_internal.cron_parse('0 25 * * *')$$, 'PU007',
    'cron expression ''0 25 * * *'' cannot be used',
    'the message names the expression'
);
SELECT throws_ok('SELECT pulse_internal.cron_parse(NULL)', 'PU007', NULL, 'NULL is no expression');

-- Days

SELECT is(pg_temp.next('0 12 13 * fri', '2026-02-01 00:00'), '2026-02-06 12:00 Fri',
    'with both days restricted the weekday is enough');
SELECT is(pg_temp.next('0 12 13 * fri', '2026-05-09 00:00'), '2026-05-13 12:00 Wed',
    'and so is the day of the month');
SELECT is(pg_temp.next('0 12 */2 * fri', '2026-02-01 00:00'), '2026-02-13 12:00 Fri',
    'a day field that begins with a star is no restriction: both must match');
SELECT is(pg_temp.next('0 0 31 * *', '2026-01-31 00:00'), '2026-03-31 00:00 Tue',
    'months without such a day are passed over');
SELECT is(pg_temp.next('0 0 29 2 *', '2026-01-01 00:00'), '2028-02-29 00:00 Tue',
    '29 February waits for a leap year');
SELECT is(pg_temp.next('0 0 29 2 *', '2096-03-01 00:00'), '2104-02-29 00:00 Fri',
    'also over 2100, which is none');
SELECT is(pg_temp.next('0 0 29 2 */7', '2072-03-01 00:00'), '2088-02-29 00:00 Sun',
    '29 February on a Sunday is found');
SELECT is(pg_temp.next('0 0 29 2 *', '2026-01-01 00:00', 'Europe/Berlin'), '2028-02-29 00:00 Tue',
    'far ahead, across many changes of the clock, the wall time is right');
SELECT is(pg_temp.next('30 23 31 12 *', '2026-12-31 23:30'), '2027-12-31 23:30 Fri',
    'the next occurrence is after the moment, never at it');
SELECT is(pg_temp.next('* * * * *', '2026-12-31 23:59:30'), '2027-01-01 00:00 Fri',
    'seconds are rounded up to the next minute');
SELECT is(pg_temp.next('10,50 8,20 * * *', '2026-01-01 08:50'), '2026-01-01 20:10 Thu',
    'when an hour is used up the next hour begins with its first minute');

-- The clock goes forward

SELECT is(
    pg_temp.fires('30 2 * * *', 'Europe/Berlin', '2026-03-28 00:00+00', 3), '28 01:30, 29 01:00, 30 00:30',
    'Berlin: 02:30 does not exist and fires at 03:00, the moment after the gap'
);
SELECT is(
    pg_temp.fires('*/10 2 * * *', 'Europe/Berlin', '2026-03-29 00:00+00', 2), '29 01:00, 30 00:00',
    'Berlin: all that falls into the gap fires once'
);
SELECT is(
    pg_temp.fires('0 3 * * *', 'Europe/Berlin', '2026-03-28 12:00+00', 2), '29 01:00, 30 01:00',
    'Berlin: 03:00 exists and fires at 03:00'
);
SELECT is(
    pg_temp.fires('30 2,3 * * *', 'Europe/Berlin', '2026-03-28 12:00+00', 3),
    '29 01:00, 29 01:30, 30 00:30',
    'Berlin: one in the gap and one after it are two'
);
SELECT is(
    pg_temp.fires('0 2,3 * * *', 'Europe/Berlin', '2026-03-28 12:00+00', 2), '29 01:00, 30 00:00',
    'Berlin: one in the gap and one at its end are the same moment, so one'
);
SELECT is(
    pg_temp.fires('30 * * * *', 'Europe/Berlin', '2026-03-28 23:00+00', 4),
    '28 23:30, 29 00:30, 29 01:30, 29 02:30',
    'Berlin: every hour goes on by the hour'
);
SELECT is(
    pg_temp.fires('*/15 * * * *', 'Europe/Berlin', '2026-03-29 00:40+00', 3),
    '29 00:45, 29 01:00, 29 01:15',
    'Berlin: every quarter of an hour goes on'
);
SELECT is(
    pg_temp.fires('0 */2 * * *', 'Europe/Berlin', '2026-03-28 22:30+00', 3),
    '28 23:00, 29 01:00, 29 02:00',
    'Berlin: every two hours fires two hours later, and is back on the even hour after that'
);
SELECT is(
    pg_temp.fires('30 2 * * *', 'America/New_York', '2026-03-07 12:00+00', 2), '08 07:00, 09 06:30',
    'New York: 02:30 fires at 03:00'
);
SELECT is(
    pg_temp.fires('15 2 * * *', 'Australia/Lord_Howe', '2026-10-03 00:00+00', 2), '03 15:30, 04 15:15',
    'Lord Howe: half an hour is missing, and 02:15 fires at 02:30'
);
SELECT is(
    pg_temp.fires('45 2 * * *', 'Australia/Lord_Howe', '2026-10-03 00:00+00', 2), '03 15:45, 04 15:45',
    'Lord Howe: 02:45 exists and fires then'
);
SELECT is(
    pg_temp.fires('0 * * * *', 'Australia/Lord_Howe', '2026-10-03 14:00+00', 3),
    '03 14:30, 03 15:30, 03 16:00',
    'Lord Howe: every hour never waits longer than an hour'
);
SELECT is(
    pg_temp.fires('0 9 * * *', 'Pacific/Apia', '2011-12-29 00:00+00', 3), '29 19:00, 30 10:00, 30 19:00',
    'Apia: a day that does not exist fires once, when the next begins'
);
SELECT is(
    pg_temp.fires('0 0 * * *', 'Asia/Beirut', '2026-03-28 00:00+00', 2), '28 22:00, 29 21:00',
    'Beirut: a midnight that does not exist fires at one'
);

-- The clock goes back

SELECT is(
    pg_temp.fires('30 2 * * *', 'Europe/Berlin', '2026-10-24 12:00+00', 2), '25 00:30, 26 01:30',
    'Berlin: 02:30 comes twice and fires the first time'
);
SELECT is(
    pg_temp.fires('30 2 * * *', 'Europe/Berlin', '2026-10-25 01:00+00', 1), '26 01:30',
    'Berlin: also when asked between the two'
);
SELECT is(
    pg_temp.fires('30 * * * *', 'Europe/Berlin', '2026-10-24 23:00+00', 4),
    '24 23:30, 25 00:30, 25 01:30, 25 02:30',
    'Berlin: every hour goes on by the hour, so 02:30 fires twice'
);
SELECT is(
    pg_temp.fires('*/30 * * * *', 'Europe/Berlin', '2026-10-25 00:15+00', 4),
    '25 00:30, 25 01:00, 25 01:30, 25 02:00',
    'Berlin: every half hour goes on'
);
SELECT is(
    pg_temp.fires('0-59/30 0-23 * * *', 'Europe/Berlin', '2026-10-25 00:15+00', 4),
    '25 00:30, 25 01:00, 25 01:30, 25 02:00',
    'Berlin: all 24 hours by number are every hour too'
);
SELECT is(
    pg_temp.fires('0 1-3 * * *', 'Europe/Berlin', '2026-10-24 22:00+00', 4),
    '24 23:00, 25 00:00, 25 02:00, 26 00:00',
    'Berlin: hours by name fire once each'
);
SELECT is(
    pg_temp.fires('30 1 * * *', 'America/New_York', '2026-10-31 12:00+00', 2), '01 05:30, 02 06:30',
    'New York: 01:30 comes twice and fires the first time'
);
SELECT is(
    pg_temp.fires('45 1 * * *', 'Australia/Lord_Howe', '2026-04-04 00:00+00', 2), '04 14:45, 05 15:15',
    'Lord Howe: half an hour comes twice, and 01:45 fires the first time'
);
SELECT is(
    pg_temp.fires('15 2 * * *', 'Australia/Lord_Howe', '2026-04-04 00:00+00', 2), '04 15:45, 05 15:45',
    'Lord Howe: 02:15 comes once'
);
SELECT is(
    pg_temp.fires('0 0 * * *', 'Asia/Kathmandu', '2026-03-28 00:00+00', 2), '28 18:15, 29 18:15',
    'Kathmandu: an offset of 5 hours and 45 minutes, and no change at all'
);

-- The session does not matter, and neither does the distance

SET LOCAL timezone = 'America/New_York';
SELECT is(
    pg_temp.fires('30 2 * * *', 'Europe/Berlin', '2026-03-28 00:00+00', 3), '28 01:30, 29 01:00, 30 00:30',
    'the time zone of the session changes nothing'
);
SET LOCAL timezone = 'UTC';
SELECT is(
    pulse_internal.cron_next(pulse_internal.cron_parse('30 2 29 3 *'), 'Europe/Berlin', '2025-06-01'),
    '2026-03-29 01:00+00',
    'a gap ten months away is treated like one tomorrow'
);
SELECT is(
    pulse_internal.cron_next(pulse_internal.cron_parse('30 2 25 10 *'), 'Europe/Berlin', '2025-12-01'),
    '2026-10-25 00:30+00',
    'and so is a wall time that comes twice'
);

SELECT * FROM finish();
ROLLBACK;
