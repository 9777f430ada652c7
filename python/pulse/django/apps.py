"""The configuration of the app, which Django loads; its label is pulse."""

from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks


class PulseConfig(AppConfig):
    name = "pulse.django"
    label = "pulse"
    verbose_name = "Pulse"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        checks.register(check_backport)


def check_backport(**_: Any) -> list[checks.CheckMessage]:
    """On Django 5.2 the backport's app has to ask the backends for their checks."""
    if (
        not getattr(settings, "TASKS", None)
        or find_spec("django.tasks") is not None
        or apps.is_installed("django_tasks")
    ):
        return []
    return [
        checks.Warning(
            "TASKS is not checked, because the app 'django_tasks' is not installed.",
            hint="Add 'django_tasks' to INSTALLED_APPS.",
            id="pulse.W001",
        )
    ]
