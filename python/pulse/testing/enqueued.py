"""Assertions about enqueued jobs, in the test's own transaction.

Tests call them through pulse.testing. They read the view pulse.jobs on the connection
that the test gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pulse import adapters
from pulse.options import to_json
from pulse.sql import testing as sql
from pulse.tasks import Task

Found = dict[str, Any]


class DjangoTask(Protocol):
    """A task of Django's framework; its path is the kind."""

    @property
    def module_path(self) -> str: ...


Kind = str | Task[Any, Any] | DjangoTask


def enqueued(
    connection: Any,
    kind: Kind,
    payload: Mapping[str, Any] | None = None,
    **columns: Any,
) -> list[Found]:
    """Find the jobs of a kind that this transaction sees.

    Args:
        connection: The connection of the test.
        kind: A kind, or a task.
        payload: Members that the payload has to have.
        columns: Values of other columns of the view pulse.jobs: lane, priority, state,
            unique_key, tags, headers and so on.

    Returns:
        The jobs as rows of pulse.jobs, in the order of their ids.

    Example:
        >>> from pulse.testing import enqueued
        >>> job_id = pulse.enqueue(connection, "mail", {"to": "a@b.c"}, priority=5)
        >>> [job] = enqueued(connection, "mail", {"to": "a@b.c"})
        >>> job["priority"]
        5
    """
    members = json.loads(to_json(dict(payload or {})))
    wanted = json.loads(to_json(columns, "what is asserted"))
    return [
        job
        for job in _jobs(connection, kind)
        if _has(job["payload"], members) and _has(job, wanted)
    ]


def assert_enqueued(
    connection: Any,
    kind: Kind,
    payload: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    **columns: Any,
) -> list[Found]:
    """Fail unless such a job is enqueued.

    Args:
        connection: The connection of the test.
        kind: A kind, or a task.
        payload: Members that the payload has to have.
        count: How many there have to be; None, at least one.
        columns: Values of other columns of the view pulse.jobs.

    Returns:
        The jobs that were found.

    Raises:
        AssertionError: There is no such job, or not as many; with the jobs of the kind.

    Example:
        >>> from pulse.testing import assert_enqueued
        >>> handle = double.enqueue(connection, 21)
        >>> found = assert_enqueued(connection, double, {"n": 21}, count=1)
    """
    found = enqueued(connection, kind, payload, **columns)
    if not found if count is None else len(found) != count:
        many = "at least one job" if count is None else f"{count} jobs"
        what = {"kind": _kind(kind), "payload": payload, **columns}
        words = ", ".join(f"{k}={v!r}" for k, v in what.items() if v is not None)
        raise AssertionError(
            f"expected {many} with {words}, found {len(found)}"
            + _others(connection, kind)
        )
    return found


def refute_enqueued(
    connection: Any,
    kind: Kind,
    payload: Mapping[str, Any] | None = None,
    **columns: Any,
) -> None:
    """Fail if such a job is enqueued.

    Args:
        connection: The connection of the test.
        kind: A kind, or a task.
        payload: Members that the payload has to have.
        columns: Values of other columns of the view pulse.jobs.

    Raises:
        AssertionError: There is such a job.

    Example:
        >>> from pulse.testing import refute_enqueued
        >>> refute_enqueued(connection, double, {"n": 22})
    """
    assert_enqueued(connection, kind, payload, count=0, **columns)


def _kind(kind: Kind) -> str:
    if isinstance(kind, str):
        return kind
    return kind.kind if isinstance(kind, Task) else kind.module_path


def _jobs(connection: Any, kind: Kind) -> list[Found]:
    rows: Any = adapters.fetch(connection, sql.JOBS, {"kind": _kind(kind)}, list)
    return sorted((json.loads(row[0]) for row in rows), key=lambda job: job["job_id"])


def _has(found: Any, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    return isinstance(found, dict) and all(
        name in found and found[name] == value for name, value in wanted.items()
    )


def _others(connection: Any, kind: Kind) -> str:
    shown = ("job_id", "state", "lane", "priority", "payload")
    lines = [
        "\n  " + ", ".join(f"{name}={job[name]!r}" for name in shown)
        for job in _jobs(connection, kind)[:20]
    ]
    return f". Of {_kind(kind)} there are:{''.join(lines)}" if lines else ". None is."
