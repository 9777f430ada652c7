"""pulse: a job queue inside PostgreSQL.

import pulse

worker = pulse.Worker("postgresql:///app", concurrency=10)

@worker.handle("send-email")
def send_email(job, to, subject): ...

pulse.enqueue(conn, "send-email", {"to": "a@b.c", "subject": "hi"}, priority=10)
worker.run()
"""

from pulse import errors as errors
from pulse.client import AsyncClient, Client
from pulse.errors import Cancelled, Fatal, PulseError, RetryIn, Snooze
from pulse.handles import AsyncHandle, Handle
from pulse.hooks import Hooks
from pulse.job import Job
from pulse.producer import enqueue, enqueue_many
from pulse.tasks import Task, task
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
    "Task",
    "Worker",
    "enqueue",
    "enqueue_many",
    "task",
]
