-- Lanes whose jobs stand in groups: the promises of docs/limits.md, and its edges.
BEGIN;

SELECT plan(79);

-- Fairness

SELECT pulse.set_lane('fair', fair => true);
SELECT FROM pulse.enqueue_many(
    'k', array_fill('{"name": "big"}'::jsonb, ARRAY[20]), lane => 'fair', group_key => 'big'
);
SELECT pg_temp.put_job('fair', 'small' || n, 'small' || n) FROM generate_series(1, 4) AS n \g /dev/null
-- proves: G19
SELECT is(
    pg_temp.take_jobs('fair', 6), 'big small1 small2 small3 small4 big',
    'guarantee 19: groups take turns, whatever the backlog of one'
);
SELECT pg_temp.put_job('fair', 'new', 'newcomer') \g /dev/null
SELECT is(
    pg_temp.take_jobs('fair', 2), 'big newcomer', 'fairness: a newcomer waits for one round at most'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'fair', 100)), 17::bigint,
    'fairness: one group may have all that nobody else wants'
);
SELECT is_empty('SELECT * FROM pulse_internal.ready WHERE group_key IS NOT NULL', 'and then nothing is left');

SELECT pg_temp.put_job('fair', g, g || '.' || n) FROM unnest('{a,b,c}'::text []) AS g, generate_series(1, 3) AS n ORDER BY g, n \g /dev/null
SELECT is(
    (SELECT string_agg(pg_temp.take_jobs('fair', 1), ' ') FROM generate_series(1, 9)),
    'a.1 b.1 c.1 a.2 b.2 c.2 a.3 b.3 c.3', 'fairness: the round goes on from claim to claim'
);

-- A hundred tenants behind the backlog of one.
SELECT pulse.set_lane('round', fair => true);
SELECT FROM pulse.enqueue_many(
    'k', array_fill('{"name": "b"}'::jsonb, ARRAY[900]), lane => 'round', group_key => 'big'
);
SELECT pg_temp.put_job('round', 's' || n, 's') FROM generate_series(1, 100) AS n \g /dev/null
SELECT is(
    (
        SELECT count(*)
        FROM generate_series(1, 11) AS n, pulse.claim_batch('w', 'round', 10 + 0 * n) AS c
        WHERE c.group_key <> 'big'
    ),
    100::bigint, 'guarantee 19: within 1.1 rounds every tenant has had its turn'
);

-- Jobs that depend on others, or must begin in time, in groups
SELECT pulse.set_lane('flow', group_slots => 1);
SELECT pg_temp.put_job('flow', 'a', 'upstream') AS upstream \gset
SELECT pulse.enqueue('k', '{"name": "downstream"}', 'flow', group_key => 'a', after => ARRAY[:upstream]::bigint []) \g /dev/null
SELECT pulse.enqueue('k', '{"name": "too late"}', 'flow', group_key => 'b', start_by => now() - interval '1 s') \g /dev/null
SELECT is(pg_temp.take_jobs('flow', 9), 'upstream', 'a late job of a group is not handed out');
SELECT pg_temp.done_with('upstream') \g /dev/null
SELECT pg_temp.take_jobs('flow', 9) AS first \gset
SELECT is(
    :'first' || pg_temp.take_jobs('flow', 9), 'downstream', 'a job whose upstream has ended joins its group'
);

-- Priority

SELECT pg_temp.put_job('fair', 'a', 'low1', -5), pg_temp.put_job('fair', 'a', 'low2', -5), pg_temp.put_job('fair', 'b', 'high', 5), pg_temp.put_job('fair', 'c', 'mid') \g /dev/null
SELECT is(
    pg_temp.take_jobs('fair', 1), 'high', 'priority: strict across groups'
);
SELECT pg_temp.put_job('fair', 'a', 'urgent', 9) \g /dev/null
SELECT is(
    pg_temp.take_jobs('fair', 9), 'urgent mid low1 low2',
    'priority: a higher one that arrives in a group that has a turn below goes first'
);
SELECT pg_temp.put_job('fair', 'many', 'p' || n, n) FROM generate_series(1, 5) AS n \g /dev/null
SELECT is(pg_temp.take_jobs('fair', 9), 'p5 p4 p3 p2 p1', 'priority: first inside a group');

-- Slots

