-- Exceptions for one group of a lane: its slots, whether it may run.
BEGIN;

SELECT plan(39);

SELECT pulse.set_lane('lane', group_slots => 2);

SELECT throws_ok(
    format('SELECT pulse.set_group(%s)', b.arguments), 'PU002', NULL,
    format('set_group(%s) is out of bounds', left(b.arguments, 60))
)
FROM (
    VALUES
    ($$'lane', NULL, 1$$), ($$'lane', ''$$), ($$'lane', repeat('é', 600), 1$$), ($$NULL, 'a', 1$$),
    ($$'lane', 'a', -1$$), ($$'lane', 'a', 10001$$), 
    ($$'plain', 'a', 1$$)
) AS b (arguments);
SELECT is_empty('SELECT * FROM pulse_internal.group_rule', 'and nothing is written');

-- Slots

SELECT pg_temp.put_job('lane', g, g || n) FROM unnest('{a,b}'::text []) AS g, generate_series(1, 9) AS n ORDER BY n, g \g /dev/null
SELECT is(pg_temp.take_jobs('lane', 20), 'a1 b1 a2 b2', 'as the lane says');
SELECT pulse.set_group('lane', 'a', max_slots => 4, reason => 'paid');
SELECT is(pg_temp.take_jobs('lane', 20), 'a3 a4', 'max_slots: more for one group');
SELECT results_eq(
    $$SELECT a.verb COLLATE "default", a.reason, a.after -> 'max_slots' FROM pulse.audit AS a WHERE a.verb = 'set_group'$$,
    $$VALUES ('set_group', 'paid', '4'::jsonb)$$, 'the audit says what and why'
);
SELECT pulse.set_group('lane', 'a', max_slots => 1);
SELECT pg_temp.done_with('a' || n) FROM generate_series(1, 3) AS n \g /dev/null
SELECT is(pg_temp.take_jobs('lane', 20), '', 'max_slots: lowered, from the next claim on; what runs goes on');
SELECT pg_temp.done_with('a4') \g /dev/null
SELECT is(pg_temp.take_jobs('lane', 20), 'a5', 'max_slots: one');
SELECT matches(
    (SELECT string_agg(w.reason, '; ') FROM pulse.why(pg_temp.job_of('a6')) AS w),
    'group a of lane lane runs 1 of 1 jobs at once', 'why counts by the rule'
);
SELECT pulse.set_group('lane', 'a', max_slots => 0);
SELECT is(pg_temp.take_jobs('lane', 20), 'a6', 'max_slots 0: as the lane says again');
SELECT is_empty('SELECT * FROM pulse_internal.group_rule', 'and no rule is left');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- In a lane without a limit, also for what runs already.
SELECT pulse.set_lane('free', fair => true);
SELECT pg_temp.put_job('free', 'a', 'f' || n) FROM generate_series(1, 6) AS n \g /dev/null
SELECT is(pg_temp.take_jobs('free', 3), 'f1 f2 f3', 'no limit');
SELECT pulse.set_group('free', 'a', max_slots => 3);
SELECT is(pg_temp.take_jobs('free', 9), '', 'max_slots in a lane without: what runs counts');
SELECT pg_temp.put_job('free', 'b', 'x' || n) FROM generate_series(1, 4) AS n \g /dev/null
SELECT is(pg_temp.take_jobs('free', 9), 'x1 x2 x3 x4', 'others have no limit');
SELECT pg_temp.done_with('f1') \g /dev/null
SELECT is(pg_temp.take_jobs('free', 9), 'f4', 'and its ends give slots back');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- One tenant stopped

