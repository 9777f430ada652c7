"""pulse in a Django project: INSTALLED_APPS += ["pulse.django"].

The app installs pulse with a migration, runs Django's tasks with PulseBackend and
brings manage.py pulse_worker. Django loads the app (apps.py) and the backend by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulse.django.backend import PulseBackend, job_options
    from pulse.django.schedules import schedule

__all__ = ["PulseBackend", "job_options", "schedule"]


def __getattr__(name: str) -> Any:
    # Not above: Django imports this module before it knows its apps, and 5.2 may be
    # without the task framework.
    if name == "schedule":
        from pulse.django.schedules import schedule

        return schedule
    if name in __all__:
        from pulse.django import backend

        return getattr(backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
