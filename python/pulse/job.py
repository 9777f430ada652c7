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
from pulse.nodes import lease_node
from pulse.options import (
    Duration,
    to_interval_text,
    to_json,
    to_stored_json,
    to_text,
)
from pulse.producer import job_of

LONGEST_NOTE = 10_000
Verdict = Literal["ok", "lost", "cancel", "deadline"]
Rows = list[tuple[Any, ...]]


class Upstream(NamedTuple):
    """A job that ended before this one could run."""

    job_id: int
    name: str | None
    kind: str
    state: str
    result: Any


class Control:
    """The worker's side of a run: set by the worker, read through Job.

    seen records that the handler has read that it must stop; if it then returns None
    it has stopped, it has not completed. leased_until is the earliest moment, by this
    machine's monotonic clock, at which the lease can have ended.
    """

    __slots__ = ("leased_until", "seen", "stopping", "verdict")

    def __init__(self, leased_until: float = math.inf) -> None:
        self.verdict: Verdict = "ok"
        self.stopping = False
        self.seen = False
        self.leased_until = leased_until

    @property
    def may_begin(self) -> bool:
        """False when the claim took so long that the lease may have ended."""
        stops = self.stopping or self.verdict != "ok"
        return not stops and time.monotonic() < self.leased_until

    @property
    def must_stop(self) -> bool:
        return self.stopping or self.verdict != "ok"

    def progress(self, fraction: float, note: str | None) -> None:
        """Store how far the run is."""

    def call(self, name: str, **values: Any) -> Future[Rows]:
        """One of sql.worker.CALLS for this lease."""
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
        requested = self.control.verdict in ("cancel", "lost")
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
        self.control.progress(float(fraction), note)

    def checkpoint(self, data: Any) -> None:
        """Store data for the next attempt; returns when it is stored.

        Raises LeaseLost when this worker has lost the job, TooLarge above 1 MB.
        """
        self.control.call(
            "checkpoint", data=to_stored_json(data, "checkpoint")
        ).result()

    async def checkpoint_async(self, data: Any) -> None:
        """The same for async handlers, without blocking the event loop."""
        await self._call("checkpoint", data=to_stored_json(data, "checkpoint"))

    def upstream(self) -> list[Upstream]:
        """The jobs that this one depends on, by id: how they ended, what they gave."""
        return [Upstream(*row) for row in self.control.call("upstream").result()]

    async def upstream_async(self) -> list[Upstream]:
        return [Upstream(*row) for row in await self._call("upstream")]

    def spawn(self, step: str, jobs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Add jobs to this one's flow; who waits for this job waits for them too.

        Once for each step: a later attempt gets the ids of the first.
        """
        return _ids(self.control.call("spawn", **self._spawning(step, jobs)).result())

    async def spawn_async(
        self, step: str, jobs: Iterable[Mapping[str, Any]]
    ) -> list[int]:
        return _ids(await self._call("spawn", **self._spawning(step, jobs)))

    def step(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """What function returned when it first succeeded, in this attempt or before.

        Its result is stored as JSON. A worker that dies between the call and the
        store calls it again: give what it calls the job's id and this name as a key.
        """
        self._begin(name)
        if self._steps is None:
            self._steps = _steps(self.control.call("steps").result())
        if name in self._steps:
            return self._steps[name]
        result = to_stored_json(function(*args, **kwargs), f"step {name!r}")
        rows = self.control.call("save_step", step=name, result=result).result()
        return rows[0][0] if rows else None

    async def step_async(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """The same for async handlers; function may be async as well."""
        self._begin(name)
        if self._steps is None:
            self._steps = _steps(await self._call("steps"))
        if name in self._steps:
            return self._steps[name]
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        result = to_stored_json(value, f"step {name!r}")
        rows = await self._call("save_step", step=name, result=result)
        return rows[0][0] if rows else None

    def sleep(self, name: str, duration: Duration) -> None:
        """Give the job back until duration has passed, once for each name.

        Ends this run by raising Suspended; the next one goes on behind it.
        """
        waiting = self._waiting(name, duration)
        self._waited(name, self.control.call("wait_for", **waiting).result())

    async def sleep_async(self, name: str, duration: Duration) -> None:
        waiting = self._waiting(name, duration)
        self._waited(name, await self._call("wait_for", **waiting))

    def wait_for(
        self, signal: str, timeout: Duration, *, step: str | None = None
    ) -> Any:
        """The payload of a signal; raises TimedOut when none came in time.

        Until then the job is given back: this run ends by raising Suspended, and the
        next one comes here again. step is its name, by default that of the signal.
        """
        waiting = self._waiting(step or signal, timeout, signal)
        rows = self.control.call("wait_for", **waiting).result()
        return self._waited(signal, rows, signal)

    async def wait_for_async(
        self, signal: str, timeout: Duration, *, step: str | None = None
    ) -> Any:
        waiting = self._waiting(step or signal, timeout, signal)
        return self._waited(signal, await self._call("wait_for", **waiting), signal)

    async def _call(self, name: str, **values: Any) -> Rows:
        return await asyncio.wrap_future(self.control.call(name, **values))

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
        verdict, payload = rows[0] if rows else ("timeout", None)
        if verdict == "waiting":
            raise errors.Suspended(what)
        if verdict == "timeout" and signal is not None:
            raise errors.TimedOut(f"no signal {signal!r} came in time")
        return payload


def _ids(rows: Rows) -> list[int]:
    return [int(row[0]) for row in rows]


def _steps(rows: Rows) -> dict[str, Any]:
    return {str(step): result for step, result in rows}
