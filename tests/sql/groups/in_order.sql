-- Lanes with in_order: a job that comes back keeps its place, and its group waits for it.
BEGIN;

SELECT plan(45);

-- Waiting jobs come due.
CREATE FUNCTION pg_temp.due()
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s'
    WHERE run_at > clock_timestamp() - interval '1 s'
$$;

CREATE FUNCTION pg_temp.three(lane text, prefix text)
RETURNS void
LANGUAGE sql
AS $$
    SELECT count(pg_temp.put_job(three.lane, 'a', three.prefix || n)) FROM generate_series(1, 3) AS n
$$;

-- Settings

SELECT pulse.set_lane('order', in_order => true);
SELECT results_eq(
    $$SELECT l.group_slots, l.in_order, l.grouped FROM pulse_internal.lane AS l WHERE l.lane = 'order'$$,
    'VALUES (1, true, true)', 'in_order is one at a time'
);
SELECT throws_ok(
    $$SELECT pulse.set_lane('order', group_slots => 2)$$, 'PU002', NULL, 'and no more than that'
);
SELECT throws_ok(
    $$SELECT pulse.set_lane('other', group_slots => 0, in_order => true)$$, 'PU002', NULL,
    'nor without a limit'
);
SELECT throws_ok(
    $$SELECT pulse.set_group('order', 'a', max_slots => 2)$$, 'PU002', NULL, 'nor for one group'
);

-- The promise

SELECT pg_temp.three('order', 'r');
SELECT pg_temp.put_job('order', 'b', 'other') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'r1 other', 'in_order: one job of each group');
SELECT pulse.fail(pg_temp.lease_of('r1'), 'oops', retry_in => '1 h');
-- proves: G23
SELECT is(pg_temp.take_jobs('order', 9), '', 'guarantee 23: the group waits for a retry');
SELECT matches(
    (SELECT string_agg(w.reason, '; ') FROM pulse.why(pg_temp.job_of('r2')) AS w),
    format('group a of lane order runs in order and waits for job %s, due at', pg_temp.job_of('r1')),
    'why says for which'
);
SELECT pg_temp.put_job('order', 'a', 'urgent', 9) \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), '', 'in_order: so does a job of higher priority');
SELECT pulse.cancel(pg_temp.job_of('urgent')) \g /dev/null
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');
SELECT pg_temp.due();
SELECT is(pg_temp.take_jobs('order', 9), 'r1', 'guarantee 23: a retry keeps its place');
SELECT pulse.snooze(pg_temp.lease_of('r1'), '1 h');
SELECT is(pg_temp.take_jobs('order', 9), '', 'in_order: the group waits for one that was snoozed');
SELECT pg_temp.due();
SELECT is(pg_temp.take_jobs('order', 9), 'r1', 'which keeps its place');
SELECT pulse.release(ARRAY[pg_temp.lease_of('r1')]) \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'r1', 'in_order: one that was released keeps its place');
UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s' WHERE lease = pg_temp.lease_of('r1');
SELECT pulse.reap() \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), '', 'in_order: the group waits for one that was reaped');
SELECT pg_temp.due();
SELECT is(pg_temp.take_jobs('order', 9), 'r1', 'which keeps its place');
SELECT pulse.fail(pg_temp.lease_of('r1'), 'oops', fatal => true);
SELECT is(pg_temp.take_jobs('order', 9), 'r2', 'in_order: dead, the group goes on');

-- Taken out of the wait

