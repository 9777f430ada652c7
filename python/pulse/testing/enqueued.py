"""What is enqueued: asserted on, in the test's own transaction."""

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
    """The jobs of this kind, in the order of their ids, as pulse.jobs has them.

    payload names members that they must have, columns what else: lane, priority, state,
    unique_key, tags, headers and the other columns of the view.
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
    """Fail unless such a job is enqueued (or exactly count); returns those that are."""
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
    """Fail if such a job is enqueued."""
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
