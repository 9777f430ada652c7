-- What people see of jobs that stand in groups.
BEGIN;

SELECT plan(18);

SELECT pulse.set_lane('tenants', group_slots => 1);
SELECT pulse.enqueue('mail', lane => 'tenants', group_key => 'acme', tags => '{x}') AS running \gset
SELECT pulse.enqueue('mail', lane => 'tenants', group_key => 'acme') AS next \gset
SELECT pulse.enqueue('scan', lane => 'tenants', group_key => 'acme') AS last \gset
SELECT FROM pulse.claim_batch('w', 'tenants', 1);
SELECT pulse.enqueue('mail', lane => 'tenants', group_key => 'beta') AS beta \gset
SELECT pulse.enqueue('mail', lane => 'tenants', group_key => 'gamma') AS gamma \gset
SELECT pulse.enqueue('mail', lane => 'tenants') AS none \gset
SELECT pulse.hello('w', '{tenants}') \g /dev/null

SELECT results_eq(
    format('SELECT reason FROM pulse.why(%s)', :next),
    format($$VALUES ('group acme of lane tenants runs 1 of 1 jobs at once: %s')$$, :running),
    'why: its group is full, and which job runs'
);
SELECT results_eq(
    format('SELECT reason FROM pulse.why(%s)', :last),
    format(
        $$
        VALUES ('group acme of lane tenants runs 1 of 1 jobs at once: %s'),
            ('1 job is ahead of it in the line of group acme')
        $$, :running
    ),
    'why: how many are ahead of it in its group'
);
-- A claim that is full of another kind reads the notices and takes nothing.
SELECT FROM pulse.claim_batch('w', 'tenants', 1, kinds => '{none}');
SELECT results_eq(
    format('SELECT reason FROM pulse.why(%s)', :gamma),
    $$VALUES ('1 group has a turn before group gamma')$$,
    'why: how many groups have a turn before its own'
);
SELECT results_eq(
    format('SELECT reason FROM pulse.why(%s)', :none),
    $$VALUES ('2 groups have a turn before the jobs without a group_key')$$,
    'why: also for jobs without a key'
);
SELECT pulse.hello('w', '{tenants}', '{scan}') \g /dev/null
SELECT is(
    (SELECT string_agg(w.reason, '; ') FROM pulse.why(:beta) AS w),
    'the first job of group beta is of kind mail, which no live worker of lane tenants takes; '
    'no live worker takes kind mail: the 1 of lane tenants take other kinds',
    'why: the first of its group is of a kind that nobody takes'
);
SELECT matches(
    (SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = 'group_notices'), 'none waits',
    'health: no notice waits'
);
UPDATE pulse_internal.group_state SET written_at = now() - interval '3 min';
SELECT is(
    (SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = 'unhandled_kinds'),
    'mail in lane tenants', 'health: kinds that nobody takes, in groups too'
);

SELECT results_eq(
    'SELECT j.state, count(*) FROM pulse.jobs AS j GROUP BY 1 ORDER BY 1',
    $$VALUES ('ready', 5::bigint), ('running', 1)$$, 'jobs: every one has its state'
);
SELECT results_eq(
    'SELECT l.depth, l.used, l.oldest_ready_age > ''0'', l.settings FROM pulse.lanes AS l WHERE l.name = ''tenants''',
    $$VALUES (5::bigint, 1::bigint, true, '{"enabled": true, "group_slots": 1}'::jsonb)$$, 'lanes: depth and age, and its settings'
);
SELECT results_eq(
    $$SELECT f.job_id FROM pulse.find_jobs('{"group_key": "acme", "state": "ready"}') AS f$$,
    format('VALUES (%s::bigint), (%s)', :last, :next), 'find_jobs: by group'
);
SELECT pulse_internal.tick_sample() \g /dev/null
SELECT is((SELECT s.ready FROM pulse.samples AS s WHERE s.lane = 'tenants'), 5::bigint, 'stats: what stands in groups counts');

SELECT results_eq(
    $$SELECT done FROM pulse.reprioritize_where('{"group_key": "acme", "state": "ready"}', 4)$$,
    'VALUES (2::bigint)', 'reprioritize_where reaches jobs in groups'
);
SELECT is(pulse.reprioritize(:next, 4), 'ready', 'nothing to do');
SELECT results_eq(
    $$SELECT done FROM pulse.cancel_where('{"group_key": "beta"}')$$, 'VALUES (1::bigint)',
    'cancel_where too'
);
SELECT is(pulse.move(:gamma, 'tenants'), 'ready', 'moved where it is, it stays');
SELECT results_eq(
    $$SELECT done FROM pulse.move_where('{"group_key": "gamma"}', 'plain')$$, 'VALUES (1::bigint)',
    'move_where takes them out of groups'
);
SELECT results_eq(
    $$SELECT c.group_key FROM pulse.claim_batch('w', 'plain') AS c$$, $$VALUES ('gamma')$$,
    'and the key is a label there'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

SELECT * FROM finish();

ROLLBACK;
