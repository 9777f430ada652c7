-- The upkeep of groups: the roll, the sweep, what tick sorts, what check and the backstop find.
BEGIN;

SELECT plan(36);

CREATE FUNCTION pg_temp.put(
    lane text, group_key text, kind text DEFAULT 'k', priority integer DEFAULT 0
)
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT pulse.enqueue(put.kind, lane => put.lane, group_key => put.group_key, priority => put.priority)
$$;

CREATE FUNCTION pg_temp.take(lane text, max_jobs integer)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT count(*) FROM pulse.claim_batch('w', take.lane, take.max_jobs) $$;

-- The roll: what a restore leaves

SELECT pulse.set_lane('rolled', group_slots => 2);
SELECT pg_temp.put('rolled', 'x' || n % 40, priority => n / 40) FROM generate_series(0, 199) AS n \g /dev/null
SELECT is(pg_temp.take('rolled', 30), 30::bigint, 'some run');
DELETE FROM pulse_internal.group_notice;
DELETE FROM pulse_internal.group_state;
DELETE FROM pulse_internal.group_mark;
SELECT is_empty('SELECT * FROM pulse.check()', 'nothing is amiss when nothing is known of groups');
SELECT is(pg_temp.take('rolled', 100), 50::bigint, 'the roll is taken, and what runs is counted');
SELECT is(pg_temp.take('rolled', 100), 0::bigint, 'all forty groups are full');
SELECT is_empty('SELECT * FROM pulse.check()', 'and all is well');
SELECT results_eq(
    'SELECT -l.rank, count(*) FROM pulse_internal.lease AS l GROUP BY 1 ORDER BY 1 DESC',
    $$VALUES (4, 40::bigint), (3, 40)$$, 'every group got its two most urgent jobs'
);

-- A part at a time: a group whose turn has not come yet keeps its order.
SELECT pulse.set_lane('slow', group_slots => 1);
SELECT pg_temp.put('slow', g, g || n) FROM generate_series(1, 2) AS n, unnest('{a,b,c}'::text []) AS g \g /dev/null
DELETE FROM pulse_internal.group_notice;
SELECT FROM pulse_internal.lane AS l, pulse_internal.announce_groups(l, NULL, 1) WHERE l.lane = 'slow';
SELECT is((pulse_internal.newest_group_mark('slow')).roll_from, 'b', 'the roll stops after so many groups');
SELECT pg_temp.put('slow', 'c', 'c3') \g /dev/null
SELECT FROM pulse_internal.lane AS l, pulse_internal.read_notices(l, 0, 100, 'b') WHERE l.lane = 'slow';
SELECT results_eq(
    $$
    SELECT g.group_key COLLATE "default", g.kind COLLATE "default"
    FROM pulse_internal.group_state AS g
    WHERE g.lane = 'slow'
    ORDER BY 1
    $$,
    $$VALUES ('a', 'a1'), ('c', 'c1')$$, 'a notice from beyond it leads to the first job of its group'
);
DELETE FROM pulse_internal.group_mark;
SELECT set_eq(
    $$SELECT c.kind FROM pulse.claim_batch('w', 'slow', 9) AS c$$, '{a1,b1,c1}'::text [],
    'the roll is taken to its end'
);
SELECT is((pulse_internal.newest_group_mark('slow')).roll_from, NULL, 'and that is known');

-- Switched off and on by claims alone: a group that was full is not full for ever.
SELECT pulse.set_lane('twice', group_slots => 1);
SELECT pg_temp.put('twice', 'a', 'a' || n) FROM generate_series(1, 2) AS n \g /dev/null
SELECT is(pg_temp.take('twice', 9), 1::bigint, 'one job of the group runs');
SELECT pulse.set_lane('twice', group_slots => 0);
SELECT is(pg_temp.take('twice', 9), 1::bigint, 'the other one when the lane has no groups');
SELECT pulse.complete_batch(array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'twice')) \g /dev/null
SELECT is(pg_temp.take('twice', 9), 0::bigint, 'both have ended');
SELECT pulse.set_lane('twice', group_slots => 1);
SELECT is(pg_temp.take('twice', 9), 0::bigint, 'a claim takes the roll of no group');
SELECT pg_temp.put('twice', 'a', 'a3') \g /dev/null
SELECT is(pg_temp.take('twice', 9), 1::bigint, 'the next job of the group runs');

