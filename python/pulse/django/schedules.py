"""Schedules beside the tasks: written when a worker of the project starts.

@schedule("morning-digest", cron="0 7 * * *", timezone="Europe/Berlin")
@task(queue_name="mail")
def send_digest(): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings

import pulse
from pulse.declarations import ScheduleOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

AnyTask = TypeVar("AnyTask")

declared: dict[str, tuple[Any, ScheduleOptions]] = {}
"""Tasks, of Django or with @pulse.task, and when they run, by the schedule's name."""


def schedule(
    name: str, **options: Unpack[ScheduleOptions]
) -> Callable[[AnyTask], AnyTask]:
    """Have a task enqueued on a schedule; the decorator goes above @task.

    The schedule belongs to the application that PULSE_APPLICATION names.

    Args:
        name: The name of the schedule.
        options: cron, every or at, and what else pulse.schedule takes. The members of
            payload are keyword arguments of the task.

    Returns:
        A decorator of a task. It returns the task.

    Raises:
        TypeError: It is not above @task.
        ValueError: Another task has declared a schedule of this name.
    """

    def declare(task: AnyTask) -> AnyTask:
        if path_of(task) is None:
            raise TypeError(f"@schedule({name!r}, …) goes above @task, as it needs one")
        known = declared.get(name)
        if known is not None and path_of(known[0]) != path_of(task):
            raise ValueError(f"the schedule {name!r} is declared already")
        declared[name] = (task, options)
        return task

    return declare


def path_of(task: Any) -> str | None:
    if isinstance(task, pulse.Task):
        return task.kind
    return getattr(task, "module_path", None)


def of_database(database: str) -> dict[str, dict[str, Any]]:
    """Return the declarations of a worker on this database."""
    found: dict[str, dict[str, Any]] = {}
    for name, (task, options) in declared.items():
        if isinstance(task, pulse.Task):
            found[name] = {"kind": task.kind, **options}
            continue
        from pulse.django import handlers

        scheduled = handlers.schedule_of(task, database, options)
        if scheduled is not None:
            found[name] = scheduled
    return found


def application(found: dict[str, dict[str, Any]]) -> str | None:
    """Return the application: schedules that it no longer declares are removed."""
    name: str | None = getattr(settings, "PULSE_APPLICATION", None)
    if name is None and found:
        raise ValueError(
            f"the schedules {', '.join(sorted(found))} need PULSE_APPLICATION in the "
            "settings, say 'shop': they are written under this name, which no other "
            "project on this database may have"
        )
    return name
