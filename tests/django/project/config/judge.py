"""For Django's own tests, and those of django-tasks-db, adapted to PulseBackend."""

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS

INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "shop"] + ["judge"]
TASKS = {
    "default": {
        "BACKEND": "pulse.django.PulseBackend",
        "QUEUES": ["default", "queue-1"],
        "OPTIONS": {"max_attempts": 1},
    },
}
