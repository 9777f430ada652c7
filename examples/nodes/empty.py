"""Empty a node: what waits there is enqueued in the others, then cancelled there.

python empty.py 'host=old dbname=app' 'host=one dbname=app' 'host=two dbname=app'

The old node is paused first, so nothing of it starts meanwhile; what runs may end. Each
job is enqueued with a unique key, its own or one made of its id, before it is
cancelled: stopped anywhere and started again, this loses no job and moves none twice.
Jobs that await approval or wait for others are left, and counted.
"""

import sys
from typing import Any

import psycopg
from psycopg.rows import dict_row

import pulse

HOLDER = "emptying this node"
WAITING = """
SELECT job_id, kind, payload, lane, priority, run_at, max_attempts, unique_key,
    group_key, tags
FROM pulse.jobs
WHERE state IN ('ready', 'scheduled', 'retrying') AND flow IS NULL
"""
LEFT = """
SELECT state, count(*) AS jobs FROM pulse.jobs
WHERE state NOT IN ('completed', 'dead', 'cancelled') GROUP BY state ORDER BY state
"""
# Should this be repeated, a job that has already run in its new node is found by it.
KEEP = "7 days"


def move(client: pulse.Client, job: dict[str, Any]) -> int:
    """The id of the job in its new node."""
    old, kind, payload = (job.pop(name) for name in ("job_id", "kind", "payload"))
    own, group = job.pop("unique_key"), job["group_key"]
    key = own or f"moved from {old}"
    # Jobs of a group stay together; one without either goes where its key says.
    home = {"lane": job["lane"], "unique_key": own, "group_key": group}
    if own is None and group is None:
        home["unique_key"] = key
    with client.connection_for(home) as there:
        options = {**job, "unique_key": key, "unique_for": KEEP}
        return int(pulse.enqueue(there, kind, payload, **options))


def empty(old: str, others: list[str]) -> dict[str, int]:
    """Move what can be moved; what is left, by state."""
    with (
        pulse.Client(others) as client,
        psycopg.connect(old, autocommit=True, row_factory=dict_row) as connection,
    ):
        connection.execute("SELECT pulse.pause(%s)", (HOLDER,))
        for job in connection.execute(WAITING).fetchall():
            number = job["job_id"]
            reason = f"moved: job {move(client, job)}"
            connection.execute("SELECT pulse.cancel(%s, %s)", (number, reason))
        return {row["state"]: row["jobs"] for row in connection.execute(LEFT)}


if __name__ == "__main__":
    print(empty(sys.argv[1], sys.argv[2:]) or "empty")