SELECT pulse.snooze(pg_temp.lease_of('r2'), '1 h');
SELECT is(pg_temp.take_jobs('order', 9), '', 'it waits');
SELECT pulse.cancel(pg_temp.job_of('r2')) \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'r3', 'in_order: cancelled while it waits, the group goes on');
SELECT pulse.snooze(pg_temp.lease_of('r3'), '1 h');
SELECT pg_temp.put_job('order', 'a', 'r4') \g /dev/null
SELECT pulse.run_now(pg_temp.job_of('r3')) \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'r3', 'run_now leaves it its place');
SELECT pulse.snooze(pg_temp.lease_of('r3'), '1 h');
SELECT pulse.reschedule(pg_temp.job_of('r3'), now() + interval '2 h') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), '', 'reschedule lets the group wait on');
SELECT pulse.reprioritize(pg_temp.job_of('r3'), 5) \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'r4', 'another priority is another place: the group goes on');
SELECT pulse.snooze(pg_temp.lease_of('r4'), '1 h');
SELECT pulse.move(pg_temp.job_of('r4'), 'elsewhere') \g /dev/null
SELECT pg_temp.due();
SELECT is(pg_temp.take_jobs('order', 9), 'r3', 'moved away: the group goes on');
SELECT is((SELECT w.place FROM pulse_internal.waiting AS w WHERE w.job = pg_temp.job_of('r4')), NULL, 'and it waits for no place any more');
SELECT pg_temp.done_with('r3') \g /dev/null
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- A job with a unique key that is replaced while its group waits for it.
SELECT pulse.enqueue('k', '{"name": "u1"}', 'order', unique_key => 'u', group_key => 'u') \g /dev/null
SELECT pg_temp.put_job('order', 'u', 'u2') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'u1', 'the first of its group');
SELECT pulse.snooze(pg_temp.lease_of('u1'), '1 h');
SELECT pulse.enqueue('k', '{"name": "new"}', 'order', unique_key => 'u', on_conflict => 'replace', delay => '2 h', group_key => 'u') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), '', 'replaced for later, it keeps its place and its group waits');
SELECT pulse.enqueue('k', '{"name": "now"}', 'order', unique_key => 'u', on_conflict => 'replace', group_key => 'u') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'now', 'replaced for now, it is first again');
SELECT pg_temp.done_with('now') \g /dev/null
SELECT is(pg_temp.take_jobs('order', 9), 'u2', 'and the group goes on');

-- What does not hold a group

SELECT pulse.set_lane('edge', in_order => true);
SELECT pg_temp.put_job('edge', 'a', 'late', delay => '1 h'), pg_temp.put_job('edge', 'a', 'soon') \g /dev/null
SELECT is(pg_temp.take_jobs('edge', 9), 'soon', 'a scheduled job does not hold its group');
SELECT pg_temp.put_job('edge', NULL, 'none1'), pg_temp.put_job('edge', NULL, 'none2') \g /dev/null
SELECT is(pg_temp.take_jobs('edge', 9), 'none1 none2', 'jobs without a key have no order');
SELECT pulse.snooze(pg_temp.lease_of('none1'), '1 h');
SELECT is((SELECT w.place FROM pulse_internal.waiting AS w WHERE w.job = pg_temp.job_of('none1')), NULL, 'and keep no place');

-- A group is known as long as it waits for a job.
SELECT pulse.snooze(pg_temp.lease_of('soon'), '1 h');
SELECT pg_temp.take_jobs('edge', 9) \g /dev/null
UPDATE pulse_internal.group_state SET written_at = clock_timestamp() - interval '61 s';
SELECT FROM pulse_internal.sweep_groups(NULL, NULL);
SELECT pg_temp.put_job('edge', 'a', 'behind') \g /dev/null
SELECT is(pg_temp.take_jobs('edge', 9), '', 'an idle group that waits for a job is not forgotten');

-- After a restore nothing is known of groups: the roll finds who waits for whom.
DELETE FROM pulse_internal.group_notice;
DELETE FROM pulse_internal.group_state;
DELETE FROM pulse_internal.group_mark;
SELECT is(pg_temp.take_jobs('edge', 9), '', 'after a restore the group waits for its job');
SELECT is_empty('SELECT * FROM pulse.check()', 'and check agrees');

-- Changes

SELECT pulse.set_lane('edge', in_order => false);
SELECT is(pg_temp.take_jobs('edge', 9), 'behind', 'switched off: the group waits no more');
SELECT is((SELECT l.group_slots FROM pulse_internal.lane AS l WHERE l.lane = 'edge'), 1, 'one slot is left of it');
SELECT pg_temp.done_with('behind') \g /dev/null
SELECT pg_temp.due();
SELECT is(pg_temp.take_jobs('edge', 9), 'late none1', 'what waited comes back, at the end of the line');

