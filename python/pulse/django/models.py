"""One model without a table: it gives the queue an entry in the admin (admin.py)."""

from typing import Any

from django.db import models


class NoRows(models.Manager):
    """For dumpdata and the admin, which ask every model for its rows."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Queue(models.Model):
    objects = NoRows()

    class Meta:
        managed = False
        default_permissions = ("view",)
        base_manager_name = "objects"
        verbose_name = "queue"
        verbose_name_plural = "queue"