-- tick, more than once: a call has 200 ms, and a busy machine may need them for the first lane

SELECT pulse.set_lane('flood', fair => true);
SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[600]), lane => 'flood');
SELECT pulse_internal.tick_groups() FROM generate_series(1, 5) \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'flood' AND r.group_key IS NULL), 0::bigint,
    'a backlog without a key is sorted into its group by tick'
);
SELECT is((SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'flood' AND r.group_key IS NOT NULL), 600::bigint, 'every job of it');
SELECT pg_temp.put('flood', 'g' || n) FROM generate_series(1, 1100) AS n \g /dev/null
SELECT pulse_internal.tick_groups() FROM generate_series(1, 5) \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse_internal.group_notice AS n WHERE n.lane = 'flood'), 0::bigint,
    'a flood of notices is read by tick'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.group_state AS s WHERE s.turn IS NOT NULL AND s.lane = 'flood'),
    1101::bigint, 'every group has its turn'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'and all is well');

SELECT pulse.set_lane('off', fair => true);
SELECT pg_temp.put('off', 'g' || n % 5) FROM generate_series(1, 20) AS n \g /dev/null
SELECT pulse.set_lane('off', fair => false);
SELECT pulse_internal.leave_groups('off', 7) \g /dev/null
SELECT results_eq(
    $$SELECT (SELECT count(*) FROM pulse_internal.ready WHERE lane = 'off' AND group_key IS NULL), (SELECT count(*) FROM pulse_internal.ready WHERE lane = 'off' AND group_key IS NOT NULL)$$,
    $$VALUES (7::bigint, 13::bigint)$$, 'out of groups, so many at a time'
);
SELECT pulse_internal.tick_groups() FROM generate_series(1, 4) \g /dev/null
SELECT results_eq(
    $$
    SELECT (SELECT count(*) FROM pulse_internal.ready WHERE lane = 'off' AND group_key IS NULL),
        (SELECT count(*) FROM pulse_internal.group_notice WHERE lane = 'off')
        + (SELECT count(*) FROM pulse_internal.group_state WHERE lane = 'off')
        + (SELECT count(*) FROM pulse_internal.group_mark WHERE lane = 'off'),
        (SELECT grouped FROM pulse_internal.lane WHERE lane = 'off')
    $$,
    $$VALUES (20::bigint, 0::bigint, NULL::boolean)$$, 'tick moves the rest, and nothing is left behind'
);

-- The sweep

SELECT pulse.set_lane('idle', group_slots => 1);
SELECT pg_temp.put('idle', g) FROM unnest('{done,runs,waits}'::text []) AS g \g /dev/null
SELECT is(pg_temp.take('idle', 2), 2::bigint, 'two run');
SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l WHERE l.lane = 'idle' AND l.group_key = 'done';
SELECT pg_temp.take('idle', 1) \g /dev/null
SELECT pg_temp.put('idle', 'waits') \g /dev/null
SELECT pg_temp.take('idle', 1) \g /dev/null
UPDATE pulse_internal.group_state SET written_at = clock_timestamp() - interval '30 s' WHERE lane = 'idle';
SELECT FROM pulse_internal.sweep_groups(NULL, NULL);
SELECT is((SELECT count(*) FROM pulse_internal.group_state WHERE lane = 'idle'), 3::bigint, 'a group is known for a minute');
UPDATE pulse_internal.group_state SET written_at = clock_timestamp() - interval '61 s' WHERE lane = 'idle';
SELECT FROM pulse_internal.sweep_groups(NULL, NULL);
SELECT results_eq(
    $$SELECT s.group_key COLLATE "default" FROM pulse_internal.group_state AS s WHERE s.lane = 'idle' ORDER BY 1$$,
    $$VALUES ('runs'), ('waits')$$, 'and forgotten then, unless it runs or waits for something'
);

