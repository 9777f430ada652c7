"""pulse: a job queue inside PostgreSQL.

import pulse

worker = pulse.Worker("postgresql:///app", concurrency=10)

@worker.handle("send-email")
def send_email(job, to, subject): ...

pulse.enqueue(conn, "send-email", {"to": "a@b.c", "subject": "hi"}, priority=10)
worker.run()
"""

from typing import TYPE_CHECKING, Any

from pulse import errors as errors
from pulse.client import AsyncClient, Client
from pulse.errors import (
    Cancelled,
    Fatal,
    PulseError,
    RetryIn,
    Snooze,
    Suspended,
    TimedOut,
)
from pulse.handles import AsyncHandle, Handle
from pulse.hooks import Hooks
from pulse.job import Job, Upstream
from pulse.producer import enqueue, enqueue_many, signal
from pulse.tasks import Task, task

if TYPE_CHECKING:
    from pulse.worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "Cancelled",
    "Client",
    "Fatal",
    "Handle",
    "Hooks",
    "Job",
    "PulseError",
    "RetryIn",
    "Snooze",
    "Suspended",
    "Task",
    "TimedOut",
    "Upstream",
    "Worker",
    "enqueue",
    "enqueue_many",
    "signal",
    "task",
]


def __getattr__(name: str) -> Any:
    """Imported when first used: a program that only enqueues needs no worker."""
    if name == "Worker":
        from pulse.worker import Worker

        globals()[name] = Worker
        return Worker
    raise AttributeError(f"module 'pulse' has no attribute {name!r}")
