-- Rates of kinds, whatever lanes their jobs are in.
BEGIN;

SELECT plan(49);

CREATE FUNCTION pg_temp.pass(by interval)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.quota SET starts = ROW(array(SELECT t - pass.by FROM unnest((starts).times) AS t), (starts).counts)::pulse_internal.rate_window;
$$;
-- What a claim gets, by kind.
CREATE FUNCTION pg_temp.got(lane text, max_jobs integer, kinds text [] DEFAULT NULL)
RETURNS text
LANGUAGE sql
AS $$
    SELECT coalesce(string_agg(concat(c.kind, c.payload ->> 'n'), ' ' ORDER BY c.lease), '')
    FROM pulse.claim_batch('w', got.lane, got.max_jobs, kinds => got.kinds) AS c
$$;
CREATE FUNCTION pg_temp.put(lane text, jobs text, group_key text DEFAULT NULL, priority integer DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT count(pulse.enqueue(left(j, 1), jsonb_build_object('n', right(j, -1)), lane => put.lane, group_key => put.group_key, priority => put.priority))
    FROM unnest(string_to_array(put.jobs, ' ')) AS j
$$;

-- Settings

SELECT throws_ok(
    format('SELECT pulse.%s', b.call), 'PU002', NULL, format('%s is out of bounds', b.call)
)
FROM (
    VALUES
    ($$set_kind('x', rate => 5)$$), ($$set_kind('x', rate_per => '1 s')$$),
    ($$set_kind('x', rate => -1, rate_per => '1 s')$$), ($$set_kind('x', rate => 5, rate_per => '25 h')$$)
) AS b (call);
SELECT pulse.set_kind('x', rate => 2, rate_per => '1 minute');
SELECT pulse.set_kind('x', rate => 3);
SELECT results_eq(
    $$SELECT k.rate, k.rate_per FROM pulse_internal.kind AS k WHERE k.kind = 'x'$$,
    $$VALUES (3, interval '1 minute')$$, 'what is not given stays as it is'
);

-- A lane without groups

SELECT pg_temp.put('one', 'x1 y1 x2 x3 y2 x4 x5 y3') \g /dev/null
-- proves: G24
SELECT is(pg_temp.got('one', 2), 'x1 y1', 'guarantee 24: within the rate of a kind');
SELECT is(pg_temp.got('one', 5), 'x2 x3 y2 y3', 'guarantee 24: no more of a kind than its rate; what stands behind is taken');
SELECT is(pg_temp.got('one', 5), '', 'then nothing');
SELECT is(pg_temp.got('one', 5, '{x,y}'), '', 'nor with kinds');
SELECT pg_temp.put('two', 'x6 y4') \g /dev/null
SELECT is(pg_temp.got('two', 5), 'y4', 'guarantee 24: the rate of a kind holds over all lanes');
SELECT pg_temp.put('two', 'y5') \g /dev/null
SELECT is(pg_temp.got('two', 5, '{x,y}'), 'y5', 'with kinds others go on as well');
SELECT ok(
    pulse.next_at('two') BETWEEN clock_timestamp() + interval '50 s' AND clock_timestamp() + interval '60 s',
    'next_at: when the kind has a start again'
);
SELECT is(pulse.next_at('two', '{y}'), NULL, 'next_at: of the kinds asked for');
SELECT is(pulse.next_at('empty'), NULL, 'next_at: of a lane that has such a job');
SELECT matches(
    (SELECT string_agg(w.reason, '; ') FROM pulse_internal.in_line AS r, pulse.why(r.job) AS w WHERE r.lane = 'two'),
    'the rate of kind x is used up until .*: 3 starts in', 'why says so'
);
SELECT results_eq(
    $$SELECT l.scope, l.lane, l.kind, l.what, l.allowed, l.per, l.used, l.free_at > clock_timestamp() FROM pulse.limits AS l WHERE l.kind = 'x'$$,
    $$VALUES ('kind', NULL, 'x', 'rate', 3, interval '1 minute', 3::bigint, true)$$, 'limits shows it'
);
SELECT ok((SELECT h.rated FROM pulse.hello('w1', '{two}', '{x}') AS h), 'hello: a rate may hold a worker of this kind');
SELECT ok(NOT (SELECT h.rated FROM pulse.hello('w2', '{two}', '{y}') AS h), 'and no other one');
SELECT pg_temp.pass('59 s');
SELECT is(pg_temp.got('two', 5), '', 'not before the period is over');
SELECT pg_temp.pass('1 s');
SELECT is(pg_temp.got('two', 5) || ', ' || pg_temp.got('one', 5), 'x6, x4 x5', 'and then as many again');

-- A claim that is rolled back was none; what began too late was none.
SELECT pg_temp.pass('1 minute');
SELECT pg_temp.put('one', 'x1 x2 x3 x4') \g /dev/null
SAVEPOINT before;
SELECT is(pg_temp.got('one', 5), 'x1 x2 x3', 'claimed');
ROLLBACK TO before;
SELECT pulse.enqueue('x', '{"n": 0}', lane => 'one', priority => 9, start_by => clock_timestamp() + interval '1 h') AS late \gset
UPDATE pulse_internal.body SET start_by = clock_timestamp() - interval '1 s' WHERE job = :late;
SELECT is(pg_temp.got('one', 3), 'x1 x2 x3', 'one was too late, and is no start');

-- Behind a thousand of the kind that is held
SELECT count(pulse.enqueue('x', lane => 'deep')) FROM generate_series(1, 1000) \g /dev/null
SELECT pg_temp.put('deep', 'y1 y2 z1') \g /dev/null
SELECT is(pg_temp.got('deep', 2), 'y1 y2', 'others are found behind many that are held');
SELECT is(pg_temp.got('deep', 2), 'z1', 'all of them');

-- Two kinds with a rate, and slots of the lane
SELECT pulse.set_kind('z', rate => 1, rate_per => '1 minute');
SELECT pg_temp.pass('1 minute');
SELECT pulse.set_lane('both', max_slots => 5);
SELECT pg_temp.put('both', 'z1 z2 x1 x2 x3 x4 y1 y2') \g /dev/null
SELECT is(pg_temp.got('both', 9), 'z1 x1 x2 x3 y1', 'each has its own, in the order of the line');
SELECT is((SELECT string_agg(k, ' ' ORDER BY k) FROM unnest(pulse_internal.spent_kinds(NULL)) AS k), 'x z', 'both are used up');

-- Changed while it holds
SELECT pulse.set_kind('x', rate => 4);
SELECT is(pg_temp.got('deep', 9), 'x', 'raised: from the next claim on');
SELECT pulse.set_kind('x', rate => 1);
SELECT is(pg_temp.got('deep', 9), '', 'lowered: what started counts');
UPDATE pulse_internal.ready SET ready_at = clock_timestamp() - interval '6 min' WHERE lane = 'deep';
UPDATE pulse_internal.lease SET claimed_at = clock_timestamp() - interval '6 min' WHERE lane = 'deep';
SELECT ok((SELECT h.figure !~ 'deep' FROM pulse.health() AS h WHERE h.check_name = 'stuck_lanes'), 'health: what a rate of a kind holds is no lane that is stuck');
SELECT pulse.set_kind('x', rate => 0);
SELECT ok((SELECT h.figure ~ 'deep' FROM pulse.health() AS h WHERE h.check_name = 'stuck_lanes'), 'as it would be without');
SELECT is(pg_temp.got('deep', 3, '{x}'), 'x x x', 'switched off');
SELECT is_empty($$SELECT * FROM pulse_internal.quota WHERE kind = 'x'$$, 'nothing is left of it');

-- Groups

SELECT pulse.set_kind('x', rate => 2, rate_per => '1 minute');
SELECT pulse.set_lane('g', fair => true);
SELECT pg_temp.put('g', 'x1 y1 x2', 'a'), pg_temp.put('g', 'x3 x4', 'b'), pg_temp.put('g', 'x5 y2', 'c'), pg_temp.put('g', 'y3 x6', 'd') \g /dev/null
SELECT is(pg_temp.got('g', 9), 'x1 x3 y3 y1', 'guarantee 24: of each group up to the first job that its kind has no start for');
SELECT is(pg_temp.got('g', 9), '', 'then nothing');
SELECT is(pg_temp.got('g', 9, '{x,y}'), '', 'nor with kinds');
SELECT pg_temp.put('g', 'y4', 'e'), pg_temp.put('g', 'x7', 'f') \g /dev/null
SELECT is(pg_temp.got('g', 9), 'y4', 'others go on');
SELECT ok(
    pulse.next_at('g') BETWEEN clock_timestamp() + interval '50 s' AND clock_timestamp() + interval '60 s',
    'next_at: when the kind has a start again'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');
SELECT pg_temp.pass('1 minute');
SELECT is(pg_temp.got('g', 9), 'x5 x4 y2', 'groups that were passed over kept their turn');
SELECT pg_temp.pass('1 minute');
SELECT is(pg_temp.got('g', 1), 'x6', 'and have it, one claim after the other');
SELECT is(pg_temp.got('g', 1), 'x2', 'in turn');
-- Priority first; a group that has them all has many in one claim.
SELECT pulse.set_kind('x', rate => 7, rate_per => '1 minute');
SELECT pg_temp.pass('1 minute');
SELECT pulse.set_lane('p', fair => true);
SELECT pg_temp.put('p', 'x1 x2 x3', 'low'), pg_temp.put('p', 'x4 x5 x6', 'high', 5), pg_temp.put('p', 'y1', 'low') \g /dev/null
SELECT is(pg_temp.got('p', 5), 'x4 x5 x6 x1 x2', 'the starts go to the higher priority first');
SELECT pg_temp.put('p', 'x7 x8', 'high', 5) \g /dev/null
SELECT is(pg_temp.got('p', 9), 'x7 x8', 'up to the last one');
SELECT pg_temp.pass('1 minute');
SELECT is(pg_temp.got('p', 9), 'x3 y1', 'and then the rest, with what stood behind it');
SELECT pulse.set_kind('x', rate => 2);
SELECT pulse.set_lane('g', in_order => true);
SELECT pg_temp.pass('1 minute');
SELECT is(pg_temp.got('g', 9), 'x7', 'with order as well');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- A clock that was ahead for one claim

SELECT pulse.set_kind('ahead', rate => 2, rate_per => '1 minute') \gset
\o /dev/null
SELECT pulse.enqueue('ahead', lane => 'ahead') FROM generate_series(1, 6);
SELECT FROM pulse.claim_batch('w', 'ahead', 9);
SELECT pg_temp.pass('-1 h');
\o
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'ahead', 9)), 0::bigint, 'starts that are dated ahead count');
SELECT is(pulse_internal.spent_kinds('{ahead}'), '{ahead}', 'the claim has dated them');
\o /dev/null
SELECT pg_temp.pass('61 s');
\o
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'ahead', 9)), 2::bigint, 'the rate of a kind goes on after one period');

SELECT * FROM finish();

ROLLBACK;
