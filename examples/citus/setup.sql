-- On the coordinator. Citus installs the extension on every node.
\set ON_ERROR_STOP on

CREATE EXTENSION pulse;

-- Each node has the number of its group: the coordinator 0, the workers 1, 2, …
SELECT r.nodeid, r.result
FROM run_command_on_all_nodes(
    'SELECT pulse.set_node(g.groupid) FROM pg_dist_local_group AS g'
) AS r;

CREATE TABLE public.orders (id bigint PRIMARY KEY, shipped_by integer);

SELECT create_distributed_table('public.orders', 'id');