SELECT pulse.set_lane('slots', group_slots => 2);
SELECT pg_temp.put_job('slots', 'a', 'a' || n) FROM generate_series(1, 6) AS n \g /dev/null
SELECT pg_temp.put_job('slots', 'b', 'b' || n) FROM generate_series(1, 3) AS n \g /dev/null
-- proves: G18
SELECT is(
    pg_temp.take_jobs('slots', 10), 'a1 b1 a2 b2', 'guarantee 18: no more of a group than its slots'
);
SELECT is(pg_temp.take_jobs('slots', 10), '', 'slots: a group at its limit gets nothing');
SELECT is_empty(
    'SELECT FROM pulse_internal.group_state AS s WHERE s.lane = ''slots'' AND s.turn IS NOT NULL',
    'and has no turn, so that nothing of it is read'
);
SELECT pg_temp.put_job('slots', 'c', 'c1') \g /dev/null
SELECT is(pg_temp.take_jobs('slots', 10), 'c1', 'slots: others go on');
SELECT pg_temp.done_with('a1') \g /dev/null
SELECT is(pg_temp.take_jobs('slots', 10), 'a3', 'slots: complete gives one back');
SELECT pulse.fail(pg_temp.lease_of('a2'), 'oops', fatal => true);
SELECT is(pg_temp.take_jobs('slots', 10), 'a4', 'slots: fail gives one back');
SELECT pulse.snooze(pg_temp.lease_of('a3'), '1 h');
SELECT is(pg_temp.take_jobs('slots', 10), 'a5', 'slots: snooze gives one back');
SELECT pulse.release(ARRAY[pg_temp.lease_of('a4')]) \g /dev/null
SELECT is(
    pg_temp.take_jobs('slots', 10), 'a6', 'slots: release gives one back, and the job a new place at the end'
);
SELECT pulse.cancel(pg_temp.job_of('a5'), force => true) \g /dev/null
SELECT is(pg_temp.take_jobs('slots', 10), 'a4', 'slots: a forced cancel gives one back');
UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s' WHERE lease = pg_temp.lease_of('b1');
SELECT pulse.reap() \g /dev/null
SELECT is(pg_temp.take_jobs('slots', 10), 'b3', 'slots: reap gives one back');
SELECT pulse.cancel(pg_temp.job_of('b2')) \g /dev/null
SELECT pulse.ack_cancel(pg_temp.lease_of('b2'));
SELECT pg_temp.put_job('slots', 'b', 'b4') \g /dev/null
SELECT is(pg_temp.take_jobs('slots', 10), 'b4', 'slots: ack_cancel gives one back');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well so far');

-- An end whose notice was read while the group had a turn is not forgotten.
SELECT pulse.set_lane('three', group_slots => 3);
SELECT pg_temp.put_job('three', 'a', 't' || n) FROM generate_series(1, 9) AS n \g /dev/null
SELECT is(pg_temp.take_jobs('three', 2), 't1 t2', 'two of three slots');
SELECT pg_temp.done_with('t1') \g /dev/null
SELECT pulse.enqueue('k', lane => 'three', group_key => 'b', payload => '{"name": "other"}') \g /dev/null
SELECT is(pg_temp.take_jobs('three', 1), 't3', 'the group has a turn, and its end is read on the way');
SELECT is(
    pg_temp.take_jobs('three', 9), 'other t4', 'slots: both that are free are used'
);

-- Kinds

SELECT pulse.set_lane('kinds', fair => true);
SELECT pg_temp.put_job('kinds', 'a', 'red1', kind => 'red'), pg_temp.put_job('kinds', 'a', 'blue1', kind => 'blue'), pg_temp.put_job('kinds', 'a', 'red2', kind => 'red'), pg_temp.put_job('kinds', 'b', 'blue2', kind => 'blue') \g /dev/null
SELECT is(
    pg_temp.take_jobs('kinds', 9, '{blue}'), 'blue2',
    'kinds: a group whose first job is of another kind is passed over'
);
SELECT is(
    pg_temp.take_jobs('kinds', 9, '{red}'), 'red1', 'kinds: no further than the first that is not wanted'
);
SELECT is(pg_temp.take_jobs('kinds', 9, '{red,blue}'), 'blue1 red2', 'kinds: in order');
SELECT pg_temp.put_job('kinds', 'a', 'red3', kind => 'red'), pg_temp.put_job('kinds', 'a', 'blue3', kind => 'blue') \g /dev/null
SELECT is(pg_temp.take_jobs('kinds', 9, '{blue}'), '', 'kinds: blue stands behind red');
SELECT pulse.cancel(pg_temp.job_of('red3')) \g /dev/null
SELECT is(
    pg_temp.take_jobs('kinds', 9, '{blue}'), 'blue3', 'kinds: cancel of the first job lets the next be seen'
);

