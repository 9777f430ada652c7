"""How a worker runs a task of Django's: run and arun are the handlers of them all.

They send the signals task_started and task_finished. What a task raises goes on to the
worker, which reports it: the server then decides whether there is another attempt.
"""

from __future__ import annotations

import asyncio
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone

import pulse
from pulse import errors
from pulse.declarations import ScheduleOptions
from pulse.django import results
from pulse.django.backend import PulseBackend
from pulse.django.framework import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from pulse.job import Job
from pulse.worker.outcomes import described

# The name of the worker of this process; set when a worker or a child of it starts.
worker_name = ""


def run(job: Job) -> Any:
    """In a thread, a child process or a test; a coroutine runs to its end."""
    task, result = begin(job)
    sender = type(task.get_backend())
    task_started.send(sender=sender, task_result=result)
    try:
        value = normalize_json(task.call(*arguments(task, result), **result.kwargs))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if failed(job, result, error):
            task_finished.send(sender=sender, task_result=result)
        raise
    succeeded(result, value)
    task_finished.send(sender=sender, task_result=result)
    return value


async def arun(job: Job) -> Any:
    """On the event loop."""
    task, result = await sync_to_async(begin)(job)
    sender = type(task.get_backend())
    await task_started.asend(sender=sender, task_result=result)
    try:
        value = await task.acall(*arguments(task, result), **result.kwargs)
        value = normalize_json(value)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if failed(job, result, error):
            await task_finished.asend(sender=sender, task_result=result)
        raise
    succeeded(result, value)
    await task_finished.asend(sender=sender, task_result=result)
    return value


def begin(job: Job) -> tuple[Task, TaskResult]:
    task = results.find(job.kind)
    if task is None:
        raise LookupError(f"there is no task {job.kind}")
    payload = results.call_of(job.payload, task)
    if payload is None:
        raise TypeError(
            f"the payload of {job.kind} is a {type(job.payload).__name__}, and not an "
            "object: its members are keyword arguments"
        )
    task = results.as_enqueued(task, payload, job.lane, job.priority)
    if job.attempt > 1:
        # Its history is the server's.
        return task, task.get_backend().get_result(str(job.id))
    now = timezone.now()
    result = TaskResult(
        task=task,
        id=str(job.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=job.enqueued_at and results.as_local(job.enqueued_at),
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=payload["backend"],
        errors=[],
        worker_ids=[worker_name],
    )
    return task, result


def arguments(task: Task, result: TaskResult) -> list[Any]:
    context = [TaskContext(task_result=result)] if task.takes_context else []
    return [*context, *result.args]


def succeeded(result: TaskResult, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)


def failed(job: Job, result: TaskResult, error: BaseException) -> bool:
    """Whether this failure ends the task, as far as a worker can tell."""
    if isinstance(error, (errors.Snooze, errors.Cancelled, errors.LeaseLost)):
        return False
    if not isinstance(error, errors.Fatal) and job.failures + 1 < job.max_attempts:
        return False
    result.errors.append(results.error_of(described(error)))
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    return True


def tasks(database: str) -> dict[str, pulse.Task[Any, Any]]:
    """Every task of Django's that this process knows, for a worker."""
    found: dict[str, pulse.Task[Any, Any]] = {}
    for kind, task in results.known.items():
        # A test may have other settings than those it was made with.
        backend = task.backend in task_backends and task.get_backend()
        if not isinstance(backend, PulseBackend) or backend.database != database:
            continue
        if backend.executor == "process":
            found[kind] = pulse.Task(kind, run, executor="process")
        else:
            found[kind] = pulse.Task(
                kind, arun if iscoroutinefunction(task.func) else run
            )
    return found


def schedule_of(task: Task, database: str, options: Any) -> dict[str, Any] | None:
    """As pulse.schedule takes it; None where its jobs are not in this database."""
    backend = task.get_backend()
    if not isinstance(backend, PulseBackend) or backend.database != database:
        return None
    own = {**backend.job_options, **getattr(task, "job_options", {})}
    taken = ScheduleOptions.__annotations__
    return {
        **{name: value for name, value in own.items() if name in taken},
        "kind": task.module_path,
        "lane": task.queue_name,
        "priority": task.priority,
        **options,
    }


def queues(database: str) -> set[str]:
    """Return the names in QUEUES; if a backend takes any name, those of its tasks."""
    found: set[str] = set()
    for backend in task_backends.all():
        if isinstance(backend, PulseBackend) and backend.database == database:
            of_tasks = (
                task.queue_name
                for task in results.known.values()
                if task.backend == backend.alias
            )
            found.update(backend.queues or of_tasks)
    return found
