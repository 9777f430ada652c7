-- Rates of lanes and groups: never more starts in any window than they say.
BEGIN;

SELECT plan(60);

-- Time passes: everything that is dated was earlier.
CREATE FUNCTION pg_temp.earlier(w pulse_internal.rate_window, by interval)
RETURNS pulse_internal.rate_window
LANGUAGE sql
AS $$
    SELECT ROW(array(SELECT t - earlier.by FROM unnest((earlier.w).times) AS t), (earlier.w).counts)::pulse_internal.rate_window
    WHERE earlier.w IS NOT NULL
$$;
CREATE FUNCTION pg_temp.pass(by interval)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.quota SET starts = pg_temp.earlier(starts, pass.by);
    UPDATE pulse_internal.group_state SET starts = pg_temp.earlier(starts, pass.by), wake_at = wake_at - pass.by;
    UPDATE pulse_internal.group_mark SET woken_until = woken_until - pass.by;
    UPDATE pulse_internal.waiting SET run_at = run_at - pass.by;
$$;
CREATE FUNCTION pg_temp.n(lane text, max_jobs integer, kinds text [] DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT count(*) FROM pulse.claim_batch('w', n.lane, n.max_jobs, kinds => n.kinds) $$;

-- The window, by itself: a thousand bursts at random, and the worst window of each kind

CREATE TEMP TABLE start (at timestamptz);
DO $$
DECLARE
    v_window pulse_internal.rate_window;
    v_now timestamptz := '2030-01-01';
    v_free integer;
    v_n integer;
    v_most integer := 0;
BEGIN
    PERFORM setseed(0.5);
    FOR v_round IN 1 .. 1500 LOOP
        v_now := v_now + random() ^ 4 * interval '300 ms';
        SELECT f.free INTO v_free FROM pulse_internal.free_starts(v_window, 50, '1 second', v_now) AS f;
        v_n := least(v_free, (random() * 20)::integer);
        INSERT INTO start SELECT v_now FROM generate_series(1, v_n);
        v_window := pulse_internal.add_starts(v_window, v_n, '1 second', v_now);
        v_most := greatest(v_most, cardinality(v_window.times));
    END LOOP;
    IF v_most > 101 THEN
        RAISE EXCEPTION 'a window has % entries', v_most;
    END IF;
END;
$$;
-- proves: G24
SELECT is(
    (
        SELECT max(w.n)
        FROM (SELECT count(*) OVER (ORDER BY s.at RANGE BETWEEN CURRENT ROW AND '999999 microseconds' FOLLOWING) AS n FROM start AS s) AS w
    ),
    50::bigint, 'guarantee 24: the fullest window of any second is as full as the rate, and no fuller'
);
SELECT ok(
    (SELECT count(*) / extract(epoch FROM max(s.at) - min(s.at)) > 30 FROM start AS s),
    'and the rate is used'
);
SELECT is(
    (
        SELECT max(f.free)
        FROM generate_series(0, 99) AS n,
            pulse_internal.free_starts(pulse_internal.add_starts(NULL, 10, '1 second', '2030-01-01'), 10, '1 second', '2030-01-01'::timestamptz + n * interval '10 ms') AS f
    ),
    0, 'used up, it has nothing for the whole period'
);
SELECT is(
    (SELECT f.free FROM pulse_internal.free_starts(pulse_internal.add_starts(NULL, 10, '1 second', '2030-01-01'), 10, '1 second', '2030-01-01 00:00:01') AS f),
    10, 'and all of it then'
);
SELECT is(
    (
        SELECT f.free
        FROM pulse_internal.free_starts(
            pulse_internal.add_starts(pulse_internal.add_starts(NULL, 5, '1 second', '2030-01-01'), 5, '1 second', '2030-01-01 00:00:00.009'),
            10, '1 second', '2030-01-01 00:00:01.005'
        ) AS f
    ),
    0, 'a hundredth of a period is dated by its latest start'
);
SELECT is(
    (SELECT f.free_at FROM pulse_internal.free_starts(pulse_internal.add_starts(pulse_internal.add_starts(NULL, 6, '1 minute', '2030-01-01 00:00'), 6, '1 minute', '2030-01-01 00:00:20'), 5, '1 minute', '2030-01-01 00:00:30') AS f),
    '2030-01-01 00:01:20'::timestamptz, 'lowered below what started: free when enough of it is old'
);
SELECT is(
    pulse_internal.add_starts(pulse_internal.add_starts(NULL, 1, '1 second', '2030-01-01 12:00'), 1, '1 second', '2030-01-01 11:00'),
    ROW(ARRAY['2030-01-01 11:00'::timestamptz], '{2}')::pulse_internal.rate_window,
    'starts of a clock that was ahead are dated now'
);
SELECT is(
    (SELECT f FROM pulse_internal.free_starts(pulse_internal.add_starts(NULL, 1, '1 second', '2030-01-01 12:00'), 1, '1 second', '2030-01-01 11:00') AS f)::text,
    (SELECT ROW(0, '2030-01-01 11:00:01'::timestamptz))::text,
    'a start that is dated ahead counts for one period'
);

-- Settings

SELECT throws_ok(
    format('SELECT pulse.%s', b.call), 'PU002', NULL, format('%s is out of bounds', b.call)
)
FROM (
    VALUES
    ($$set_lane('a', rate => 5)$$), ($$set_lane('a', rate_per => '1 s')$$),
    ($$set_lane('a', rate => -1, rate_per => '1 s')$$), ($$set_lane('a', rate => 1000001, rate_per => '1 s')$$),
    ($$set_lane('a', rate => 5, rate_per => '99 ms')$$), ($$set_lane('a', rate => 5, rate_per => '25 h')$$),
    ($$set_lane('a', group_rate => 5)$$), ($$set_lane('a', group_rate_per => '1 s')$$)
) AS b (call);
SELECT pulse.set_lane('set', rate => 5, rate_per => '1 minute');
SELECT pulse.set_lane('set', rate => 7);
SELECT results_eq(
    $$SELECT l.rate, l.rate_per, l.grouped FROM pulse_internal.lane AS l WHERE l.lane = 'set'$$,
    $$VALUES (7, interval '1 minute', NULL::boolean)$$, 'what is not given stays as it is'
);
SELECT pulse.set_lane('set', rate => 0);
SELECT results_eq(
    $$SELECT l.rate, l.rate_per FROM pulse_internal.lane AS l WHERE l.lane = 'set'$$,
    $$VALUES (NULL::integer, NULL::interval)$$, '0 takes it away'
);

-- The rate of a lane

SELECT pulse.set_lane('lane', rate => 5, rate_per => '1 minute');
SELECT pg_temp.fill(30, 'lane');
SELECT is(pg_temp.n('lane', 3), 3::bigint, 'guarantee 24: a claim within the rate');
SELECT is(pg_temp.n('lane', 100), 2::bigint, 'guarantee 24: no more than the rate');
SELECT is(pg_temp.n('lane', 100), 0::bigint, 'then nothing');
SELECT ok(
    pulse.next_at('lane') BETWEEN clock_timestamp() + interval '30 s' AND clock_timestamp() + interval '60 s',
    'next_at: when the rate has a start again'
);
SELECT matches(
    (SELECT string_agg(w.reason, '; ') FROM pulse_internal.in_line AS r, pulse.why(r.job) AS w WHERE r.lane = 'lane'),
    'the rate of lane lane is used up until .*: 5 starts in', 'why says so'
);
SELECT results_eq(
    $$SELECT l.scope, l.what, l.allowed, l.per, l.used, l.free_at > clock_timestamp() FROM pulse.limits AS l WHERE l.lane = 'lane'$$,
    $$VALUES ('lane', 'rate', 5, interval '1 minute', 5::bigint, true)$$, 'limits shows it'
);
SELECT pulse.release(array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'lane' LIMIT 2)) \g /dev/null
SELECT is(pg_temp.n('lane', 100), 0::bigint, 'a released job was a start');
SELECT pg_temp.pass('30 s');
SELECT is(pg_temp.n('lane', 100), 0::bigint, 'not before the period is over');
SELECT pg_temp.pass('30 s');
SELECT is(pg_temp.n('lane', 100), 5::bigint, 'and then as many again');
SELECT pulse.set_lane('lane', rate => 8);
SELECT is(pg_temp.n('lane', 100), 3::bigint, 'raised: from the next claim on');
SELECT pulse.set_lane('lane', rate => 2);
SELECT pg_temp.pass('30 s');
SELECT is(pg_temp.n('lane', 100), 0::bigint, 'lowered: what started counts');
SELECT pulse.set_lane('lane', rate => 0);
SELECT is(pg_temp.n('lane', 100), 19::bigint, 'switched off');
SELECT is_empty('SELECT * FROM pulse_internal.quota', 'nothing is left of it');

