"""work_off, perform, pass_time and forget_jobs: run jobs inside a test.

Tests call them through pulse.testing. They claim, run and report as a worker does, but
on the connection of the test, in its transaction and in its thread.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb, set_json_loads

from pulse import errors
from pulse.handles import Handle
from pulse.job import Control, Job, Rows
from pulse.options import Duration, to_interval
from pulse.sql import operator, testing
from pulse.sql import worker as sql
from pulse.tasks import Task
from pulse.worker import Worker, outcomes, protocol
from pulse.worker.outcomes import Outcome

if TYPE_CHECKING:
    from typing_extensions import LiteralString

FIRST = 2_000_000_000


@dataclass(frozen=True)
class Done:
    """How one run ended: outcome is complete, fail, snooze, release or wait.

    result is what the handler returned, error the text of what it raised.
    """

    job: Job
    outcome: str
    result: Any = None
    error: str | None = None


class Direct(Control):
    """A Control that calls the server on the test's connection at once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__()
        self._connection = connection

    def progress(self, lease: int, fraction: float, note: str | None) -> None:
        values = {"lease": lease, "fraction": fraction, "note": note}
        _fetch(self._connection, sql.PROGRESS, values)

    def call(self, name: str, values: dict[str, Any]) -> Future[Rows]:
        done: Future[Rows] = Future()
        try:
            done.set_result(_fetch(self._connection, sql.CALLS[name], values))
        except errors.PulseError as error:
            done.set_exception(error)
        return done


def work_off(
    connection: Any,
    worker: Worker,
    *,
    lanes: Iterable[str] | None = None,
    max_jobs: int = 1000,
) -> list[Done]:
    """Run the jobs that are ready, one after another, until none is left.

    Jobs that handlers enqueue on this connection run too. Nothing is committed. An
    exception of a handler is not raised: it is an outcome, as in production.

    Args:
        connection: A connection of psycopg or Django, or of SQLAlchemy on psycopg.
        worker: The worker that has the handlers; it does not run.
        lanes: The lanes to work off; None, those of the worker.
        max_jobs: After how many runs to return.

    Returns:
        One Done for each run, in their order.

    Raises:
        TypeError: The connection is none of psycopg.

    Example:
        >>> from pulse.testing import work_off
        >>> worker.add(double)
        >>> handle = double.enqueue(connection, 21)
        >>> [done] = work_off(connection, worker)
        >>> done.outcome, done.result
        ('complete', 42)
    """
    connection = psycopg_of(connection)
    done: list[Done] = []
    for lane in lanes or worker.lanes:
        while len(done) < max_jobs:
            job = _claim(connection, worker, lane)
            if job is None:
                break
            done.append(_run(connection, worker.tasks[job.kind], job))
    return done


def perform(connection: Any, worker: Worker, job: int | Handle[Any]) -> Done:
    """Run this one job now, before any other and whenever it is due.

    Args:
        connection: A connection of psycopg or Django, or of SQLAlchemy on psycopg.
        worker: The worker that has the handlers; it does not run.
        job: The id of the job, or its handle.

    Returns:
        How the run ended.

    Raises:
        WrongState: The job cannot run: it has ended, or awaits approval.
        LookupError: The worker has no handler for the kind, or the lane is paused.

    Example:
        >>> from pulse.testing import perform
        >>> worker.add(double)
        >>> handle = double.using(delay="1 day").enqueue(connection, 21)
        >>> perform(connection, worker, handle).result
        42
    """
    connection = psycopg_of(connection)
    job_id = job if isinstance(job, int) else job.id
    _fetch(connection, operator.RUN_NOW, {"job_id": job_id, "reason": None})
    [(lane, kind, priority)] = _fetch(connection, testing.PLACE, {"job_id": job_id})
    first = {"job_id": job_id, "priority": FIRST, "reason": None}
    _fetch(connection, operator.REPRIORITIZE, first)
    claimed = _claim(connection, worker, lane, kind)
    if claimed is None or claimed.id != job_id:
        raise LookupError(
            f"job {job_id} ({kind}) cannot be claimed from lane {lane}: does the "
            "worker have a handler for its kind, and is the lane open?"
        )
    claimed.priority = priority
    return _run(connection, worker.tasks[kind], claimed)


