"""Several databases: the command asks all at the same time and waits for none for long.

Session.gather and pulse top call ask_all; the sums of lanes are made here.
"""

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pulse.cli import problems, show
from pulse.cli.problems import Problem

if TYPE_CHECKING:
    from pulse.cli.session import Row, Session

PATIENCE = 10.0


def listed(text: str) -> list[str]:
    """The DSNs in a variable: URIs with white space between them are several."""
    words = text.split()
    uris = all(re.match(r"postgres(ql)?(\+\w+)?://", word) for word in words)
    return words if uris else [text]


def ask_all(
    nodes: "Sequence[Session]",
    read: "Callable[[Session], Any]",
    tell: Callable[[str], None],
) -> dict[int, Any]:
    """Read from every node at the same time; return what came, by node number.

    tell gets a line for each node that did not answer.
    """
    from pulse.nodes import require_own_number
    from pulse.sql import producer

    def ask(node: "Session") -> None:
        try:
            answers[node] = node.one(producer.NODE), read(node)
        except Exception as error:
            answers[node] = error

    answers: dict[Session, Any] = {}
    # Not of a pool, which would wait at the end for one that never answers.
    asking = [threading.Thread(target=ask, args=[n], daemon=True) for n in nodes]
    for thread in asking:
        thread.start()
    until = time.monotonic() + PATIENCE
    for thread in asking:
        thread.join(max(0.0, until - time.monotonic()))
    found: dict[int, Any] = {}
    places: dict[int, str] = {}
    silent: Problem | None = None
    for node in nodes:
        answer = answers.get(node, no_answer(node))
        if isinstance(answer, Exception):
            problem = away(answer, node)
            named = str(node.target) in problem.what
            why = problem.detail if named and problem.detail else problem.what
            tell(f"{node.target} does not answer: {why}")
            silent = silent or problem
            if node in answers:
                node.close()
            else:
                # Its thread still uses the connection: the next try makes another.
                node.__dict__.pop("connection", None)
            continue
        row, rows = answer
        number, place = row["node"], str(node.target)
        require_own_number(place, number, row["node_state"], places)
        found[number], places[number] = rows, place
    if not found and silent is not None:
        raise silent
    return found


def no_answer(node: "Session") -> Problem:
    words = f"no answer within {PATIENCE:.0f} seconds"
    return Problem(words, f"Tried {node.target}.", code=problems.NO_SERVER)


def away(error: Exception, node: "Session") -> Problem:
    """The problem of a server that is away; whatever else it is, is raised."""
    import psycopg

    if isinstance(error, Problem) and error.code == problems.NO_SERVER:
        return error
    if isinstance(error, psycopg.OperationalError):
        return Problem(
            show.first_line(str(error)) or "the connection was lost",
            f"Tried {node.target}.",
            code=problems.NO_SERVER,
        )
    raise error


def with_sums(lanes: "list[Row]") -> "list[Row]":
    """By lane, and below those of several databases what they come to together."""
    by_lane: dict[str, list[Row]] = {}
    for row in lanes:
        by_lane.setdefault(row["lane"], []).append(row)
    found = []
    for rows in by_lane.values():
        found += rows
        if len(rows) > 1:
            found.append(summed(rows))
    return found


def summed(rows: "list[Row]") -> "Row":
    slots = [row["max_slots"] for row in rows]
    ages = [row["oldest_ready_age"] for row in rows if row["oldest_ready_age"]]
    added = ("used", "depth", "delayed", "throughput")
    return {
        **rows[0],
        "node": "all",
        "max_slots": None if None in slots else sum(slots),
        "oldest_ready_age": max(ages, default=None),
        **{name: sum(row[name] for row in rows) for name in added},
        **{
            name: any(row[name] for row in rows)
            for name in ("depth_estimated", "delayed_estimated")
        },
        # The sum is drained if all of them are.
        "enabled": any(row["enabled"] for row in rows),
        "drained": all(row["drained"] for row in rows),
        "paused_by": sorted(
            set.intersection(*(set(row["paused_by"] or ()) for row in rows))
        ),
    }
