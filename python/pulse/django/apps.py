"""The app: its label is pulse."""

from django.apps import AppConfig


class PulseConfig(AppConfig):
    name = "pulse.django"
    label = "pulse"
    verbose_name = "Pulse"
    default_auto_field = "django.db.models.BigAutoField"