SELECT pg_temp.put_job('free', 'evil', 'e' || n) FROM generate_series(1, 3) AS n \g /dev/null
SELECT is(pg_temp.take_jobs('free', 1), 'e1', 'evil runs');
SELECT pulse.set_group('free', 'evil', enabled => false, reason => 'abuse');
SELECT pg_temp.put_job('free', 'evil', 'e4') \g /dev/null
SELECT pg_temp.put_job('free', 'good', 'good') \g /dev/null
SELECT is(pg_temp.take_jobs('free', 9), 'good', 'enabled => false: one tenant is stopped, the others not');
SELECT matches(
    (SELECT string_agg(w.reason, '; ') FROM pulse.why(pg_temp.job_of('e2')) AS w),
    '^group evil of lane free is disabled by \S+ since .*: abuse', 'why says by whom and for what'
);
SELECT pulse.set_group('free', 'evil', max_slots => 3, reason => 'other');
SELECT results_eq(
    $$SELECT r.enabled, r.max_slots, r.reason FROM pulse_internal.group_rule AS r WHERE r.group_key = 'evil'$$,
    $$VALUES (false, 3, 'abuse')$$, 'what is not given stays as it is'
);
SELECT pg_temp.done_with('e1') \g /dev/null
SELECT is(pg_temp.take_jobs('free', 9), '', 'stopped: an end does not start the next');
UPDATE pulse_internal.group_state SET written_at = clock_timestamp() - interval '61 s';
SELECT FROM pulse_internal.sweep_groups(NULL, NULL);
DELETE FROM pulse_internal.group_mark WHERE lane = 'free';
SELECT is(pg_temp.take_jobs('free', 9), '', 'also when its state is made anew');
UPDATE pulse_internal.ready SET ready_at = now() - interval '1 hour' WHERE group_key IN ('evil', 'a');
SELECT is(pulse_internal.oldest_ready_at('free') < now(), true, 'age: of those that may run');
SELECT FROM pulse.cancel_where('{"lane": "free", "group_key": "a", "state": "ready"}');
SELECT is(pulse_internal.oldest_ready_at('free'), NULL, 'and not of one that is stopped');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well') FROM pulse_internal.tick_group_backstop();
SELECT pulse.set_lane('free', max_batch => 50);
SELECT is(pg_temp.take_jobs('free', 9), '', 'nor does a change of the lane start it');
SELECT pulse.set_group('free', 'evil', enabled => true);
SELECT is(pg_temp.take_jobs('free', 9), 'e2 e3 e4', 'enabled => true: it goes on');
SELECT is(
    (SELECT r.held_by FROM pulse_internal.group_rule AS r WHERE r.group_key = 'evil'), NULL,
    'and nobody is said to hold it'
);

-- Turns go on where they stopped: an odd batch is not to the good of the first group.
SELECT pulse.set_lane('odd', fair => true);
SELECT pg_temp.put_job('odd', g, g) FROM generate_series(1, 12) AS n, unnest('{p,q}'::text []) AS g ORDER BY n, g \g /dev/null
SELECT is(
    (SELECT string_agg(pg_temp.take_jobs('odd', 3), ' ') FROM generate_series(1, 4)),
    'p q p q p q p q p q p q', 'fairness: two groups have their halves, whatever the batch'
);

-- A payload that cannot be handed out

SELECT pulse.set_lane('large', group_slots => 1);
SELECT pg_temp.put_job('large', 'a', 'huge'), pg_temp.put_job('large', 'a', 'next'), pg_temp.put_job('large', 'b', 'other') \g /dev/null
SELECT pg_temp.job_of('huge') AS huge \gset
UPDATE pulse_internal.body SET payload = to_jsonb(array_fill(1e131071, ARRAY[2100])) WHERE job = :huge;
UPDATE pulse_internal.body SET payload = payload || jsonb_build_object('x', repeat('y', 30000000)) WHERE job = pg_temp.job_of('other');
SELECT is(pg_temp.take_jobs('large', 9), 'other', 'what cannot be handed out is not');
SELECT results_eq(
    format('SELECT f.state::text, f.ended_by COLLATE "default" FROM pulse_internal.finished AS f WHERE f.job = %s', :huge),
    $$VALUES ('dead', 'claim_batch')$$, 'but dead'
);
SELECT is(pg_temp.take_jobs('large', 9), 'next', 'and its group goes on');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

SELECT * FROM finish();

ROLLBACK;
