"""Django 6, or 5.2 with the backport."""

try:
    from django import tasks as framework
    from django.tasks import exceptions, signals
except ImportError:
    import django_tasks as framework
    from django_tasks import exceptions, signals

InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
DoesNotExist = exceptions.TaskResultDoesNotExist
Mismatch = exceptions.TaskResultMismatch
Status = framework.TaskResultStatus
task = framework.task
task_backends = framework.task_backends

__all__ = [
    "DoesNotExist",
    "InvalidTask",
    "Mismatch",
    "Status",
    "exceptions",
    "framework",
    "signals",
    "task",
    "task_backends",
]
