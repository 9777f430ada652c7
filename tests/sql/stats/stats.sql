-- Counters grow old: a row a minute, then one for 10 minutes, an hour, a day, and none.
BEGIN;

SELECT plan(24);

-- Rows from the start of a slot on, each with a job more.
CREATE FUNCTION pg_temp.sampled(
    kind text, long_ago interval, slot interval, step interval, rows integer
)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO pulse_internal.stat
    SELECT
        'a', sampled.kind,
        date_bin(sampled.slot, clock_timestamp() - sampled.long_ago, '2000-01-01 00:00+00') + n * sampled.step,
        n, 0, n, 0, 0, 0, 0, 0, 0, '{}', 0, '{}'
    FROM generate_series(1, sampled.rows) AS n
$$;

SELECT pg_temp.sampled('tenths', '5 h', '10 min', '1 min', 60);
SELECT pg_temp.sampled('hours', '3 days', '1 h', '10 min', 12);
SELECT pg_temp.sampled('days', '20 days', '1 day', '1 h', 48);
SELECT pg_temp.sampled('idle', '32 days', '1 day', '1 h', 5);
SELECT pg_temp.sampled('ancient', '402 days', '1 day', '1 h', 5);
SELECT pg_temp.sampled('ancient', '1 h', '1 min', '1 min', 1);
UPDATE pulse_internal.stat SET completed = 100 WHERE kind = 'ancient' AND at > now() - interval '2 days';
SELECT pulse_internal.thin_stats() AS went \gset

SELECT ok(:went > 0, 'rows go');
SELECT is(
    (SELECT array_agg(s.completed ORDER BY s.at)::text FROM pulse.stats AS s WHERE s.kind = 'tenths'),
    '{9,10,10,10,10,10,1}', 'after 3 hours there is one for 10 minutes, which has all that happened'
);
SELECT is(
    (SELECT array_agg(s.completed ORDER BY s.at)::text FROM pulse.stats AS s WHERE s.kind = 'hours'),
    '{5,6,1}', 'after 2 days one for an hour'
);
SELECT is(
    (SELECT array_agg(s.completed ORDER BY s.at)::text FROM pulse.stats AS s WHERE s.kind = 'days'),
    '{23,24,1}', 'after 14 days one for a day'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.stat AS s WHERE s.kind = 'idle'), 0::bigint,
    'what nothing happened to for 30 days is forgotten'
);
SELECT is(
    (SELECT array_agg(s.completed ORDER BY s.at)::text FROM pulse_internal.stat AS s WHERE s.kind = 'ancient'),
    '{100}', 'what is older than 400 days goes, and the counters stay'
);
SELECT is(pulse_internal.thin_stats(), 0::bigint, 'and nothing is looked at twice');
SELECT is(
    (SELECT c.completed FROM pulse.counters AS c WHERE c.kind = 'tenths'), 60::bigint,
    'counters are what they were'
);
SELECT is(
    (SELECT sum(h.completed)::bigint FROM pulse.history('4 days', '1 h', 'a', 'hours') AS h), 12::bigint,
    'and so is what happened in the time'
);

SELECT is(
    (SELECT c.completed FROM pulse.counters_since('150 minutes') AS c WHERE c.kind = 'tenths'),
    (SELECT sum(s.completed)::bigint FROM pulse.stats AS s WHERE s.kind = 'tenths' AND s.at > clock_timestamp() - interval '150 minutes'),
    'counters_since has what happened since then'
);
SELECT results_eq(
    $$SELECT c.lane COLLATE "C", c.kind COLLATE "C", c.completed, c.wait_counts FROM pulse.counters_since('400 days') AS c ORDER BY 1, 2$$,
    $$SELECT c.lane, c.kind, c.completed, c.wait_counts FROM pulse.counters AS c WHERE c.at > clock_timestamp() - interval '400 days' ORDER BY 1, 2$$,
    'all of it, where that is all'
);
SELECT is_empty(
    $$SELECT FROM pulse.counters_since('1 minute') AS c WHERE c.kind = 'hours'$$, 'and nothing of what nothing happened to'
);
SELECT throws_ok($$SELECT pulse.counters_since('1 second')$$, 'PU002', NULL, 'a second is too short');

-- gauges: figures of this moment

CREATE FUNCTION pg_temp.gauge(gauge text, label text DEFAULT NULL)
RETURNS double precision
LANGUAGE sql
AS $$
    SELECT g.value FROM pulse.gauges() AS g
    WHERE g.gauge = gauge.gauge AND g.label IS NOT DISTINCT FROM gauge.label
$$;

SELECT is(pg_temp.gauge('tick_age_seconds'), 'infinity', 'a tick that never came is infinitely old');
SELECT count(*) FROM pulse.tick() \g /dev/null
SELECT ok(pg_temp.gauge('tick_age_seconds') < 60, 'then it is young');
SELECT ok(pg_temp.gauge('tick_seconds', 'due') BETWEEN 0 AND 60, 'and says how long it took');
SELECT is(pg_temp.gauge('retention_lag_seconds'), 0::double precision, 'nothing is too old');
SELECT pulse.fail(pg_temp.claim('dies', max_attempts => 1), 'oops');
SELECT is(pg_temp.gauge('dead', 'dies'), 1::double precision, 'dead letters of a lane');
UPDATE pulse_internal.finished SET finished_at = finished_at - interval '1 year';
SELECT ok(pg_temp.gauge('retention_lag_seconds') > 86400, 'what retention should have removed shows');
SELECT pulse.hello('w', '{dies,other}') \g /dev/null
SELECT is(pg_temp.gauge('workers', 'other'), 1::double precision, 'workers of a lane');
SELECT pulse.enqueue('k', lane => 'silent') \g /dev/null
SELECT FROM pulse.claim_batch('says nothing', 'silent', lease_for => '2 h') \g /dev/null
SELECT is(
    pg_temp.gauge('workers', 'silent'), 1::double precision,
    'one that never said hello counts by what it runs'
);
UPDATE pulse_internal.lease SET claimed_at = claimed_at - interval '1 h', lease_until = lease_until - interval '1 h';
SELECT is(
    pg_temp.gauge('workers', 'silent'), 1::double precision,
    'and as long as pulse.workers says that it is live'
);
SELECT pulse.schedule('late', 'k', every => '1 h') \g /dev/null
UPDATE pulse_internal.schedule SET next_at = clock_timestamp() - interval '5 min';
SELECT ok(pg_temp.gauge('schedule_lag_seconds') BETWEEN 299 AND 400, 'a schedule that is late');
SELECT ok(pg_temp.gauge('oldest_snapshot_seconds') >= 0, 'snapshots of others');

SELECT * FROM finish();

ROLLBACK;
