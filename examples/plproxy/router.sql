-- A router in front of two databases, for clients in any language: the same calls, each
-- sent to the node it belongs to. For PL/Proxy (Debian: postgresql-15-plproxy), to be run
-- in a database of its own that has no pulse:
--
--     psql -v node0='host=one dbname=app' -v node1='host=two dbname=app' \
--         -v role=router -f router.sql
--
-- The nodes are 0 and 1 (SELECT pulse.set_node(0), in the other one 1): PL/Proxy runs on
-- partition n & (partitions - 1), so their number is a power of two. Each call is a
-- transaction of its own on its node: a rollback here undoes nothing. Repeat an enqueue
-- whose answer was lost with a unique_key.
\set ON_ERROR_STOP on

CREATE EXTENSION plproxy;

CREATE SERVER pulse FOREIGN DATA WRAPPER plproxy OPTIONS (p0 :'node0', p1 :'node1');
CREATE USER MAPPING FOR PUBLIC SERVER pulse OPTIONS (user :'role');

CREATE SCHEMA pulse;

-- As in the nodes.
CREATE FUNCTION pulse.node_of(job_id bigint) RETURNS integer LANGUAGE sql IMMUTABLE
AS 'SELECT (job_id >> 43)::integer';

CREATE FUNCTION pulse.lease_node(lease bigint) RETURNS integer LANGUAGE sql IMMUTABLE
AS 'SELECT (lease >> 53)::integer';

-- Equal keys meet in one node; a job without one goes to any.
CREATE FUNCTION pulse.home(unique_key text) RETURNS integer LANGUAGE sql VOLATILE
AS 'SELECT coalesce(hashtext(unique_key), (random() * 1000000)::integer)';

CREATE FUNCTION pulse.enqueue(
    kind text, payload jsonb DEFAULT '{}', lane text DEFAULT 'default',
    unique_key text DEFAULT NULL
)
RETURNS bigint LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.home(unique_key);
    SELECT pulse.enqueue(
        "kind" => kind, "payload" => payload, "lane" => lane, "unique_key" => unique_key
    );
$$;

CREATE TYPE pulse.claimed AS (
    lease bigint, job_id bigint, kind text, payload jsonb, attempt integer
);

-- From one node; call it again when it brought nothing.
CREATE FUNCTION pulse.claim_batch(
    worker text, lane text DEFAULT 'default', max_jobs integer DEFAULT 1
)
RETURNS SETOF pulse.claimed LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON ANY;
    SELECT c.lease, c.job_id, c.kind, c.payload, c.attempt
    FROM pulse.claim_batch(worker, lane, max_jobs) AS c;
$$;

CREATE FUNCTION pulse.complete(lease bigint, result jsonb DEFAULT NULL)
RETURNS void LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.lease_node(lease);
    SELECT pulse.complete(lease, result);
$$;

CREATE FUNCTION pulse.fail(lease bigint, error text)
RETURNS void LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.lease_node(lease);
    SELECT pulse.fail(lease, error);
$$;

CREATE FUNCTION pulse.cancel(job_id bigint, reason text DEFAULT NULL)
RETURNS text LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.node_of(job_id);
    SELECT pulse.cancel(job_id, reason);
$$;

CREATE FUNCTION pulse.all_lanes()
RETURNS TABLE (node integer, lane text, used bigint, depth bigint) LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON ALL;
    SELECT pulse.node() AS node, l.name AS lane, l.used, l.depth::bigint AS depth
    FROM pulse.lanes AS l;
$$;

CREATE VIEW pulse.lanes AS SELECT * FROM pulse.all_lanes();
