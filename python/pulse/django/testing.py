"""Work off jobs inside a test of Django's: this connection, this transaction.

class SignUp(TestCase):
    def test_it_sends_a_mail(self):
        self.client.post("/signup/", {"email": "a@b.c"})
        [done] = work_off()
        self.assertEqual(done.outcome, "complete")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.pq import TransactionStatus

import pulse
from pulse import install
from pulse.django.operations import carry_out
from pulse.django.worker import discover, queues, set_worker_name
from pulse.job import Job
from pulse.testing import Done
from pulse.testing import perform as perform_on
from pulse.testing import work_off as work_off_on
from pulse.worker.outcomes import RemoteError, described

__all__ = ["Done", "install_pulse", "perform", "work_off"]


def install_pulse(database: str = DEFAULT_DB_ALIAS) -> None:
    """Install pulse as `migrate` does, into a test database without migrations."""
    carry_out(connections[database], install.plan)


def work_off(
    lanes: Iterable[str] | None = None,
    *,
    database: str = DEFAULT_DB_ALIAS,
    max_jobs: int = 1000,
) -> list[Done]:
    """Run the tasks that are ready, one after another, until none is left.

    Tasks run in this thread, also async ones and those of processes, and see what the
    test has written. Delayed and retrying ones stay where they are.

    Args:
        lanes: The lanes to work off; None, the queues of the backend.
        database: The alias of the database.
        max_jobs: After how many runs to return.

    Returns:
        One Done for each run, in their order.
    """
    worker = worker_here(lanes, database)
    if not worker.tasks:
        return []
    return work_off_on(connections[database], worker, max_jobs=max_jobs)


def perform(task: Any, *, database: str = DEFAULT_DB_ALIAS) -> Done:
    """Run this one task now, whenever it is due.

    Args:
        task: A TaskResult, a handle or a job's id.
        database: The alias of the database.

    Returns:
        How the run ended.

    Raises:
        WrongState: The job cannot run: it has ended, or awaits approval.
    """
    number = int(getattr(task, "id", task))
    worker = worker_here(None, database)
    return perform_on(connections[database], worker, number)


def worker_here(lanes: Iterable[str] | None, database: str) -> pulse.Worker:
    found = discover(database)
    worker = pulse.Worker(
        "",
        name="test",
        lanes=dict.fromkeys(queues(database) if lanes is None else lanes, 1),
        tasks=[bind_to_test_connection(task, database) for task in found.values()],
    )
    set_worker_name(worker.name)
    return worker


def bind_to_test_connection(
    task: pulse.Task[Any, Any], database: str
) -> pulse.Task[Any, Any]:
    def run(job: Job) -> Any:
        try:
            with Savepoint(database):
                return (
                    async_to_sync(wait_for)(task, job)
                    if task.is_async
                    else task.run(job)
                )
        except SystemExit as error:
            # It ends the run, and not the test.
            raise RemoteError(described(error)) from error

    return pulse.Task(task.kind, run)


async def wait_for(task: pulse.Task[Any, Any], job: Job) -> Any:
    return await task.run(job)


class Savepoint:
    """A statement that failed must not end the transaction of the test.

    Then all that the task wrote is rolled back. What a task wrote that failed
    otherwise stays, as it does in production.
    """

    def __init__(self, database: str) -> None:
        self._connection = connections[database]
        self._inside = self._connection.in_atomic_block

    def __enter__(self) -> None:
        if self._inside:
            self._connection.connection.execute("SAVEPOINT pulse_run")

    def __exit__(self, *_: object) -> None:
        if not self._inside:
            return
        raw = self._connection.connection
        if raw.info.transaction_status == TransactionStatus.INERROR:
            self._connection.needs_rollback = False
            raw.execute("ROLLBACK TO SAVEPOINT pulse_run")
        raw.execute("RELEASE SAVEPOINT pulse_run")
