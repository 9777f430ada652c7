"""The statements of enqueue and the clients: calls of pulse.* by named argument."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing_extensions import LiteralString

ENQUEUE_ARGUMENTS: Final[dict[str, LiteralString]] = {
    "kind": "text",
    "payload": "jsonb",
    "payloads": "jsonb[]",
    "lane": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "delay": "interval",
    "max_attempts": "integer",
    "unique_key": "text",
    "unique_for": "interval",
    "on_conflict": "text",
    "group_key": "text",
    "requires_approval": "boolean",
    "tags": "text[]",
    "max_runtime": "interval",
    "headers": "jsonb",
    "start_by": "timestamptz",
    "expires_in": "interval",
    "after": "bigint[]",
    "after_failed": "text",
    "flow": "text",
    "name": "text",
}
OPTIONS: Final = frozenset(ENQUEUE_ARGUMENTS) - {"kind", "payload", "payloads"}


def call(function: str, arguments: Collection[str]) -> LiteralString:
    """One of the enqueue functions with these arguments, as a query with %(name)s."""
    named = ", ".join(
        f"{name} => CAST(%({name})s AS {ENQUEUE_ARGUMENTS[name]})" for name in arguments
    )
    # Of names from above: as good as the literal that pyright wants.
    return f"SELECT * FROM pulse.{function}({named})"  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=1000)
def enqueue(arguments: tuple[str, ...]) -> LiteralString:
    return call("enqueue", arguments)


@lru_cache(maxsize=1000)
def enqueue_many(arguments: tuple[str, ...]) -> LiteralString:
    return call("enqueue_many", arguments)


@lru_cache(maxsize=1000)
def enqueue_one(arguments: tuple[str, ...]) -> LiteralString:
    return call("enqueue_one", arguments)


# One argument of type text, which every driver passes in the same way.
ENQUEUE_LIST: Final = (
    "SELECT * FROM pulse.enqueue_many(jobs => CAST(CAST(%(jobs)s AS text) AS jsonb))"
)

SIGNAL: Final = """
SELECT pulse.signal(
    signal => CAST(%(signal)s AS text),
    payload => CAST(CAST(%(payload)s AS text) AS jsonb),
    keep => CAST(%(keep)s AS interval)
)"""

_ONE: Final = {n: t for n, t in ENQUEUE_ARGUMENTS.items() if n != "payloads"}
_COLUMNS: Final = ", ".join(f"{name} {kind}" for name, kind in _ONE.items())
_GIVEN: Final = ", ".join(
    f"{name} => "
    + ("coalesce(r.on_conflict, 'skip')" if name == "on_conflict" else f"r.{name}")
    for name in _ONE
)
ENQUEUE_ONE: Final[Any] = f"""
SELECT e.job_id, e.created
FROM jsonb_to_record(CAST(CAST(%(job)s AS text) AS jsonb)) AS r ({_COLUMNS})
CROSS JOIN LATERAL pulse.enqueue_one({_GIVEN}) AS e"""

# Asked of each where there are several databases.
NODE: Final = "SELECT pulse.node(), pulse.node_state()"

CANCEL: Final = "SELECT pulse.cancel(job_id => %(job_id)s, reason => %(reason)s)"

WHY: Final = """
SELECT w.reason
FROM pulse.why(job_id => %(job_id)s) AS w
ORDER BY w.position"""

OUTCOME: Final = """
SELECT j.state, CAST(j.result AS text), j.last_error
FROM pulse.jobs AS j
WHERE j.job_id = %(job_id)s"""

# All that a front end of a task framework asks of one job; jsonb as text.
JOB: Final = """
SELECT
    j.job_id, j.state, j.lane, j.kind, j.priority, CAST(j.payload AS text), j.attempts,
    j.enqueued_at, j.worker, j.started_at, j.finished_at, CAST(j.errors AS text),
    j.last_error, CAST(j.result AS text)
FROM pulse.jobs AS j
WHERE j.job_id = %(job_id)s"""

# For the test: every statement above.
STATEMENTS: Final = {
    "node": NODE,
    "cancel": CANCEL,
    "signal": SIGNAL,
    "why": WHY,
    "outcome": OUTCOME,
    "job": JOB,
    "enqueue": enqueue(tuple(n for n in ENQUEUE_ARGUMENTS if n != "payloads")),
    "enqueue_many": enqueue_many(tuple(n for n in ENQUEUE_ARGUMENTS if n != "payload")),
    "enqueue_list": ENQUEUE_LIST,
    "enqueue_one": ENQUEUE_ONE,
}
