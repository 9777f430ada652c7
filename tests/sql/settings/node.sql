-- Job ids and leases carry the number of their database, and no number comes twice.
BEGIN;

SELECT plan(46);

SELECT is(pulse.enqueue('k'), 1::bigint, 'the first job of a fresh database is 1');
SELECT is(pulse.enqueue('k'), 2::bigint, 'and the next one is 2');
SELECT is(pulse.node(), 0, 'a database is node 0 until set_node was called');
SELECT is(pulse.node_state(), 'unset', 'which node_state says');
SELECT is(
    (SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = 'node'),
    'node 0, never set',
    'health says that the node was never set'
);
SELECT c.lease AS lease_0 FROM pulse.claim_batch('w') AS c \gset
SELECT is(:lease_0::bigint >> 10, 1::bigint, 'a lease is a number above ten random bits');

SELECT lives_ok('SELECT pulse.set_node(7)', 'a node can be set');
SELECT is(pulse.node(), 7, 'and is known');
SELECT is(pulse.node_state(), 'set', 'as its own');
SELECT pulse.enqueue('k') AS first_id \gset
SELECT is(:first_id::bigint, (7::bigint << 43) + 1, 'ids go on in the range of the node');
SELECT is(pulse.enqueue('k'), (7::bigint << 43) + 2, 'one by one');
SELECT is(pulse.node_of(:first_id), 7, 'node_of reads the node of a job');
SELECT c.lease AS lease_7 FROM pulse.claim_batch('w') AS c \gset
SELECT is(:lease_7::bigint >> 10, (7::bigint << 43) + 1, 'leases do so too');
SELECT is(pulse.lease_node(:lease_7), 7, 'lease_node reads the node of a lease');

SELECT lives_ok('SELECT pulse.set_node(7)', 'the same node may be set again');
SELECT is(pulse.enqueue('k'), (7::bigint << 43) + 3, 'which moves no id');

SELECT lives_ok('SELECT pulse.set_node(3)', 'a lower node may be set');
SELECT is(pulse.enqueue('k'), (3::bigint << 43) + 1, 'ids begin in its range');
SELECT c.lease AS lease_3 FROM pulse.claim_batch('w') AS c \gset
SELECT is(pulse.lease_node(:lease_3), 3, 'and leases');
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
SELECT is_empty('SELECT * FROM pulse.check()', 'check has nothing to say about several nodes');

-- Leases of a lower node are below what the sweep has seen.
UPDATE pulse_internal.lease SET claimed_at = now() - interval '1 h', lease_until = now() - interval '1 h';
SELECT is(pulse.reap(), 3::bigint, 'the leases of every node are reaped');

SELECT pulse.set_node(7);
SELECT is(pulse.enqueue('k'), (7::bigint << 43) + 4, 'a node that comes back goes on where it stopped');
SELECT is(
    (SELECT c.lease >> 10 FROM pulse.claim_batch('w') AS c),
    (7::bigint << 43) + 2,
    'with its leases too'
);
SELECT pulse.set_node(0);
SELECT is(pulse.enqueue('k'), 3::bigint, 'and so does node 0');

SELECT pulse.set_node(1023);
SELECT cmp_ok(pulse.enqueue('k'), '<', 1::bigint << 53, 'the highest node stays below 2^53');
SELECT is(
    (SELECT pulse.lease_node(c.lease) FROM pulse.claim_batch('w') AS c), 1023,
    'and its leases are positive numbers'
);

SELECT is(
    (SELECT h.status FROM pulse.health() AS h WHERE h.check_name = 'node'),
    'ok',
    'health is content where the node was set'
);
UPDATE pulse_internal.node SET system_identifier = 1;
SELECT is(
    (SELECT h.status FROM pulse.health() AS h WHERE h.check_name = 'node'),
    'warn',
    'health tells a restored copy to choose another node'
);
SELECT is(pulse.node_state(), 'copy', 'and so does node_state');

SELECT throws_ok('SELECT pulse.set_node(1024)', 'PU002', NULL, '1024 does not fit');
SELECT throws_ok('SELECT pulse.set_node(NULL)', 'PU002', NULL, 'NULL is no node');

