"""The worker of a project: it finds the tasks and runs them with Django set up.

manage.py pulse_worker makes it and calls run().
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import django
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS
from django.utils.module_loading import autodiscover_modules

import pulse
from pulse.django import schedules
from pulse.django.connections import ConnectionLifecycle, FreshConnections, dsn
from pulse.hooks import Hooks
from pulse.job import Job
from pulse.worker.worker import new_name

HAS_FRAMEWORK = find_spec("django.tasks") or find_spec("django_tasks")


def discover(database: str = DEFAULT_DB_ALIAS) -> dict[str, pulse.Task[Any, Any]]:
    """Tasks by kind: Django's of this database, and pulse.task in modules `tasks`."""
    autodiscover_modules("tasks")
    found: dict[str, pulse.Task[Any, Any]] = {}
    if HAS_FRAMEWORK:
        from pulse.django import handlers

        found = handlers.tasks(database)
    for app in apps.get_app_configs():
        for value in vars(getattr(app.module, "tasks", None) or object).values():
            if isinstance(value, pulse.Task):
                found.setdefault(value.kind, value)
    return found


def queues(database: str) -> list[str]:
    """The lanes that PulseBackends put tasks in, of the tasks that are discovered."""
    if not HAS_FRAMEWORK:
        return ["default"]
    from pulse.django import handlers

    return sorted(handlers.queues(database)) or ["default"]


def make_worker(
    *,
    database: str = DEFAULT_DB_ALIAS,
    lanes: Mapping[str, int] | None = None,
    concurrency: int = 10,
    name: str | None = None,
    hooks: Sequence[Hooks] = (),
    **options: Any,
) -> pulse.Worker:
    """A worker for every task of the project; options are those of pulse.Worker."""
    found = discover(database)
    name = name or new_name()
    set_worker_name(name)
    scheduled = schedules.of_database(database)
    if "application" not in options:
        options["application"] = schedules.application(scheduled)
    worker = pulse.Worker(
        dsn(database),
        lanes=lanes or dict.fromkeys(queues(database), concurrency),
        tasks=[in_child(task) for task in found.values()],
        name=name,
        hooks=[FreshConnections(), *hooks],
        process_initializer=functools.partial(set_up, database, name),
        **options,
    )
    worker.schedules.update(scheduled)
    return worker


def set_worker_name(name: str) -> None:
    if HAS_FRAMEWORK:
        from pulse.django import handlers

        handlers.worker_name = name


# -- child processes ----------------------------------------------------------------

found_here: dict[str, pulse.Task[Any, Any]] = {}


def set_up(database: str, name: str) -> None:
    """In a child, before its first job."""
    django.setup()
    found_here.update(discover(database))
    set_worker_name(name)


def in_child(task: pulse.Task[Any, Any]) -> pulse.Task[Any, Any]:
    """A task of a process is found by its kind there, where Django is set up."""
    if task.executor != "process":
        return task
    return pulse.Task(task.kind, run_in_child, executor="process")


def run_in_child(job: Job) -> Any:
    with ConnectionLifecycle():
        return found_here[job.kind].run(job)
