-- Times that a clock wrote while it was ahead, read in any time zone.
BEGIN;

SELECT plan(10);

SELECT is(
    pulse_internal.by_clock('2026-04-10 13:00+00', '2026-04-10 12:00+00'),
    '2026-04-10 12:00+00'::timestamptz, 'a time after now is read as now'
);
SELECT is(
    pulse_internal.by_clock('2026-04-10 12:00:30+00', '2026-04-10 12:00+00', '30 seconds'),
    '2026-04-10 12:00:30+00'::timestamptz, 'a time that can be set ahead so far stays'
);
SELECT is(
    pulse_internal.by_clock('2026-04-10 13:00+00', '2026-04-10 12:00+00', '30 seconds'),
    '2026-04-10 12:00:30+00'::timestamptz, 'a time further ahead is cut to the interval'
);
SELECT is(
    pulse_internal.by_clock(NULL, '2026-04-10 12:00+00', '30 seconds'), NULL,
    'no time stays none'
);
SELECT is(pulse_internal.longest('90 minutes'), '90 minutes', 'hours have one length');
SELECT is(
    pulse_internal.longest('1 day 10 seconds'), '72:00:10', 'a day counts with two days more'
);
SELECT is(pulse_internal.longest('1 month'), '792:00:00', 'a month counts with 33 days');

-- In this time zone a day that begins before noon of April 10 lasts half a minute.
SET LOCAL timezone = 'AAA0BBB-23:59:30,J100/12:00:00,J300/0';
SELECT is(
    pulse_internal.by_clock('2026-04-11 11:59+00', '2026-04-10 11:59+00', '1 day'),
    '2026-04-11 11:59+00'::timestamptz, 'the time zone of the session shortens no day'
);
RESET timezone;

-- A session whose time zone jumps ahead soon meets the key and the lease of another role.
\o /dev/null
SELECT pulse.set_lane('days', lease_for => '1 day');
SELECT pulse.enqueue('k', lane => 'keys', unique_key => 'z', unique_for => '5 days') AS job \gset
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'keys') AS c;
SELECT pulse.enqueue('k', lane => 'days');
SELECT c.lease AS lease FROM pulse.claim_batch('w', 'days') AS c \gset
UPDATE pulse_internal.lease SET reap_at = lease_until WHERE lease = :lease;
SELECT set_config(
    'timezone',
    format('AAA0BBB-167,J%s/0,J%s/0', day % 365 + 1, (day + 60) % 365 + 1),
    true
)
FROM (SELECT date_part('doy', now() AT TIME ZONE 'UTC')::integer AS day) AS today;
SELECT pulse.enqueue('k', lane => 'keys', unique_key => 'z');
SELECT pulse_internal.correct_leases();
RESET timezone;
\o
SELECT ok(
    (SELECT expires_at > now() + interval '119 hours' FROM pulse_internal.job_key WHERE job = :job),
    'such a session does not shorten the unique_for of another'
);
SELECT ok(
    (SELECT lease_until > now() + interval '23 hours' FROM pulse_internal.lease WHERE lease = :lease),
    'such a session does not shorten the lease of another'
);

SELECT * FROM finish();
ROLLBACK;