-- With a backlog that does not fit into one claim, nothing is handed out of order.
SELECT count(pg_temp.put_job('later', 'g' || n % 300, 'l' || n)) FROM generate_series(1, 600) AS n \g /dev/null
SELECT pulse.set_lane('later', in_order => true);
SELECT pg_temp.put_job('later', 'g5', 'newest') \g /dev/null
SELECT is(pg_temp.take_jobs('later', 1), '', 'switched on with a backlog: nothing until it is sorted in');
SELECT is(
    (SELECT string_agg(c.payload ->> 'name', ' ') FROM pulse.claim_batch('w', 'later', 100) AS c WHERE c.group_key = 'g5'),
    'l5', 'then in order'
);

-- Damage that check finds

CREATE FUNCTION pg_temp.finds(damage text, problem text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_found boolean;
BEGIN
    EXECUTE finds.damage;
    v_found := EXISTS (SELECT FROM pulse.check() AS c WHERE c.problem = finds.problem);
    RAISE EXCEPTION USING ERRCODE = 'ZZZZZ', MESSAGE = v_found::text;
EXCEPTION
    WHEN SQLSTATE 'ZZZZZ' THEN
        RETURN SQLERRM::boolean;
END;
$$;
SELECT pulse.snooze(pg_temp.lease_of('l5'), '1 h');
SELECT pg_temp.take_jobs('later', 1) \g /dev/null
SELECT ok(
    pg_temp.finds('UPDATE pulse_internal.group_state SET turn = 1 WHERE lane = ''later''', 'group does not wait for its job'),
    'check: a group that forgot whom it waits for'
);

-- Very many priorities in one group
SELECT pulse.set_lane('ranks', in_order => true);
SELECT count(pg_temp.put_job('ranks', 'a', 'p' || n, n)) FROM generate_series(1, 60) AS n \g /dev/null
CREATE TEMP TABLE got (n serial, name text);
DO $$
DECLARE
    v_name text;
BEGIN
    FOR v_n IN 1 .. 70 LOOP
        v_name := pg_temp.take_jobs('ranks', 5);
        EXIT WHEN v_name = '';
        INSERT INTO got (name)
        VALUES (v_name);
        -- Behind and before its first job.
        IF v_n IN (3, 30) THEN
            PERFORM pg_temp.put_job('ranks', 'a', 'q' || v_n, 2), pg_temp.put_job('ranks', 'a', 's' || v_n, 40);
        END IF;
        PERFORM pg_temp.done_with(v_name);
    END LOOP;
END;
$$;
SELECT is((SELECT count(*) FROM got), 64::bigint, 'a group with many priorities loses nothing');
SELECT is(
    (SELECT string_agg(g.name, ' ' ORDER BY g.n) FROM got AS g WHERE g.name ~ '^p'),
    (SELECT string_agg('p' || n, ' ' ORDER BY n DESC) FROM generate_series(1, 60) AS n),
    'and takes them in their order'
);
-- A job of higher priority runs first and has to run again: the older one waits for it.
SELECT pulse.set_lane('retried', in_order => true);
SELECT pg_temp.put_job('retried', 'a', 'older', 0) \g /dev/null
SELECT pg_temp.put_job('retried', 'a', 'urgent', 5) \g /dev/null
SELECT pulse.fail((SELECT c.lease FROM pulse.claim_batch('w', 'retried') AS c), 'x', retry_in => '1 hour') \g /dev/null
-- proves: G23
SELECT is(pg_temp.take_jobs('retried', 5), '', 'guarantee 23: an older job of lower priority waits for a retry');
SELECT pg_temp.due();
SELECT is(pg_temp.take_jobs('retried', 5), 'urgent', 'and the retry comes first');

SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

SELECT * FROM finish();

ROLLBACK;
