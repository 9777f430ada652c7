"""What a handler gets: the job, and through it progress, checkpoints, steps, stops."""

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
"""What the server answers to a heartbeat or a report."""
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
    """One run of a job. id and attempt together are unique: a dedup key."""

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
    """What checkpoint() stored in an earlier attempt; None in the first."""
    group_key: str | None = None
    headers: Any = None
    """What enqueue was given as headers: context, such as that of a trace."""
    flow: str | None = None
    name: str | None = None
    control: Control = field(default_factory=Control, repr=False)
    _steps: dict[str, Any] | None = field(default=None, repr=False)
    _begun: set[str] | None = field(default=None, repr=False)

    @property
    def node(self) -> int:
        """The number of the database that it was claimed from."""
        return lease_node(self.lease)

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was requested for this job, or its lease is lost."""
        requested = self.control.status in ("cancel", "lost")
        self.control.seen |= requested
        return requested

    def should_continue(self) -> bool:
        """False once the run should end: cancelled, too long, lost, or a shutdown.

        A handler that returns None after this was false releases the job (or
        acknowledges the cancel); one that returns a result completes it.
        """
        stop = self.control.must_stop
        self.control.seen |= stop
        return not stop

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report how far it is, from 0 to 1. Cheap: sent at most once a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
        if note is not None:
            note = to_text(str(note), LONGEST_NOTE)
        self.control.progress(self.lease, float(fraction), note)

    # Made from checkpoint_async by tools/twins.py.
    def checkpoint(self, data: Any) -> None:
        """Store data for the next attempt; returns when it is stored.

        Raises LeaseLost when this worker has lost the job, TooLarge above 1 MB.
        """
        self._ask("checkpoint", data=to_stored_json(data, "checkpoint"))

    async def checkpoint_async(self, data: Any) -> None:
        """Store data for the next attempt; returns when it is stored.

        Raises LeaseLost when this worker has lost the job, TooLarge above 1 MB.
        """
        await self._ask_async("checkpoint", data=to_stored_json(data, "checkpoint"))

    # Made from upstream_async by tools/twins.py.
    def upstream(self) -> list[Upstream]:
        """The jobs that this one depends on, by id: how they ended, what they gave."""
        return [Upstream(*row) for row in self._ask("upstream")]

    async def upstream_async(self) -> list[Upstream]:
        """The jobs that this one depends on, by id: how they ended, what they gave."""
        return [Upstream(*row) for row in await self._ask_async("upstream")]

    # Made from spawn_async by tools/twins.py.
    def spawn(self, step: str, jobs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Add jobs to this one's flow; jobs that wait for this job wait for them too.

        Once for each step: a later attempt gets the ids of the first.
        """
        return _ids(self._ask("spawn", **self._spawning(step, jobs)))

    async def spawn_async(
        self, step: str, jobs: Iterable[Mapping[str, Any]]
    ) -> list[int]:
        """Add jobs to this one's flow; jobs that wait for this job wait for them too.

        Once for each step: a later attempt gets the ids of the first.
        """
        return _ids(await self._ask_async("spawn", **self._spawning(step, jobs)))

    # Made from step_async by tools/twins.py.
    def step(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """What function returned when it first succeeded, in this attempt or before.

        Its result is stored as JSON. A worker that dies between the call and the
        store calls it again: give what it calls the job's id and this name as a key.
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
        """What function returned when it first succeeded, in this attempt or before.

        Its result is stored as JSON. A worker that dies between the call and the
        store calls it again: give what it calls the job's id and this name as a key.
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
        """Give the job back until duration has passed, once for each name.

        Ends this run by raising Suspended; the next one goes on behind it.
        """
        waiting = self._waiting(name, duration)
        self._waited(name, self._ask("wait_for", **waiting))

    async def sleep_async(self, name: str, duration: Duration) -> None:
        """Give the job back until duration has passed, once for each name.

        Ends this run by raising Suspended; the next one goes on behind it.
        """
        waiting = self._waiting(name, duration)
        self._waited(name, await self._ask_async("wait_for", **waiting))

    # Made from wait_for_async by tools/twins.py.
    def wait_for(
        self, signal: str, timeout: Duration, *, step: str | None = None
    ) -> Any:
        """The payload of a signal; raises TimedOut when none came in time.

        Until then the job is given back: this run ends by raising Suspended, and the
        next one comes here again. step is its name, by default that of the signal.
        """
        waiting = self._waiting(step or signal, timeout, signal)
        return self._waited(signal, self._ask("wait_for", **waiting), signal)

    async def wait_for_async(
        self, signal: str, timeout: Duration, *, step: str | None = None
    ) -> Any:
        """The payload of a signal; raises TimedOut when none came in time.

        Until then the job is given back: this run ends by raising Suspended, and the
        next one comes here again. step is its name, by default that of the signal.
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
