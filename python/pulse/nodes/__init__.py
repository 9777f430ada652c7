"""Several databases (nodes), each with a pulse of its own.

This module checks the numbers of nodes and assigns keys to nodes.

    worker.py   a worker of several databases: a loop for each
    budget.py   the slots that these loops share
    client.py   a client of several databases: the node of each call

Only pulse.Worker and pulse.Client import this package, when they get several DSNs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pulse import errors, verbs


def require_own_number(
    where: str, number: int, state: str, others: Mapping[int, str]
) -> None:
    """Raise unless the database may be one of several; others: labels by number."""
    if state == "unset":
        lowest, highest = verbs.limits("set_node", "n")
        raise errors.NodeRefused(
            f"the database at {where} has no node number",
            detail="Among several each needs one, so that job ids say where a job is.",
            hint=f"SELECT pulse.set_node(n), n from {lowest} to {highest} and no "
            "other's.",
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


def node_of_key(key: str, numbers: Iterable[int]) -> int:
    """The node of a key: the same for every client; with one more node most stay.

    Rendezvous (highest random weight) hashing.
    """

    def weight(number: int) -> tuple[bytes, int]:
        text = f"{number} {key}".encode()
        return hashlib.blake2b(text, digest_size=8).digest(), number

    return max(numbers, key=weight)


def routing_key(options: Mapping[str, Any]) -> str | None:
    """The key that jobs of one node share: a unique key, a group or a flow."""
    for name in ("unique_key", "group_key", "flow"):
        if (value := options.get(name)) is not None:
            return f"{name} {value}"
    return None