def pass_time(connection: Any, by: Duration) -> int:
    """Let time pass for scheduled and retrying jobs: each is due so much earlier.

    Leases, unique_for, start_by and the clock itself stay as they are.

    Args:
        connection: A connection of psycopg or Django, or of SQLAlchemy on psycopg.
        by: How much time passes.

    Returns:
        How many jobs are due after that.

    Example:
        >>> from pulse.testing import pass_time
        >>> handle = double.using(delay="1 day").enqueue(connection, 21)
        >>> pass_time(connection, "2 days")
        1
    """
    connection = psycopg_of(connection)
    due = 0
    for job_id, run_at in _fetch(connection, testing.LATER, {"by": to_interval(by)}):
        values = {"job_id": job_id, "run_at": run_at, "reason": None}
        [(state,)] = _fetch(connection, operator.RESCHEDULE, values)
        due += state == "ready"
    return due


def forget_jobs(connection: Any) -> int:
    """Remove every job, after a test that commits.

    Args:
        connection: A connection of psycopg or Django, or of SQLAlchemy on psycopg.

    Returns:
        How many jobs there were.

    Example:
        >>> from pulse.testing import forget_jobs
        >>> handle = double.enqueue(connection, 21)
        >>> forget_jobs(connection)
        1
    """
    connection = psycopg_of(connection)
    values = {
        "filter": Jsonb({"all": True}),
        "force": True,
        "max_jobs": 100_000,
        "dry_run": False,
        "reason": None,
    }
    _fetch(connection, operator.CANCEL_WHERE, values)
    removed, done, remaining = 0, 1, 1
    while done and remaining:  # A job is deleted after its dependents.
        [(done, remaining)] = _fetch(connection, operator.DISCARD_WHERE, values)
        removed += done
    return removed


def psycopg_of(connection: Any) -> psycopg.Connection[Any]:
    """Return the connection of psycopg below one of Django or SQLAlchemy."""
    found = connection
    if hasattr(found, "ensure_connection"):
        found.ensure_connection()
        found = found.connection
    elif not isinstance(found, psycopg.Connection):
        if callable(getattr(found, "connection", None)):
            found = found.connection()
        found = getattr(getattr(found, "connection", found), "driver_connection", found)
    if not isinstance(found, psycopg.Connection):
        raise TypeError(
            "jobs are worked off on a connection of psycopg, or of Django or "
            f"SQLAlchemy on psycopg, not on a {type(connection).__name__}"
        )
    return found


def _claim(
    connection: psycopg.Connection[Any],
    worker: Worker,
    lane: str,
    kind: str | None = None,
) -> Job | None:
    values = {
        "worker": worker.name,
        "wants": json.dumps({lane: 1}),
        "completed": "{}",
        "done": "[]",
        "failed": "[]",
        "kinds": sorted(worker.tasks) if kind is None else [kind],
        "lease_for": None,
    }
    rows = _fetch(connection, sql.EXCHANGE, values)
    return protocol.job_from_row(rows[0], Control()) if rows else None


def _run(connection: psycopg.Connection[Any], task: Task[Any, Any], job: Job) -> Done:
    control = job.control = Direct(connection)
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
    _fetch(connection, *protocol.report_call(job, outcome))


def _fetch(
    connection: psycopg.Connection[Any], query: LiteralString, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    with errors.mapped(), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        # Django's connections give JSON as text.
        set_json_loads(json.loads, cursor)
        before = cursor.execute(sql.PATIENCE).fetchall()
        rows = cursor.execute(query, values).fetchall()
        # The statements of a worker set it; this transaction is the test's.
        cursor.execute(sql.SET_PATIENCE, before[0])
        return rows
