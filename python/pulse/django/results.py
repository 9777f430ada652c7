"""TaskResult of a job, and the task of a kind.

The backend calls it when the project reads a result, and the handlers when they send
Django's signals.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string

from pulse.django.framework import (
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
)

LOWEST, HIGHEST = -100, 100

known: dict[str, Task] = {}
"""Every task made for a PulseBackend in this process, by its path."""

STATUS = {
    "running": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
# An error of the server has no class: the worker was lost, or took too long.
LOST = "pulse.errors.LeaseLost"
CANCELLED = "pulse.errors.JobCancelled"

# An exception as traceback writes it; one of a group stands behind a bar.
RAISED = re.compile(r"(?:  \| )?((?:(?:[^\W\d]\w*|<locals>)\.)*[^\W\d]\w*)(?::.*)?")
FRAME = ("   ", "  File", "  [Previous", "  |  ")
JOINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)


class Row(NamedTuple):
    """A row of sql.JOB."""

    job_id: int
    state: str
    lane: str
    kind: str
    priority: int
    payload: str
    attempts: int
    enqueued_at: datetime
    worker: str | None
    started_at: datetime | None
    finished_at: datetime | None
    errors: str | None
    last_error: str | None
    result: str | None


def job_id_of(result_id: object) -> int | None:
    """The number of a job; None for what can be none."""
    text = str(result_id)
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        return None
    return int(text) if int(text) < 1 << 63 else None


def find(kind: str) -> Task | None:
    """The task of a kind; None where it is none.

    The caller of enqueue chooses the kind, so only modules of the project's apps are
    imported.
    """
    task = known.get(kind)
    if task is None and apps.get_containing_app_config(kind) is not None:
        try:
            found = import_string(kind)
        except ImportError:
            return None
        task = found if isinstance(found, Task) else None
    return task


def missing(kind: str, payload: Any) -> Task | None:
    """In place of a task that this process does not have: removed, or renamed.

    None where its job was not enqueued by a PulseBackend of these settings.
    """
    module, _, name = kind.rpartition(".")
    if not module or not isinstance(payload, dict):
        return None
    backend = payload.get("backend")
    if not payload.keys() >= {"args", "kwargs"} or backend not in task_backends:
        return None

    def gone() -> None:
        raise LookupError(f"there is no task {kind}")

    gone.__module__, gone.__qualname__ = module, name
    gone.missing = True  # type: ignore[attr-defined]
    return task_backends[backend].task_class(
        priority=0, func=gone, backend=backend, queue_name="default", run_after=None
    )


def as_enqueued(task: Task, payload: Any, lane: str, priority: int) -> Task:
    """The task with what it was enqueued with, as far as settings and Django allow.

    Operators move jobs to lanes that are no queues, and give priorities above 100.
    """
    queues = task_backends[payload["backend"]].queues
    run_after = payload.get("run_after")
    return task.using(
        priority=min(max(priority, LOWEST), HIGHEST),
        queue_name=lane if not queues or lane in queues else None,
        run_after=None if run_after is None else local(run_after),
        backend=payload["backend"],
    )


def call_of(payload: Any, task: Task) -> dict[str, Any] | None:
    """A payload as PulseBackend makes it; None for what can be none.

    Schedules, operators and other programs enqueue a task by its path: the members of
    what they pass are keyword arguments.
    """
    if not isinstance(payload, dict):
        return None
    if payload.keys() >= {"args", "kwargs", "backend"}:
        return payload
    return {"args": [], "kwargs": payload, "backend": task.backend}


def of_row(row: Row, task: Task) -> TaskResult | None:
    """None where it is no job of a PulseBackend."""
    payload = call_of(json.loads(row.payload), task)
    if payload is None:
        return None
    failed = [Failure(each) for each in json.loads(row.errors or "[]")]
    workers = {failure.attempt: failure.worker for failure in failed}
    if row.worker is not None:
        workers[row.attempts] = row.worker
    begun = [failure.started_at for failure in failed]
    if row.started_at is not None:
        begun.append(row.started_at)
    errors = [error_of(failure.error) for failure in failed]
    if row.state == "cancelled":
        errors.append(
            TaskError(exception_class_path=CANCELLED, traceback=row.last_error or "")
        )
    result = TaskResult(
        task=as_enqueued(task, payload, row.lane, row.priority),
        id=str(row.job_id),
        status=STATUS.get(row.state, TaskResultStatus.READY),
        enqueued_at=row.enqueued_at,
        started_at=min(begun, default=None),
        last_attempted_at=max(begun, default=None),
        finished_at=row.finished_at,
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=payload["backend"],
        errors=errors,
        # A run that was snoozed or released leaves no record of its worker.
        worker_ids=[workers.get(n, "") for n in range(1, row.attempts + 1)],
    )
    if row.result is not None:
        object.__setattr__(result, "_return_value", json.loads(row.result))
    return result


class Failure:
    """An element of the column errors."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.attempt: int = row["attempt"]
        self.worker: str = row["worker"]
        self.error: str = row["error"] or ""
        self.started_at = local(row["started_at"])


def local(text: str) -> datetime:
    """A moment as Django has it: without a zone where USE_TZ is off."""
    moment = parse_datetime(text)
    if moment is None:
        raise ValueError(f"{text!r} is no moment")
    return as_local(moment)


def as_local(moment: datetime) -> datetime:
    # On Django's own connection it is naive already where USE_TZ is off.
    if settings.USE_TZ or timezone.is_naive(moment):
        return moment
    naive: datetime = timezone.make_naive(moment)
    return naive


def error_of(text: str) -> TaskError:
    return TaskError(exception_class_path=class_path(text), traceback=f"{text}\n")


def class_path(text: str) -> str:
    """Which exception a traceback ends with; its message may hold anything."""
    for block in reversed(JOINED.split(text)):
        lines = block.split("\n")
        if re.match(r" *(?:\+ Exception Group )?Traceback \(most recent", lines[0]):
            lines = [line for line in lines[1:] if not line.startswith(FRAME)]
        found = RAISED.fullmatch(lines[0] if lines else "")
        if found:
            return found[1] if "." in found[1] else f"builtins.{found[1]}"
    return LOST
