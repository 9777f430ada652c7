"""What a handler gets: the job, and how to talk about its run while it runs."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pulse.options import to_json

Verdict = Literal["ok", "lost", "cancel", "deadline"]


class Control:
    """The other end of a run: set by the worker, read through Job.

    seen notes that the handler was told to stop; if it then returns nothing it has
    stopped, it has not finished. leased_until is the earliest moment, by this machine's
    monotonic clock, at which the lease can be gone.
    """

    __slots__ = ("leased_until", "seen", "stopping", "verdict")

    def __init__(self) -> None:
        self.verdict: Verdict = "ok"
        self.stopping = False
        self.seen = False
        self.leased_until = math.inf

    @property
    def may_begin(self) -> bool:
        """Not when the answer to the claim took so long that the lease may be gone."""
        return not self.must_stop and time.monotonic() < self.leased_until

    @property
    def must_stop(self) -> bool:
        return self.stopping or self.verdict != "ok"

    def progress(self, fraction: float, note: str | None) -> None:
        """Remember how far the run has come."""

    def checkpoint(self, data: str) -> Future[None]:
        """Keep data (JSON) for the next attempt."""
        done: Future[None] = Future()
        done.set_result(None)
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
    """What checkpoint() kept in an earlier attempt; None in the first."""
    group_key: str | None = None
    control: Control = field(default_factory=Control, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to cancel this job, or its lease is gone."""
        asked = self.control.verdict in ("cancel", "lost")
        self.control.seen |= asked
        return asked

    def should_continue(self) -> bool:
        """False once the run should end: cancelled, too long, lost, or a shutdown.

        A handler that returns None after it saw this gives the job back (or
        acknowledges the cancel); one that returns a result has completed it.
        """
        stop = self.control.must_stop
        self.control.seen |= stop
        return not stop

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Say how far it is, from 0 to 1. Costs nothing: sent at most once a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
        self.control.progress(float(fraction), note)

    def checkpoint(self, data: Any) -> None:
        """Keep data for the next attempt; returns when it is stored.

        Raises LeaseLost when the job is not this worker's any more.
        """
        self.control.checkpoint(to_json(data, "checkpoint")).result()

    async def checkpoint_async(self, data: Any) -> None:
        """The same for async handlers, without blocking the event loop."""
        await asyncio.wrap_future(self.control.checkpoint(to_json(data, "checkpoint")))