-- A claim that is rolled back was none.
SELECT pulse.set_lane('undone', rate => 2, rate_per => '1 minute');
SELECT pg_temp.fill(4, 'undone');
SAVEPOINT before;
SELECT is(pg_temp.n('undone', 9), 2::bigint, 'claimed');
ROLLBACK TO before;
SELECT is(pg_temp.n('undone', 9), 2::bigint, 'a claim that is rolled back gives its starts back');

-- With slots of the lane
SELECT pulse.set_lane('both', rate => 4, rate_per => '1 minute', max_slots => 3);
SELECT pg_temp.fill(10, 'both');
SELECT is(pg_temp.n('both', 9), 3::bigint, 'slots first');
SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l WHERE l.lane = 'both' \g /dev/null
SELECT is(pg_temp.n('both', 9), 1::bigint, 'then the rate');

-- The rate of groups

SELECT pulse.set_lane('api', group_rate => 2, group_rate_per => '10 s');
SELECT pg_temp.put_job('api', g, g || n) FROM unnest('{a,b}'::text []) AS g, generate_series(1, 5) AS n ORDER BY n, g \g /dev/null
SELECT is(pg_temp.take_jobs('api', 100), 'a1 b1 a2 b2', 'guarantee 24: no more of a group than its rate');
SELECT is(pg_temp.take_jobs('api', 100), '', 'groups without a start are passed over');
SELECT is(
    (SELECT count(*) FROM pulse_internal.group_state AS s WHERE s.lane = 'api' AND s.turn IS NULL AND s.wake_at IS NOT NULL), 2::bigint,
    'they have no turn, and a time to wake'
);
SELECT pg_temp.put_job('api', 'c', 'c1'), pg_temp.put_job('api', NULL, 'none') \g /dev/null
SELECT is(pg_temp.take_jobs('api', 100), 'c1 none', 'others go on');
SELECT matches(
    (SELECT string_agg(w.reason, '; ') FROM pulse.why(pg_temp.job_of('a3')) AS w),
    '^the rate of group a of lane api is used up until', 'why says so'
);
SELECT ok(
    pulse.next_at('api') BETWEEN clock_timestamp() + interval '5 s' AND clock_timestamp() + interval '10 s',
    'next_at: the next wake of a group'
);
SELECT is(pulse.next_at('api', '{other}'), NULL, 'with kinds: of groups that have such a job');
SELECT results_eq(
    $$SELECT l.scope, l.group_key, l.what, l.allowed, l.used, l.waiting FROM pulse.limits AS l WHERE l.lane = 'api' ORDER BY 1, 2$$,
    $$VALUES ('each group', NULL, 'rate', 2, NULL::bigint, NULL::bigint), ('group', 'a', 'rate', 2, 2, 3), ('group', 'b', 'rate', 2, 2, 3)$$,
    'limits: the rate, and whom it holds'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');
SELECT pg_temp.pass('10 s');
SELECT is(pg_temp.take_jobs('api', 3), 'a3 b3 a4', 'they wake');
SELECT pulse.set_group('api', 'a', rate => 4, rate_per => '10 s');
SELECT is(pg_temp.take_jobs('api', 100), 'b4 a5', 'set_group: another rate for one group');
SELECT pulse.set_lane('api', group_rate => 3);
SELECT is(pg_temp.take_jobs('api', 100), 'b5', 'raised: who waited can run');

-- An idle group is remembered as long as its starts count.
SELECT pulse.set_lane('idle', group_rate => 1, group_rate_per => '10 minutes');
SELECT pg_temp.put_job('idle', 'a', 'i1') \g /dev/null
SELECT is(pg_temp.take_jobs('idle', 9), 'i1', 'one');
UPDATE pulse_internal.group_state SET written_at = clock_timestamp() - interval '2 minutes' WHERE lane = 'idle';
SELECT FROM pulse_internal.sweep_groups(NULL, NULL);
SELECT pg_temp.put_job('idle', 'a', 'i2') \g /dev/null
SELECT is(pg_temp.take_jobs('idle', 9), '', 'an idle group is not forgotten while its starts count');

-- All together: order, slots, rates
SELECT pulse.set_lane('all', in_order => true, group_rate => 2, group_rate_per => '1 minute', rate => 3, rate_per => '1 minute');
SELECT pg_temp.put_job('all', g, g || 'z' || n) FROM unnest('{a,b}'::text []) AS g, generate_series(1, 5) AS n ORDER BY n, g \g /dev/null
SELECT is(pg_temp.take_jobs('all', 9), 'az1 bz1', 'one of each');
SELECT pg_temp.done_with('az1'), pg_temp.done_with('bz1') \g /dev/null
SELECT is(pg_temp.take_jobs('all', 9), 'az2', 'one more start of the lane');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- What waits for time
SELECT is(pulse.next_at('nowhere'), NULL, 'next_at: nothing is known');
SELECT pulse.enqueue('k', lane => 'due', delay => '1 h') \g /dev/null
SELECT ok(pulse.next_at('due') BETWEEN now() + interval '59 min' AND now() + interval '61 min', 'next_at: the next job that is due');

-- A clock that was ahead for one claim

SELECT pulse.set_lane('ahead', rate => 2, rate_per => '1 minute') \gset
SELECT pulse.set_lane('turns', group_rate => 2, group_rate_per => '1 minute') \gset
\o /dev/null
SELECT pulse.enqueue('k', lane => 'ahead') FROM generate_series(1, 6);
SELECT pulse.enqueue('k', lane => 'turns', group_key => g) FROM unnest('{a,b}'::text []) AS g, generate_series(1, 4);
SELECT pg_temp.n('ahead', 9);
SELECT pg_temp.n('turns', 9);
SELECT pg_temp.pass('-1 h');
\o
SELECT is(pg_temp.n('ahead', 9) + pg_temp.n('turns', 9), 0::bigint, 'starts that are dated ahead count');
SELECT ok(
    (SELECT f.free_at FROM pulse.limits AS f WHERE f.lane = 'ahead') <= clock_timestamp() + interval '1 minute',
    'limits says free within a period'
);
SELECT ok(pulse.next_at('ahead') <= clock_timestamp() + interval '1 minute', 'a worker sleeps for a period at most');
SELECT ok(pulse.next_at('turns') <= clock_timestamp() + interval '1 minute', 'so does one of a lane with groups');
\o /dev/null
SELECT pg_temp.pass('61 s');
\o
SELECT is(pg_temp.n('ahead', 9), 2::bigint, 'the rate of a lane goes on after one period');
SELECT is(pg_temp.n('turns', 9), 4::bigint, 'the rates of groups go on after one period');

SELECT * FROM finish();

ROLLBACK;
