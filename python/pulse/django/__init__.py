"""pulse in a Django project: INSTALLED_APPS += ["pulse.django"].

The app installs pulse with a migration, runs Django's tasks with PulseBackend and
brings manage.py pulse_worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulse.django.backend import PulseBackend

__all__ = ["PulseBackend"]


def __getattr__(name: str) -> Any:
    # Not above: Django imports this module before it knows its apps, and 5.2 may be
    # without the task framework.
    if name == "PulseBackend":
        from pulse.django.backend import PulseBackend

        return PulseBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
