"""Run jobs inside a test: this connection, this transaction, no thread, no clock.

    def test_signup(conn):
        sign_up(conn, "a@b.c")                    # enqueues in the test's transaction
        [done] = pulse.testing.work_off(conn, worker)
        assert done.outcome == "complete"

With `pytest_plugins = ["pulse.testing"]` in conftest.py the fixture pulse_work_off is
the same function. Delayed and retrying jobs do not run: enqueue them without
a delay, or retry them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pulse import errors
from pulse.job import Control, Job, Rows
from pulse.sql import worker as sql
from pulse.tasks import Task
from pulse.worker import Worker, answer, exchange, outcomes
from pulse.worker.outcomes import Outcome

with contextlib.suppress(ImportError):
    import pytest

    @pytest.fixture
    def pulse_work_off() -> Callable[..., list[Done]]:
        """pulse.testing.work_off as a fixture."""
        return work_off


@dataclass(frozen=True)
class Done:
    """One run: outcome is complete, fail, snooze, release or wait."""

    job: Job
    outcome: str
    result: Any = None
    error: str | None = None


class Direct(Control):
    """Progress, checkpoints and steps go through the test's connection at once."""

    def __init__(self, connection: psycopg.Connection[Any], lease: int) -> None:
        super().__init__()
        self._connection = connection
        self._lease = lease

    def progress(self, fraction: float, note: str | None) -> None:
        values = {"lease": self._lease, "fraction": fraction, "note": note}
        _fetch(self._connection, sql.PROGRESS, values)

    def call(self, name: str, **values: Any) -> Future[Rows]:
        done: Future[Rows] = Future()
        try:
            values["lease"] = self._lease
            done.set_result(_fetch(self._connection, sql.CALLS[name], values))
        except errors.PulseError as error:
            done.set_exception(error)
        return done


def work_off(
    connection: psycopg.Connection[Any],
    worker: Worker,
    *,
    lanes: Mapping[str, int] | None = None,
    max_jobs: int = 1000,
) -> list[Done]:
    """Run what is ready, one job after another, until nothing is left.

    Jobs that handlers enqueue on this connection run too. Nothing is committed.
    Raises nothing that a handler raises: that is an outcome, as in production.
    """
    done: list[Done] = []
    for lane in lanes or worker.lanes:
        while len(done) < max_jobs:
            job = _claim(connection, worker, lane)
            if job is None:
                break
            done.append(_run(connection, worker.tasks[job.kind], job))
    return done


def _claim(
    connection: psycopg.Connection[Any], worker: Worker, lane: str
) -> Job | None:
    values = {
        "worker": worker.name,
        "wants": json.dumps({lane: 1}),
        "done": "[]",
        "failed": "[]",
        "kinds": sorted(worker.tasks),
        "lease_for": None,
    }
    rows = _fetch(connection, sql.EXCHANGE, values)
    return answer.job_of(rows[0], Control()) if rows else None


def _run(connection: psycopg.Connection[Any], task: Task[Any, Any], job: Job) -> Done:
    control = job.control = Direct(connection, job.lease)
    result = None
    try:
        result = _wait_for(task.run(job)) if task.is_async else task.run(job)
        outcome = outcomes.returned(control, result)
    except (Exception, errors.Suspended) as error:
        outcome = outcomes.raised(control, error)
    _report(connection, job, outcome)
    return Done(job, outcome.verb, result, outcome.error)


def _wait_for(coroutine: Any) -> Any:
    """Run it to its end, also where an event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(coroutine))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


def _report(connection: psycopg.Connection[Any], job: Job, outcome: Outcome) -> None:
    if outcome.verb in ("drop", "wait"):
        return
    if outcome.verb == "release":
        _fetch(connection, sql.RELEASE, {"leases": [job.lease]})
        return
    _fetch(connection, *exchange.call_of(job, outcome))


def _fetch(
    connection: psycopg.Connection[Any], query: str, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    with errors.mapped(), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(query, values).fetchall()
