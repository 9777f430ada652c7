"""PulseBackend: Django's tasks as jobs of pulse.

    TASKS = {"default": {"BACKEND": "pulse.django.PulseBackend"}}

A task is a job whose kind is the path of its function, in the lane of its queue's name.
It is enqueued on Django's own connection, so it commits and rolls back with the
transaction around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from django.apps import apps
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone

from pulse import adapters
from pulse.django import results
from pulse.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from pulse.producer import enqueue
from pulse.sql import producer as sql

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pulse.options import Options

LONGEST_NAME = 200
# For the others Django has a word of its own: queue_name, priority, run_after.
JOB_OPTIONS = sql.OPTIONS - {"lane", "priority", "run_at", "delay"}
AnyTask = TypeVar("AnyTask")


def job_options(**options: Unpack[Options]) -> Callable[[AnyTask], AnyTask]:
    """The same task with options of pulse.enqueue; above @task, or for one enqueue.

    A task of another backend (in tests, say) stays as it is.
    """
    unknown = sorted(options.keys() - JOB_OPTIONS)
    if unknown:
        raise InvalidTask(
            f"{', '.join(unknown)}: no option of a task; these are: "
            + ", ".join(sorted(JOB_OPTIONS))
        )

    def with_options(task: AnyTask) -> AnyTask:
        if not isinstance(task, PulseTask):
            return task
        return replace(task, job_options={**task.job_options, **options})

    return with_options


@dataclass(frozen=True, kw_only=True)
class PulseTask(Task):
    """A task that knows how its jobs shall be enqueued."""

    # Two tasks are the same task, however they are enqueued.
    job_options: Mapping[str, Any] = field(default_factory=dict, compare=False)


class PulseBackend(BaseTaskBackend):
    """OPTIONS: database, executor, and whatever pulse.enqueue takes for every task."""

    task_class = PulseTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        given = dict(self.options)
        self.database: str = given.pop("database", DEFAULT_DB_ALIAS)
        self.executor: str = given.pop("executor", "thread")
        self.job_options: dict[str, Any] = given

    def validate_task(self, task: Task) -> None:
        if getattr(task.func, "missing", False):
            return
        super().validate_task(task)
        if len(task.module_path) > LONGEST_NAME:
            raise InvalidTask(
                f"The path of a task has at most {LONGEST_NAME} characters."
            )
        # Called for each task that is made: the worker knows them all. A moment is of
        # one enqueue and not of the task; the copy without it comes here by itself.
        if task.run_after is None:
            results.known.setdefault(task.module_path, task)
        elif task.module_path not in results.known:
            replace(task, run_after=None)

    def enqueue(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult:
        self.validate_task(task)
        payload = {
            "args": normalize_json(list(args)),
            "kwargs": normalize_json(dict(kwargs)),
            "backend": self.alias,
        }
        run_at = task.run_after
        if run_at is not None:
            run_at = (
                run_at if timezone.is_aware(run_at) else timezone.make_aware(run_at)
            )
            payload["run_after"] = run_at.isoformat()
        options: dict[str, Any] = {
            **self.job_options,
            # A plain task came with using(backend=…) from another backend.
            **getattr(task, "job_options", {}),
            "lane": task.queue_name,
            "priority": task.priority,
            "run_at": run_at,
        }
        job_id = enqueue(
            connections[self.database], task.module_path, payload, **options
        )
        result = self.get_result(str(job_id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        row = self._row(result_id)
        task = None
        if row is not None:
            task = results.find(row.kind)
            if task is None and row.state in ("dead", "cancelled"):
                task = results.missing(row.kind, json.loads(row.payload))
        result = None if row is None or task is None else results.of_row(row, task)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def _row(self, result_id: object) -> results.Row | None:
        number = results.job_id_of(result_id)
        if number is None:
            return None
        rows: Any = adapters.fetch(
            connections[self.database], sql.JOB, {"job_id": number}, list
        )
        return results.Row(*rows[0]) if rows else None

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        if not apps.is_installed("pulse.django"):
            yield checks.Error(
                f"The app of the task backend {self.alias!r} is not installed.",
                hint="Add 'pulse.django' to INSTALLED_APPS.",
                id="pulse.E001",
            )
        if self.database not in connections:
            yield checks.Error(
                f"The task backend {self.alias!r} uses the database "
                f"{self.database!r}, which DATABASES does not have.",
                hint='Correct "OPTIONS": {"database": …}.',
                id="pulse.E002",
            )
        elif connections[self.database].vendor != "postgresql":
            yield checks.Error(
                f"The task backend {self.alias!r} needs PostgreSQL, and the database "
                f"{self.database!r} is {connections[self.database].display_name}.",
                hint='Name another one in "OPTIONS": {"database": …}.',
                id="pulse.E003",
            )
        unknown = sorted(self.job_options.keys() - JOB_OPTIONS)
        if unknown or self.executor not in ("thread", "process"):
            what = unknown or [f"executor={self.executor!r}"]
            yield checks.Error(
                f"The task backend {self.alias!r} has OPTIONS that mean nothing: "
                f"{', '.join(what)}.",
                hint="It takes database, executor (thread or process), "
                + ", ".join(sorted(JOB_OPTIONS)),
                id="pulse.E004",
            )
        for queue in sorted(self.queues):
            if not 0 < len(queue) <= LONGEST_NAME:
                yield checks.Error(
                    f"The queue {queue!r} of the task backend {self.alias!r} cannot "
                    "be the name of a lane.",
                    hint=f"It has between 1 and {LONGEST_NAME} characters.",
                    id="pulse.E005",
                )