-- Order, and how jobs come and go

SELECT pulse.set_lane('order', group_slots => 1);
SELECT pg_temp.put_job('order', 'a', 'o' || n) FROM generate_series(1, 6) AS n \g /dev/null
SELECT pulse.cancel(pg_temp.job_of('o1')) \g /dev/null
SELECT pulse.reprioritize(pg_temp.job_of('o4'), 7) \g /dev/null
SELECT pulse.reprioritize(pg_temp.job_of('o4'), 0) \g /dev/null
CREATE FUNCTION pg_temp.one_by_one(lane text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_name text;
    v_all text := '';
BEGIN
    LOOP
        v_name := pg_temp.take_jobs(one_by_one.lane, 5);
        EXIT WHEN v_name = '';
        v_all := v_all || ' ' || v_name;
        PERFORM pg_temp.done_with(v_name);
    END LOOP;
    RETURN v_all;
END;
$$;
SELECT is(
    pg_temp.one_by_one('order'), ' o2 o3 o5 o6 o4',
    'order: first in, first out; a new priority is a new place'
);

SELECT pg_temp.put_job('order', 'a', 'late', delay => '1 h'), pg_temp.put_job('order', 'a', 'soon') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 5), 'soon', 'a scheduled job does not hold its group');
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s' WHERE job = pg_temp.job_of('late');
SELECT pg_temp.done_with('soon') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 5), 'late', 'and takes its place when it is due');
SELECT pulse.fail(pg_temp.lease_of('late'), 'oops', retry_in => '1 h');
SELECT is(
    (SELECT w.retrying FROM pulse_internal.waiting AS w WHERE w.job = pg_temp.job_of('late')), true,
    'a failed one waits'
);
SELECT pulse.move(pg_temp.job_of('late'), 'fair') \g /dev/null
SELECT is((SELECT w.lane FROM pulse_internal.waiting AS w WHERE w.job = pg_temp.job_of('late')), 'fair', 'and may be moved');
SELECT pg_temp.put_job('order', 'a', 'mover') \g /dev/null
SELECT is(pulse.move(pg_temp.job_of('mover'), 'slots'), 'ready', 'from the line of a group');
SELECT is(
    (SELECT r.group_key FROM pulse_internal.ready AS r WHERE r.job = pg_temp.job_of('mover')), 'a',
    'into that of the same key in another lane'
);
SELECT is(pulse.move(pg_temp.job_of('mover'), 'plain'), 'ready', 'or out of all groups');
SELECT is(pg_temp.take_jobs('plain', 5), 'mover', 'where it is claimed as any other');

SELECT pulse.enqueue('k', '{"name": "first"}', 'order', unique_key => 'u', group_key => 'a') \g /dev/null
SELECT pg_temp.put_job('order', 'a', 'second') \g /dev/null
SELECT pulse.enqueue('k', '{"name": "replaced"}', 'order', unique_key => 'u', on_conflict => 'replace', group_key => 'a') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 5), 'replaced', 'replace leaves a job where it stands in its group');
SELECT pg_temp.done_with('replaced') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 5), 'second', 'and the next comes after it');
SELECT results_eq(
    format('SELECT v.verdict FROM pulse.release(ARRAY[%1$s, %1$s]) AS v', pg_temp.lease_of('second')),
    $$VALUES ('ok'), ('ok')$$, 'a release that is repeated is ok again'
);
SELECT pulse.cancel(pg_temp.job_of('second')) \g /dev/null
SELECT pulse.retry(pg_temp.job_of('second')) \g /dev/null
SELECT is(pg_temp.take_jobs('order', 5), 'second', 'retry puts a job into its group again');

-- No key, long keys, the same key in two lanes

