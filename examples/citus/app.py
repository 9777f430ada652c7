"""Orders in a Citus cluster: rows on any node, jobs in the transaction that wrote them.

python app.py work 'host=coordinator dbname=app'
python app.py order 'host=coordinator dbname=app' 7
"""

import sys

import psycopg
from psycopg.conninfo import make_conninfo

import pulse

NODES = """
SELECT nodename, nodeport FROM pg_dist_node
WHERE noderole = 'primary' AND isactive ORDER BY groupid
"""


def nodes(coordinator: str) -> list[str]:
    """A DSN for each node of the cluster, the coordinator first."""
    with psycopg.connect(coordinator) as connection:
        rows = connection.execute(NODES).fetchall()
    return [make_conninfo(coordinator, host=host, port=port) for host, port in rows]


def order(dsn: str, number: int) -> int:
    """One transaction: the row, wherever its shard is, and the job, in this node."""
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO public.orders (id) VALUES (%s)", (number,))
        return int(pulse.enqueue(connection, "ship", {"order": number}))


def worker(coordinator: str) -> pulse.Worker:
    made = pulse.Worker(nodes(coordinator), concurrency=10)

    @made.handle("ship")
    def ship(job: pulse.Job, order: int) -> None:
        shipped = "UPDATE public.orders SET shipped_by = %s WHERE id = %s"
        with psycopg.connect(coordinator) as connection:
            connection.execute(shipped, (job.node, order))

    return made


if __name__ == "__main__":
    verb, dsn, *rest = sys.argv[1:]
    if verb == "work":
        worker(dsn).run()
    else:
        print(order(dsn, int(rest[0])))
