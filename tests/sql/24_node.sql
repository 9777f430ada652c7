-- Job ids carry the number of their database.
BEGIN;

SELECT plan(15);

SELECT is(pulse.enqueue('k') & 1023, 0::bigint, 'ids carry node 0 until set_node was called');
SELECT is(
    (SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = 'node'),
    'node 0, never set',
    'health says that the node was never set'
);

SELECT pulse.enqueue('k') AS before_id \gset
SELECT lives_ok('SELECT pulse.set_node(7)', 'a node can be set');
SELECT pulse.enqueue('k') AS first_id \gset
SELECT pulse.enqueue('k') AS second_id \gset
SELECT is(:first_id::bigint & 1023, 7::bigint, 'ids carry the node after that');
SELECT is(:second_id::bigint - :first_id, 1024::bigint, 'and go on in steps of 1024');
SELECT cmp_ok(:first_id::bigint, '>', :before_id::bigint, 'and are above all before');

SELECT lives_ok('SELECT pulse.set_node(7)', 'the same node may be set again');
SELECT is(pulse.enqueue('k') - :second_id, 1024::bigint, 'which moves no id');

SELECT lives_ok('SELECT pulse.set_node(3)', 'another node may be set');
SELECT pulse.enqueue('k') AS third_id \gset
SELECT cmp_ok(:third_id::bigint, '>', :second_id::bigint, 'a lower node never takes ids back');
SELECT results_eq(
    $$
    SELECT a.before ->> 'node', a.after ->> 'node', jsonb_typeof(a.after -> 'system_identifier')
    FROM pulse.audit AS a
    WHERE a.verb = 'set_node'
    ORDER BY a.entry DESC
    LIMIT 1
    $$,
    $$VALUES ('7', '3', 'string')$$,
    'setting the node is audited, its identifier as a string'
);

SELECT is(
    (SELECT h.status FROM pulse.health() AS h WHERE h.check_name = 'node'),
    'ok',
    'health is content where the node was set'
);
UPDATE pulse.node SET system_identifier = 1;
SELECT is(
    (SELECT h.status FROM pulse.health() AS h WHERE h.check_name = 'node'),
    'warn',
    'health tells a restored copy to choose another node'
);

SELECT throws_ok('SELECT pulse.set_node(1024)', 'PU002', NULL, '1024 does not fit');
SELECT throws_ok('SELECT pulse.set_node(NULL)', 'PU002', NULL, 'NULL is no node');

SELECT * FROM finish();

ROLLBACK;