SELECT pulse.set_lane('edge', group_slots => 1);
SELECT pg_temp.put_job('edge', NULL, 'none1'), pg_temp.put_job('edge', NULL, 'none2'), pg_temp.put_job('edge', '', 'none3'), pg_temp.put_job('edge', 'a', 'some') \g /dev/null
SELECT is(
    pg_temp.take_jobs('edge', 2), 'none1 some',
    'jobs without a key are one group that takes turns'
);
SELECT is(pg_temp.take_jobs('edge', 5), 'none2 none3', 'and has no limit');
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', lane => 'edge', group_key => repeat('é', 600))$$, 'PU002', NULL,
    'a key above 1000 bytes is refused'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('k', ARRAY['1'::jsonb], lane => 'edge', group_key => repeat('é', 600))$$,
    'PU002', NULL, 'also for many'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', lane => 'edge', delay => '1 h', group_key => repeat('é', 600))$$,
    'PU002', NULL, 'also for later'
);
SELECT pg_temp.put_job('other', repeat('é', 600), 'long') \g /dev/null
SELECT pulse.set_lane('other', group_slots => 1);
SELECT is(pg_temp.take_jobs('other', 5), 'long', 'older ones are filed under a hash of it');
SELECT is(
    (SELECT l.group_key FROM pulse_internal.lease AS l WHERE l.lane = 'other'), md5(repeat('é', 600)),
    'which is what counts'
);
SELECT pg_temp.put_job('other', 'a', 'same key') \g /dev/null
SELECT is(pg_temp.take_jobs('other', 5), 'same key', 'the same key in two lanes is two groups');

-- With the limits of the lane

SELECT pulse.set_lane('both', max_slots => 3, group_slots => 2);
SELECT pg_temp.put_job('both', g, g || 'x' || n) FROM unnest('{a,b}'::text []) AS g, generate_series(1, 4) AS n ORDER BY g, n \g /dev/null
SELECT is(pg_temp.take_jobs('both', 9), 'ax1 bx1 ax2', 'max_slots of the lane holds as well');
SELECT is(pg_temp.take_jobs('both', 9), '', 'the lane is full');
SELECT pg_temp.done_with('ax1') \g /dev/null
SELECT is(pg_temp.take_jobs('both', 9), 'bx2', 'and goes on with whose turn it is');

-- Changes

SELECT pulse.set_lane('both', group_slots => 1, max_slots => 0);
SELECT pg_temp.done_with('ax2') \g /dev/null
SELECT pg_temp.done_with('bx1') \g /dev/null
SELECT is(pg_temp.take_jobs('both', 9), 'ax3', 'lowered: from the next claim on, and what runs goes on');
SELECT pulse.set_lane('both', group_slots => 3);
SELECT set_eq(
    $$SELECT regexp_split_to_table(pg_temp.take_jobs('both', 9), ' ')$$, '{ax4,bx3,bx4}'::text [],
    'raised: groups that waited have a turn'
);

SELECT pg_temp.put_job('later', g, g || 'y' || n) FROM unnest('{a,b}'::text []) AS g, generate_series(1, 3) AS n ORDER BY g, n \g /dev/null
SELECT is(pg_temp.take_jobs('later', 2), 'ay1 ay2', 'a lane that is not grouped');
SELECT pulse.set_lane('later', group_slots => 2);
SELECT is(
    pg_temp.take_jobs('later', 9), 'by1 by2', 'switched on: what runs counts, what waits is sorted into groups'
);
SELECT pg_temp.done_with('ay1') \g /dev/null
SELECT is(pg_temp.take_jobs('later', 9), 'ay3', 'and ends of what ran before give slots back');
SELECT pg_temp.put_job('later', 'a', 'ay4') \g /dev/null
SELECT pulse.set_lane('later', group_slots => 0);
SELECT is(pg_temp.take_jobs('later', 9), 'by3 ay4', 'switched off: no limit, and nothing is lost');
SELECT pulse_internal.tick_groups() \g /dev/null
SELECT pulse_internal.tick_groups() \g /dev/null
SELECT is(
    (SELECT l.grouped FROM pulse_internal.lane AS l WHERE l.lane = 'later'), NULL,
    'and then the lane is as any other'
);

-- Reports of many groups at once
SELECT pulse.set_lane('reports', group_slots => 1);
SELECT pg_temp.put_job('reports', g, g || n) FROM unnest('{a,b,c}'::text []) AS g, generate_series(1, 2) AS n ORDER BY n, g \g /dev/null
SELECT is(pg_temp.take_jobs('reports', 3), 'a1 b1 c1', 'one job of each group');
SELECT is(pg_temp.take_jobs('reports', 3), '', 'and no more while these run');
SELECT count(*) FROM pulse.complete_batch(array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'reports')) \g /dev/null
SELECT results_eq(
    $$SELECT n.ended::text COLLATE "default" FROM pulse_internal.group_notice AS n WHERE n.lane = 'reports'$$,
    $$VALUES ('{a,b,c}'::text)$$, 'what is reported together leaves one notice'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'which groups at their limit may wait for');
