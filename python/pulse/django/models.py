"""One model without a table: it gives the queue a place in the admin."""

from django.db import models


class Queue(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = "queue"
        verbose_name_plural = "queue"