-- A promotion, seen from inside: another server, of another timeline, drew last.

SELECT pulse.set_node(0);
SELECT pulse.enqueue('k') AS last_id \gset

CREATE FUNCTION pg_temp.promoted() RETURNS void LANGUAGE sql AS $$
    SELECT setval('pulse_internal.server_start', 1), setval('pulse_internal.server_history', 1)
$$;

CREATE FUNCTION pg_temp.draws(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_job bigint := (SELECT last_value FROM pulse_internal.job_id);
    v_drawn bigint;
BEGIN
    PERFORM pg_temp.promoted();
    EXECUTE query INTO v_drawn;
    RETURN v_drawn > v_job + 100000000
        AND (SELECT last_value FROM pulse_internal.job_id) > v_job + 100000000 - 1
        AND (SELECT last_value FROM pulse_internal.server_start) > 1;
END;
$$;

SELECT ok(pg_temp.draws($$SELECT pulse.enqueue('k')$$), 'enqueue jumps first');
SELECT ok(
    pg_temp.draws($$SELECT pulse.enqueue('k', unique_key => 'a', delay => '1 h')$$),
    'so does one with a key'
);
SELECT ok(pg_temp.draws($$SELECT pulse.enqueue_many('k', '{1}')$$), 'so does enqueue_many');
SELECT ok(
    pg_temp.draws($$SELECT pulse.enqueue_many('[{"kind": "k", "unique_key": "b"}]')$$),
    'so does a mixed list'
);
SELECT ok(
    pg_temp.draws($$SELECT min(m.job_id) FROM pulse.enqueue_many('[{"kind": "k", "name": "n"}, {"kind": "k", "after": ["n"]}]') AS m (job_id)$$),
    'so does a list with names, before it draws the first'
);
SELECT ok(
    pg_temp.draws(
        $$
        SELECT (c.lease >> 10) + 200000000000
        FROM pulse.claim_batch('w') AS c
        $$
    ),
    'so does a claim'
);
SELECT ok(
    pg_temp.draws(
        $$
        SELECT (e.lease >> 10) + 200000000000
        FROM pulse.exchange('w', '{"default": 1}') AS e
        $$
    ),
    'so does an exchange'
);
SELECT ok(pg_temp.draws('SELECT 1000000000000 FROM pulse.tick()'), 'so does tick');
SELECT ok(
    pg_temp.draws($$SELECT 1000000000000 FROM pulse.pause_lane('x', 'why', true)$$),
    'so does a verb that is audited'
);
SELECT is(
    (SELECT count(*) FROM pulse.audit AS a WHERE a.verb = 'jump'), 9::bigint,
    'each jump is audited'
);

SELECT setval('pulse_internal.server_start', 1) \g /dev/null
SELECT pulse.enqueue('k') AS before_restart \gset
SELECT s.last_value AS before_restart_lease FROM pulse_internal.lease_seq AS s \gset
SELECT setval('pulse_internal.server_start', 1) \g /dev/null
SELECT is(
    pulse.enqueue('k'), :before_restart::bigint + 1,
    'another start of the same server moves no id'
);
SELECT is(
    (SELECT s.last_value FROM pulse_internal.lease_seq AS s), :before_restart_lease::bigint + 1000000,
    'but leases, which may have been committed asynchronously'
);

-- Where the timeline is hidden, every start counts as a promotion.
SELECT pulse_internal.history() AS history \gset
SELECT is(pulse_internal.history(), :history::bigint, 'the history is the same as long as the server runs');
CREATE ROLE node_blind;
GRANT USAGE ON SCHEMA pulse_internal TO node_blind;
GRANT EXECUTE ON FUNCTION pulse_internal.history(), pulse_internal.system_identifier() TO node_blind;
REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC;
SET LOCAL ROLE node_blind;
SELECT pulse_internal.history() AS blind \gset
RESET ROLE;
SELECT isnt(:blind::bigint, :history::bigint, 'a history without a timeline is another one');

SELECT * FROM finish();

ROLLBACK;