SELECT is(pg_temp.take_jobs('reports', 2), 'a2 b2', 'and is read by the next claim');
SELECT is(pg_temp.take_jobs('reports', 2), 'c2', 'for all of them');

-- A group and nothing else, a group and more, a group in a lane without groups: the same job
SELECT pulse.enqueue('same', lane => l, group_key => 'g', tags => t)
FROM unnest('{reports,plain}'::text []) AS l, (VALUES (NULL::text []), ('{}')) AS v (t) \g /dev/null
SELECT results_eq(
    $$SELECT count(*), count(DISTINCT to_jsonb(b) - '{job,enqueued_at,tags}'::text [])
    FROM pulse_internal.body AS b WHERE b.kind = 'same'$$,
    $$VALUES (4::bigint, 1::bigint)$$, 'however an enqueue with a group gets there, the job is the same'
);
SELECT results_eq(
    $$SELECT 'in its group', count(*) FROM pulse_internal.ready AS r WHERE r.kind = 'same' AND r.group_key = 'g'
    UNION ALL SELECT 'in its lane', count(*) FROM pulse_internal.ready AS r WHERE r.kind = 'same' AND r.group_key IS NULL$$,
    $$VALUES ('in its group', 2::bigint), ('in its lane', 2)$$, 'and so is its line'
);

-- Strict priority across groups, also where a group has several levels
SELECT pulse.set_lane('strict', fair => true, max_slots => 2);
SELECT pg_temp.put_job('strict', j.key, j.name, j.priority)
FROM (VALUES ('a', 'a9', 9), ('a', 'a8', 8), ('b', 'b0', 0)) AS j (key, name, priority) \g /dev/null
SELECT is(pg_temp.take_jobs('strict', 10), 'a9 a8', 'priority: the second level of a group comes before a lower one of another');
SELECT pulse.set_lane('uneven', fair => true);
SELECT pg_temp.put_job('uneven', 'big', 'x', 5) FROM generate_series(1, 40) \g /dev/null
SELECT pg_temp.put_job('uneven', 'g' || n, 'x', 5) FROM generate_series(1, 9) AS n \g /dev/null
SELECT pg_temp.put_job('uneven', 'low', 'low', 0) \g /dev/null
SELECT is(pg_temp.take_jobs('uneven', 20), btrim(repeat('x ', 20)), 'priority: a long line of a group comes before a lower level of another');
SELECT is(pg_temp.take_jobs('uneven', 29), btrim(repeat('x ', 29)), 'priority: to its end');
SELECT is(pg_temp.take_jobs('uneven', 9), 'low', 'and the lower level after it');

-- A job that is released and runs again counts once against the slots of its group.
SELECT pulse.set_lane('again', group_slots => 3);
SELECT pg_temp.put_job('again', 'a', 'a', 9) \g /dev/null
SELECT pulse.release(array(SELECT c.lease FROM pulse.claim_batch('w', 'again') AS c)) \g /dev/null
SELECT FROM pulse.claim_batch('w', 'again') \g /dev/null
SELECT pg_temp.put_job('again', j.key, j.key, j.priority)
FROM (VALUES ('a', 9), ('a', 9), ('b', 0), ('b', 0)) AS j (key, priority) \g /dev/null
-- proves: G19
SELECT is(pg_temp.take_jobs('again', 2), 'a a', 'priority: a group with a free slot comes before a lower level');

-- A window of starts opens again by the time of the lease.
SELECT pulse.set_lane('dated', fair => true, group_rate => 3, group_rate_per => '1 hour');
SELECT pg_temp.put_job('dated', 'a', 'a') \g /dev/null
SELECT c.lease_until - interval '30 seconds' AS started_at FROM pulse.claim_batch('w', 'dated') AS c \gset
-- proves: G24
SELECT is(
    :'started_at'::timestamptz,
    (SELECT (s.starts).times[1] FROM pulse_internal.group_state AS s WHERE s.lane = 'dated'),
    'guarantee 24: a start of a group has the date of its lease'
);

-- The first lease of a sequence that was not drawn from yet
SELECT pulse.set_lane('first', fair => true, max_slots => 1);
SELECT pg_temp.put_job('first', g, g) FROM unnest('{a,b}'::text []) AS g \g /dev/null
SELECT pulse.set_node(7);
SELECT is(pg_temp.take_jobs('first', 1), 'a', 'a claim after set_node takes a job');
SELECT is(pg_temp.take_jobs('first', 1), '', 'guarantee 9: and its lease counts');

SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

SELECT * FROM finish();

ROLLBACK;
