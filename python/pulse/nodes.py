"""Several databases, each with a pulse of its own: numbers, places and homes.

The number of a node is in the high bits of its job ids and leases, as pulse.node_of and
pulse.lease_node read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from pulse import errors


def node_of(job_id: int) -> int:
    return job_id >> 43


def lease_node(lease: int) -> int:
    return lease >> 53


def place(dsn: str) -> str:
    """Where a DSN leads to, for people: without the password."""
    found = conninfo_to_dict(dsn)
    host = str(found.get("host") or found.get("hostaddr") or "local")
    port = f":{found['port']}" if "port" in found else ""
    return f"{host}{port}/{found.get('dbname', '')}"


def several(dsns: Iterable[str]) -> list[str]:
    """DSNs of several databases, each named once."""
    every = list(dsns)
    if not every:
        raise ValueError("at least one DSN is needed")
    if len(set(every)) < len(every):
        raise ValueError("the same DSN is there twice")
    return every


def require_own_number(
    where: str, number: int, state: str, others: Mapping[int, str]
) -> None:
    """Raise unless the database may be one of several; others: places by number."""
    if state == "unset":
        raise errors.NodeRefused(
            f"the database at {where} has no node number",
            detail="Among several each needs one, so that job ids say where a job is.",
            hint="SELECT pulse.set_node(n), n from 0 to 1023 and no other's.",
        )
    if state == "copy":
        raise errors.NodeRefused(
            f"the database at {where} is a copy of node {number}",
            detail="Its number was set in another database.",
            hint="SELECT pulse.set_node(n) with another number; with the same one if "
            "it replaces the original.",
        )
    if number in others:
        raise errors.NodeRefused(
            f"the databases at {others[number]} and {where} are both node {number}",
            hint="SELECT pulse.set_node(n) in one of them, with a number that no other "
            "has; or both names lead to the same database: name it once.",
        )


def home_of(key: str, numbers: Iterable[int]) -> int:
    """The node of a key: the same for every client; with one more node most stay.

    Each node draws a number by the key, and the highest one has it.
    """

    def draw(number: int) -> tuple[bytes, int]:
        text = f"{number} {key}".encode()
        return hashlib.blake2b(text, digest_size=8).digest(), number

    return max(numbers, key=draw)


def key_of(options: Mapping[str, Any]) -> str | None:
    """What has to meet in one node: equal keys, the jobs of a group or of a flow."""
    for name in ("unique_key", "group_key", "flow"):
        if (value := options.get(name)) is not None:
            return f"{name} {value}"
    return None
