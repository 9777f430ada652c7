"""The number of a database (node) inside job ids and leases, and its name in logs.

A node number is in the high bits, where pulse.node_of and pulse.lease_node read it.
"""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict


def node_of(job_id: int) -> int:
    """The node that a job was enqueued in."""
    return job_id >> 43


def lease_node(lease: int) -> int:
    """The node that a job was claimed from."""
    return lease >> 53


def node_label(dsn: str) -> str:
    """Host, port and database of a DSN, for logs and errors; not the password."""
    found = conninfo_to_dict(dsn)
    host = str(found.get("host") or found.get("hostaddr") or "local")
    port = f":{found['port']}" if "port" in found else ""
    return f"{host}{port}/{found.get('dbname', '')}"