-- check, and the backstop that repairs what it finds

CREATE FUNCTION pg_temp.finds(damage text, problem text, what text)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
BEGIN
    BEGIN
        EXECUTE finds.damage;
        IF NOT EXISTS (SELECT FROM pulse.check() AS c WHERE c.problem = finds.problem) THEN
            RAISE EXCEPTION 'not found';
        END IF;
        PERFORM pulse_internal.tick_group_backstop();
        PERFORM pulse_internal.tick_groups();
        PERFORM pulse_internal.tick_groups();
        IF finds.problem <> 'group runs more than its slots'
            AND EXISTS (SELECT FROM pulse.check())
        THEN
            RAISE EXCEPTION 'not repaired: %', (SELECT string_agg(c::text, ', ') FROM pulse.check() AS c);
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'ZZZZZ';
    EXCEPTION
        WHEN SQLSTATE 'ZZZZZ' THEN
            RETURN NEXT pass(finds.what);
        WHEN raise_exception THEN
            RETURN NEXT fail(finds.what || ': ' || SQLERRM);
    END;
END;
$$;

SELECT pulse.set_lane('damaged', group_slots => 2);
SELECT pg_temp.put('damaged', g) FROM generate_series(1, 4), unnest('{a,b}'::text []) AS g \g /dev/null
SELECT pg_temp.take('damaged', 3) \g /dev/null
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well before the damage');
SELECT pg_temp.finds(
    'UPDATE pulse_internal.group_state SET place = 9223372036854775807 WHERE lane = ''damaged''',
    'job is reached by no group', 'a job below the first place of its group'
);
SELECT pg_temp.finds(
    'DELETE FROM pulse_internal.group_state WHERE lane = ''damaged''',
    'job is reached by no group', 'a group that is not known'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.group_state SET jobs = ''{}'' WHERE lane = ''damaged''',
    'lease is missing from its group', 'a running job that its group does not count'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.group_state SET turn = NULL WHERE lane = ''damaged''',
    'group waits for nothing', 'a group that could run and has no turn'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.group_mark SET ranks = ''{0}'', turns = ''{9223372036854775807}'' WHERE lane = ''damaged''',
    'turn is below its mark', 'a turn below its mark'
);
SELECT pg_temp.put('damaged', 'c') \g /dev/null
SELECT pg_temp.finds(
    'UPDATE pulse_internal.group_mark SET notice_from = 9223372036854775807 WHERE lane = ''damaged''',
    'notice is below its mark', 'a notice below its mark'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.lane SET group_slots = 1 WHERE lane = ''damaged'';
    UPDATE pulse_internal.audit_entry SET at = at - interval ''1 hour''',
    'group runs more than its slots', 'a group that runs more than its slots'
);

-- Running jobs are counted from when there is a limit.
SELECT pg_temp.put('counted', 'a') FROM generate_series(1, 3) \g /dev/null
SELECT pg_temp.take('counted', 2) \g /dev/null
SELECT pulse.set_lane('counted', fair => true);
SELECT is(
    (SELECT count(l.group_key) FROM pulse_internal.lease AS l WHERE l.lane = 'counted'), 0::bigint,
    'without a limit no run is counted'
);
SELECT pulse.set_lane('counted', group_slots => 2);
SELECT is(
    (SELECT count(l.group_key) FROM pulse_internal.lease AS l WHERE l.lane = 'counted'), 2::bigint,
    'with one, all are'
);
SELECT is(pg_temp.take('counted', 2), 0::bigint, 'and hold the next back');

SELECT * FROM finish();

ROLLBACK;
