"""What the worker does."""

import time
from typing import TYPE_CHECKING

import django
from django.utils import timezone

from pulse.django import job_options
from shop.models import Order

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@job_options(max_attempts=5, max_runtime="1 minute")
@task(queue_name="mail", priority=10)
def confirm(number: int, seconds: float = 0) -> str:
    """Confirm an order; it may run twice for one order, and writes the same."""
    order = Order.objects.get(pk=number)
    time.sleep(seconds)  # A mail server would take its time.
    order.confirmed_at = timezone.now()
    order.save(update_fields=["confirmed_at"])
    return f"order {number} is confirmed to {order.email}"
