-- A router in front of N databases, for clients in any language: the same calls, each
-- sent to the node it belongs to. For PL/Proxy (Debian: postgresql-15-plproxy), to be run
-- in a database of its own that has no pulse; DSNs with | between them:
--
--     psql -v nodes='host=one dbname=app|host=two dbname=app' -v role=router -f router.sql
--
-- The nodes are 0, 1, … in this order (SELECT pulse.set_node(0), in the next one 1): PL/Proxy
-- runs on partition n & (partitions - 1), so their number is a power of two. Each call is a
-- transaction of its own on its node: a rollback here undoes nothing. Repeat an enqueue
-- whose answer was lost with a unique_key.
\set ON_ERROR_STOP on

CREATE EXTENSION plproxy;

SELECT
    'CREATE SERVER pulse FOREIGN DATA WRAPPER plproxy OPTIONS ('
    || string_agg(format('p%s %L', u.n - 1, u.dsn), ', ' ORDER BY u.n) || ')'
FROM unnest(string_to_array(:'nodes', '|')) WITH ORDINALITY AS u (dsn, n)
\gexec

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
    kind text, payload jsonb DEFAULT '{}', lane text DEFAULT NULL,
    priority integer DEFAULT NULL, delay interval DEFAULT NULL,
    unique_key text DEFAULT NULL
)
RETURNS bigint LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.home(unique_key);
    SELECT pulse.enqueue(
        "kind" => kind, "payload" => payload, "lane" => lane, "priority" => priority,
        "delay" => delay, "unique_key" => unique_key
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

CREATE FUNCTION pulse.fail(
    lease bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL,
    fatal boolean DEFAULT false
)
RETURNS void LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.lease_node(lease);
    SELECT pulse.fail(lease, error, retry_in, fatal);
$$;

CREATE FUNCTION pulse.ack_cancel(lease bigint)
RETURNS void LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.lease_node(lease);
    SELECT pulse.ack_cancel(lease);
$$;

-- Leases of several nodes in one call: each node gets its own.
CREATE TYPE pulse.verdict AS (lease bigint, verdict text);

CREATE FUNCTION pulse.heartbeat(leases bigint [])
RETURNS SETOF pulse.verdict LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    SPLIT leases;
    RUN ON pulse.lease_node(leases);
    SELECT b.lease, b.verdict FROM pulse.heartbeat(leases) AS b;
$$;

CREATE FUNCTION pulse.release(leases bigint [])
RETURNS SETOF pulse.verdict LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    SPLIT leases;
    RUN ON pulse.lease_node(leases);
    SELECT v.lease, v.verdict FROM pulse.release(leases) AS v;
$$;

CREATE FUNCTION pulse.cancel(job_id bigint, reason text DEFAULT NULL)
RETURNS text LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.node_of(job_id);
    SELECT pulse.cancel(job_id, reason);
$$;

CREATE FUNCTION pulse.why(job_id bigint)
RETURNS TABLE ("position" integer, reason text) LANGUAGE plproxy
AS $$
    CLUSTER 'pulse';
    RUN ON pulse.node_of(job_id);
    SELECT w.position, w.reason FROM pulse.why(job_id) AS w;
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
