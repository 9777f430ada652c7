"""work_off, perform and pass_time: what is due runs here and now."""

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
    """One run: outcome is complete, fail, snooze, release or wait."""

    job: Job
    outcome: str
    result: Any = None
    error: str | None = None


class Direct(Control):
    """Progress, checkpoints and steps go through the test's connection at once."""

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
    """Run what is ready, one job after another, until nothing is left.

    Jobs that handlers enqueue on this connection run too. Nothing is committed.
    Raises nothing that a handler raises: that is an outcome, as in production.
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
    """Run this one job now, whatever is in line before it and whenever it is due.

    Raises WrongState where it cannot run: it has ended, or awaits approval.
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
    """Let time pass for jobs that wait for theirs; returns how many are due now.

    Scheduled and retrying jobs come so much earlier. Leases, unique_for, start_by and
    the clock itself stay as they are.
    """
    connection = psycopg_of(connection)
    due = 0
    for job_id, run_at in _fetch(connection, testing.LATER, {"by": to_interval(by)}):
        values = {"job_id": job_id, "run_at": run_at, "reason": None}
        [(state,)] = _fetch(connection, operator.RESCHEDULE, values)
        due += state == "ready"
    return due


def forget_jobs(connection: Any) -> int:
    """Remove every job, after a test that commits; returns how many there were."""
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
    while done and remaining:  # What others depend on goes after them.
        [(done, remaining)] = _fetch(connection, operator.DISCARD_WHERE, values)
        removed += done
    return removed


def psycopg_of(connection: Any) -> psycopg.Connection[Any]:
    """The connection of psycopg that Django or SQLAlchemy has below."""
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
