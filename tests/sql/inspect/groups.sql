-- groups: the groups of a lane, held ones first.
BEGIN;

SELECT plan(8);

CREATE FUNCTION pg_temp.groups(keys text [] DEFAULT NULL, max_groups integer DEFAULT 100)
RETURNS text []
LANGUAGE sql
AS $$
    SELECT array_agg(format('%s %s %s/%s of %s', g.group_key, g.state, g.waiting, g.running, g.max_slots) ORDER BY g.place)
    FROM pulse.groups('g', groups.keys, groups.max_groups) WITH ORDINALITY AS g
        (group_key, state, waiting, running, max_slots, held_by, held_at, reason, place)
$$;

SELECT is_empty($$SELECT * FROM pulse.groups('nothing')$$, 'a lane without jobs has no groups');
SELECT pulse.set_lane('g', group_slots => 2);
SELECT pulse.enqueue('k', lane => 'g', group_key => g.key)
FROM (VALUES ('a'), ('a'), ('a'), ('b'), ('c'), ('c'), ('d')) AS g (key) \g /dev/null
SELECT pulse.enqueue('k', lane => 'g') \g /dev/null
SELECT pulse.set_group('g', 'd', enabled => false, reason => 'abuse');
SELECT pulse.set_group('g', 'c', max_slots => 2);
SELECT pulse.set_group('g', 'idle', max_slots => 7);
SELECT count(*) AS n FROM pulse.claim_batch('w', 'g', 4) \gset
SELECT is(
    pg_temp.groups(),
    array(SELECT g FROM unnest(pg_temp.groups()) AS g ORDER BY split_part(g, ' ', 2) <> 'held'),
    'held groups come first'
);
SELECT is(:n + (SELECT sum(g.waiting) FROM pulse.groups('g') AS g), 8::numeric, 'all jobs are somewhere');
SELECT is((SELECT sum(g.running) FROM pulse.groups('g') AS g), :n::numeric, 'those that run as well');
SELECT row_eq(
    $$SELECT g.state, g.waiting, g.held_by, g.reason FROM pulse.groups('g') AS g WHERE g.group_key = 'd'$$,
    ROW ('held'::text, 1::bigint, current_user, 'abuse'::text), 'of a held one it says by whom and why'
);
SELECT pulse.complete_batch(array(SELECT l.lease FROM pulse_internal.lease AS l)) \g /dev/null
SELECT pulse.cancel(r.job) FROM pulse_internal.ready AS r WHERE r.group_key IS NOT NULL \g /dev/null
SELECT pulse.cancel(r.job) FROM pulse_internal.ready AS r \g /dev/null
SELECT pulse.enqueue('k', lane => 'g', group_key => 'a') FROM generate_series(1, 3) \g /dev/null
SELECT pulse.enqueue('k', lane => 'g', group_key => 'e') FROM generate_series(1, 2) \g /dev/null
SELECT pulse.claim_batch('w', 'g', 3) \g /dev/null
SELECT is(
    pg_temp.groups(ARRAY['none', 'idle', 'e', 'd', 'a']),
    '{d held 0/0 of 2,a full 1/2 of 2,e waiting 1/1 of 2,idle idle 0/0 of 7,none idle 0/0 of 2}'::text [],
    'or only those that are asked for'
);
SELECT is(cardinality(pg_temp.groups(max_groups => 1)), 1, 'no more than are wanted');
SELECT throws_ok($$SELECT pulse.groups('g', max_groups => 1001)$$, 'PU002', NULL, 'which are a thousand at most');

SELECT * FROM finish();

ROLLBACK;
