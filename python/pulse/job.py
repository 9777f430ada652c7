"""Job: what a handler gets for one run, and what it can ask of the server meanwhile.

Through it the handler reads the payload, reports progress, stores checkpoints and
steps, waits for time or signals, and learns that it has to stop. The worker makes a Job
for each claimed job (worker/runs.py) and answers its calls through a Control.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pulse import errors
from pulse.ids import lease_node
from pulse.options import (
    Duration,
    to_interval_text,
    to_json,
    to_stored_json,
    to_text,
)
from pulse.producer import job_of

LONGEST_NOTE = 10_000
Status = Literal["ok", "lost", "cancel", "deadline"]
"""The answer of the server to a heartbeat or a report."""
Rows = list[tuple[Any, ...]]


class Upstream(NamedTuple):
    """A job that ended before this one could run."""

    job_id: int
    name: str | None
    kind: str
    state: str
    result: Any


class Control:
    """Whether a run has to stop, and its way to the server; the handler has it by Job.

    The worker sets status and stopping, the handler reads them. seen records that
    the handler has read that it must stop: if it then returns None it has stopped, it
    has not completed. leased_until is the earliest moment, by this machine's monotonic
    clock, at which the lease can have ended.
    """

    __slots__ = ("leased_until", "seen", "status", "stopping")

    def __init__(self, leased_until: float = math.inf) -> None:
        self.status: Status = "ok"
        self.stopping = False
        self.seen = False
        self.leased_until = leased_until

    @property
    def may_begin(self) -> bool:
        """False when the claim took so long that the lease may have ended."""
        stops = self.stopping or self.status != "ok"
        return not stops and time.monotonic() < self.leased_until

    @property
    def must_stop(self) -> bool:
        return self.stopping or self.status != "ok"

    def progress(self, lease: int, fraction: float, note: str | None) -> None:
        """Store how far the run is."""

    def call(self, name: str, values: dict[str, Any]) -> Future[Rows]:
        """Call one of sql.worker.CALLS; values holds the lease."""
        done: Future[Rows] = Future()
        done.set_result([])
        return done


@dataclass(eq=False)
class Job:
    """One run of a job, as its handler gets it.

    id and attempt together are unique: use them as a key where a repeated run would do
    harm. payload is the object that was enqueued. failures counts the runs before this
    one that count against max_attempts. deadline is when max_runtime ends the run.

    Example:
        >>> @worker.handle("greet")
        ... def greet(job: pulse.Job, name: str) -> str:
        ...     return f"{name}, attempt {job.attempt} of {job.max_attempts}"
        >>> job_id = pulse.enqueue(connection, "greet", {"name": "ann"})
        >>> [done] = work_off(connection, worker)
        >>> done.result
        'ann, attempt 1 of 3'
    """

    lease: int
    id: int
    lane: str
    kind: str
    payload: Any
    attempt: int = 1
    failures: int = 0
    max_attempts: int = 3
    priority: int = 0
    deadline: datetime | None = None
    enqueued_at: datetime | None = None
    last_checkpoint: Any = None
    """The data that checkpoint() stored in an earlier attempt; None in the first."""
    group_key: str | None = None
    headers: Any = None
    """The headers of enqueue: context, such as that of a trace."""
    flow: str | None = None
    name: str | None = None
    control: Control = field(default_factory=Control, repr=False)
    _steps: dict[str, Any] | None = field(default=None, repr=False)
    _begun: set[str] | None = field(default=None, repr=False)

    @property
    def node(self) -> int:
        """The number of the database that the job was claimed from."""
        return lease_node(self.lease)

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was requested for this job, or its lease is lost."""
        requested = self.control.status in ("cancel", "lost")
        self.control.seen |= requested
        return requested

    def should_continue(self) -> bool:
        """Tell the handler whether to go on: no cancel, deadline, loss or shutdown.

        A handler that returns None after this was False releases the job (or
        acknowledges the cancel). One that returns a result completes it.

        Returns:
            Whether the handler may go on.

        Example:
            >>> @worker.handle("export")
            ... def export(job):
            ...     for page in range(3):
            ...         if not job.should_continue():
            ...             return None
            ...     return "all pages"
            >>> job_id = pulse.enqueue(connection, "export")
            >>> [done] = work_off(connection, worker)
            >>> done.result
            'all pages'
        """
        stop = self.control.must_stop
        self.control.seen |= stop
        return not stop

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report how far the run is; sent at most once a second, so calls are cheap.

        Args:
            fraction: From 0 to 1.
            note: A text for operators; of a long one the middle is left out.

        Raises:
            ValueError: The fraction is not between 0 and 1.

        Example:
            >>> @worker.handle("export")
            ... def export(job):
            ...     job.progress(0.5, note="page 3 of 6")
            >>> job_id = pulse.enqueue(connection, "export")
            >>> [done] = work_off(connection, worker)
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
        if note is not None:
            note = to_text(str(note), LONGEST_NOTE)
        self.control.progress(self.lease, float(fraction), note)

    # Made from checkpoint_async by tools/twins.py.
    def checkpoint(self, data: Any) -> None:
        """Store data for the next attempt, which reads it as last_checkpoint.

        Args:
            data: Any JSON up to 1 MB; it replaces the checkpoint before it.

        Raises:
            LeaseLost: This worker has lost the job.
            TooLarge: The data has more than 1 MB.
            InvalidArgument: The data cannot be written as JSON.

        Example:
            >>> @worker.handle("import")
            ... def import_rows(job):
            ...     start = job.last_checkpoint or 0
            ...     job.checkpoint(start + 100)
            >>> job_id = pulse.enqueue(connection, "import")
            >>> [done] = work_off(connection, worker)
            >>> done.outcome
            'complete'
        """
        self._ask("checkpoint", data=to_stored_json(data, "checkpoint"))

    async def checkpoint_async(self, data: Any) -> None:
        """Store data for the next attempt, which reads it as last_checkpoint.

        Args:
            data: Any JSON up to 1 MB; it replaces the checkpoint before it.

        Raises:
            LeaseLost: This worker has lost the job.
            TooLarge: The data has more than 1 MB.
            InvalidArgument: The data cannot be written as JSON.

        Example:
            >>> @worker.handle("import")
            ... async def import_rows(job):
            ...     start = job.last_checkpoint or 0
            ...     await job.checkpoint_async(start + 100)
            >>> job_id = pulse.enqueue(connection, "import")
            >>> [done] = work_off(connection, worker)
            >>> done.outcome
            'complete'
        """
        await self._ask_async("checkpoint", data=to_stored_json(data, "checkpoint"))

    # Made from upstream_async by tools/twins.py.
    def upstream(self) -> list[Upstream]:
        """Read the jobs that this one depends on: how they ended, what they returned.

        Returns:
            One Upstream for each job, ordered by id.

        Raises:
            LeaseLost: This worker has lost the job.

        Example:
            >>> worker.add(double)
            >>> @worker.handle("sum")
            ... def add_up(job):
            ...     return sum([each.result for each in job.upstream()])
            >>> first = pulse.enqueue(connection, "double", {"n": 1})
            >>> last = pulse.enqueue(connection, "sum", after=[first])
            >>> [one, two] = work_off(connection, worker)
            >>> two.result
            2
        """
        return [Upstream(*row) for row in self._ask("upstream")]

    async def upstream_async(self) -> list[Upstream]:
        """Read the jobs that this one depends on: how they ended, what they returned.

        Returns:
            One Upstream for each job, ordered by id.

        Raises:
            LeaseLost: This worker has lost the job.

        Example:
            >>> worker.add(double)
            >>> @worker.handle("sum")
            ... async def add_up(job):
            ...     return sum([each.result for each in await job.upstream_async()])
            >>> first = pulse.enqueue(connection, "double", {"n": 1})
            >>> last = pulse.enqueue(connection, "sum", after=[first])
            >>> [one, two] = work_off(connection, worker)
            >>> two.result
            2
        """
        return [Upstream(*row) for row in await self._ask_async("upstream")]

    # Made from spawn_async by tools/twins.py.
    def spawn(self, step: str, jobs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Add jobs to this one's flow; jobs that wait for this job wait for them too.

        They are added once for each step: a later attempt gets the ids of the first.

        Args:
            step: A name that no other step of this job has.
            jobs: Dicts with a kind, a payload and options, as enqueue_many takes them.

        Returns:
            The ids of the jobs, in their order.

        Raises:
            LeaseLost: This worker has lost the job.
            InvalidArgument: A job is not allowed, or this run has used the step's name.

        Example:
            >>> worker.add(double)
            >>> @worker.handle("import")
            ... def import_all(job):
            ...     pages = [{"kind": "double", "payload": {"n": n}} for n in (1, 2)]
            ...     return len(job.spawn("pages", pages))
            >>> job_id = pulse.enqueue(connection, "import", flow="import 7")
            >>> [done, *pages] = work_off(connection, worker)
            >>> done.result, len(pages)
            (2, 2)
        """
        return _ids(self._ask("spawn", **self._spawning(step, jobs)))

    async def spawn_async(
        self, step: str, jobs: Iterable[Mapping[str, Any]]
    ) -> list[int]:
        """Add jobs to this one's flow; jobs that wait for this job wait for them too.

        They are added once for each step: a later attempt gets the ids of the first.

        Args:
            step: A name that no other step of this job has.
            jobs: Dicts with a kind, a payload and options, as enqueue_many takes them.

        Returns:
            The ids of the jobs, in their order.

        Raises:
            LeaseLost: This worker has lost the job.
            InvalidArgument: A job is not allowed, or this run has used the step's name.

        Example:
            >>> worker.add(double)
            >>> @worker.handle("import")
            ... async def import_all(job):
            ...     pages = [{"kind": "double", "payload": {"n": n}} for n in (1, 2)]
            ...     return len(await job.spawn_async("pages", pages))
            >>> job_id = pulse.enqueue(connection, "import", flow="import 7")
            >>> [done, *pages] = work_off(connection, worker)
            >>> done.result, len(pages)
            (2, 2)
        """
        return _ids(await self._ask_async("spawn", **self._spawning(step, jobs)))

    # Made from step_async by tools/twins.py.
    def step(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once for all attempts, and return what it returned.

        Its result is stored as JSON; a later attempt gets the stored result. If the
        worker dies between the call and the store, the next attempt calls the function
        again. So give the service that it calls an idempotency key, made of the job's
        id and the step's name.

        Args:
            name: A name that no other step of this job has.
            function: What to call.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The result of the first call that succeeded, in this attempt or before.

        Raises:
            LeaseLost: This worker has lost the job.
            TooLarge: The result has more than 1 MB.
            InvalidArgument: The result is no JSON, or this run has used the name.

        Example:
            >>> @worker.handle("bill")
            ... def bill(job):
            ...     return job.step("total", sum, [1, 2, 3])
            >>> job_id = pulse.enqueue(connection, "bill")
            >>> [done] = work_off(connection, worker)
            >>> done.result
            6
        """
        self._begin(name)
        if self._steps is None:
            self._steps = _steps(self._ask("steps"))
        if name in self._steps:
            return self._steps[name]
        value = _value(function(*args, **kwargs))
        result = to_stored_json(value, f"step {name!r}")
        rows = self._ask("save_step", step=name, result=result)
        return rows[0][0] if rows else None

    async def step_async(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once for all attempts, and return what it returned.

        Its result is stored as JSON; a later attempt gets the stored result. If the
        worker dies between the call and the store, the next attempt calls the function
        again. So give the service that it calls an idempotency key, made of the job's
        id and the step's name.

        Args:
            name: A name that no other step of this job has.
            function: What to call.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The result of the first call that succeeded, in this attempt or before.

        Raises:
            LeaseLost: This worker has lost the job.
            TooLarge: The result has more than 1 MB.
            InvalidArgument: The result is no JSON, or this run has used the name.

        Example:
            >>> @worker.handle("bill")
            ... async def bill(job):
            ...     return await job.step_async("total", sum, [1, 2, 3])
            >>> job_id = pulse.enqueue(connection, "bill")
            >>> [done] = work_off(connection, worker)
            >>> done.result
            6
        """
        self._begin(name)
        if self._steps is None:
            self._steps = _steps(await self._ask_async("steps"))
        if name in self._steps:
            return self._steps[name]
        value = await _value_async(function(*args, **kwargs))
        result = to_stored_json(value, f"step {name!r}")
        rows = await self._ask_async("save_step", step=name, result=result)
        return rows[0][0] if rows else None

    # Made from sleep_async by tools/twins.py.
    def sleep(self, name: str, duration: Duration) -> None:
        """Release the job until duration has passed, once for each name.

        The call ends this run by raising Suspended. The next run calls it again, and
        goes on behind it.

        Args:
            name: A name that no other step of this job has.
            duration: How long to wait.

        Raises:
            Suspended: The job waits; do not catch it.
            LeaseLost: This worker has lost the job.
            InvalidArgument: The duration is none, or this run has used the name.

        Example:
            >>> @worker.handle("trial")
            ... def trial(job):
            ...     job.sleep("two weeks", "14 days")
            ...     return "over"
            >>> job_id = pulse.enqueue(connection, "trial")
            >>> [done] = work_off(connection, worker)
            >>> done.outcome
            'wait'
        """
        waiting = self._waiting(name, duration)
        self._waited(name, self._ask("wait_for", **waiting))

    async def sleep_async(self, name: str, duration: Duration) -> None:
        """Release the job until duration has passed, once for each name.

        The call ends this run by raising Suspended. The next run calls it again, and
        goes on behind it.

        Args:
            name: A name that no other step of this job has.
            duration: How long to wait.

        Raises:
            Suspended: The job waits; do not catch it.
            LeaseLost: This worker has lost the job.
            InvalidArgument: The duration is none, or this run has used the name.

        Example:
            >>> @worker.handle("trial")
            ... async def trial(job):
            ...     await job.sleep_async("two weeks", "14 days")
            ...     return "over"
            >>> job_id = pulse.enqueue(connection, "trial")
            >>> [done] = work_off(connection, worker)
            >>> done.outcome
            'wait'
        """
        waiting = self._waiting(name, duration)
        self._waited(name, await self._ask_async("wait_for", **waiting))

    # Made from wait_for_async by tools/twins.py.
    def wait_for(
        self, signal: str, timeout: Duration, *, step: str | None = None
    ) -> Any:
        """Release the job until a signal comes, and return the payload of the signal.

        Unless the signal is there already, the call ends this run by raising
        Suspended. The next run calls it again, and gets the payload.

        Args:
            signal: The name of the signal (pulse.signal).
            timeout: How long to wait for it.
            step: The name of this step; None is the name of the signal.

        Returns:
            The payload of the signal.

        Raises:
            Suspended: The job waits; do not catch it.
            TimedOut: No signal came in time.
            LeaseLost: This worker has lost the job.
            InvalidArgument: The timeout is none, or this run has used the step's name.

        Example:
            >>> @worker.handle("order")
            ... def order(job):
            ...     return job.wait_for("paid 7", "1 day")
            >>> job_id = pulse.enqueue(connection, "order")
            >>> [done] = work_off(connection, worker)
            >>> pulse.signal(connection, "paid 7", {"euros": 9})
            1
            >>> [done] = work_off(connection, worker)
            >>> done.result
            {'euros': 9}
        """
        waiting = self._waiting(step or signal, timeout, signal)
        return self._waited(signal, self._ask("wait_for", **waiting), signal)

    async def wait_for_async(
        self, signal: str, timeout: Duration, *, step: str | None = None
    ) -> Any:
        """Release the job until a signal comes, and return the payload of the signal.

        Unless the signal is there already, the call ends this run by raising
        Suspended. The next run calls it again, and gets the payload.

        Args:
            signal: The name of the signal (pulse.signal).
            timeout: How long to wait for it.
            step: The name of this step; None is the name of the signal.

        Returns:
            The payload of the signal.

        Raises:
            Suspended: The job waits; do not catch it.
            TimedOut: No signal came in time.
            LeaseLost: This worker has lost the job.
            InvalidArgument: The timeout is none, or this run has used the step's name.

        Example:
            >>> @worker.handle("order")
            ... async def order(job):
            ...     return await job.wait_for_async("paid 7", "1 day")
            >>> job_id = pulse.enqueue(connection, "order")
            >>> [done] = work_off(connection, worker)
            >>> pulse.signal(connection, "paid 7", {"euros": 9})
            1
            >>> [done] = work_off(connection, worker)
            >>> done.result
            {'euros': 9}
        """
        waiting = self._waiting(step or signal, timeout, signal)
        return self._waited(
            signal, await self._ask_async("wait_for", **waiting), signal
        )

    def _ask(self, name: str, **values: Any) -> Rows:
        """Call one of sql.worker.CALLS and wait for the answer."""
        return self._send(name, **values).result()

    async def _ask_async(self, name: str, **values: Any) -> Rows:
        return await asyncio.wrap_future(self._send(name, **values))

    def _send(self, name: str, **values: Any) -> Future[Rows]:
        """Call one of sql.worker.CALLS with the lease of this run."""
        return self.control.call(name, {"lease": self.lease, **values})

    def _begin(self, step: str) -> None:
        if self._begun is None:
            self._begun = set()
        if step in self._begun:
            raise errors.InvalidArgument(
                f"step {step!r} was used before in this run",
                hint="Give each step a name of its own, such as f'page {n}'.",
            )
        self._begun.add(step)

    def _spawning(self, step: str, jobs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        self._begin(step)
        elements = [job_of(job, {}) for job in jobs]
        return {"step": step, "jobs": to_json(elements, "the list of jobs")}

    def _waiting(
        self, step: str, timeout: Duration, signal: str | None = None
    ) -> dict[str, Any]:
        self._begin(step)
        text = to_interval_text(timeout, "the timeout")
        return {"step": step, "timeout": text, "signal": signal}

    def _waited(self, what: str, rows: Rows, signal: str | None = None) -> Any:
        status, payload = rows[0] if rows else ("timeout", None)
        if status == "waiting":
            raise errors.Suspended(what)
        if status == "timeout" and signal is not None:
            raise errors.TimedOut(f"no signal {signal!r} came in time")
        return payload


def _value(returned: Any) -> Any:
    return returned


async def _value_async(returned: Any) -> Any:
    """The result of a step; in an async handler its function may be async as well."""
    return await returned if inspect.isawaitable(returned) else returned


def _ids(rows: Rows) -> list[int]:
    return [int(row[0]) for row in rows]


def _steps(rows: Rows) -> dict[str, Any]:
    return {str(step): result for step, result in rows}
