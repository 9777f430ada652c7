"""What a handler gets: the job, and through it progress, checkpoints and stops."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pulse.options import to_stored_json, to_text

LONGEST_NOTE = 10_000
Verdict = Literal["ok", "lost", "cancel", "deadline"]


class Control:
    """The worker's side of a run: set by the worker, read through Job.

    seen records that the handler has read that it must stop; if it then returns None
    it has stopped, it has not completed. leased_until is the earliest moment, by this
    machine's monotonic clock, at which the lease can have ended.
    """

    __slots__ = ("leased_until", "seen", "stopping", "verdict")

    def __init__(self) -> None:
        self.verdict: Verdict = "ok"
        self.stopping = False
        self.seen = False
        self.leased_until = math.inf

    @property
    def may_begin(self) -> bool:
        """False when the claim took so long that the lease may have ended."""
        return not self.must_stop and time.monotonic() < self.leased_until

    @property
    def must_stop(self) -> bool:
        return self.stopping or self.verdict != "ok"

    def progress(self, fraction: float, note: str | None) -> None:
        """Store how far the run is."""

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
    """What checkpoint() stored in an earlier attempt; None in the first."""
    group_key: str | None = None
    headers: Any = None
    """What enqueue was given as headers: context, such as that of a trace."""
    control: Control = field(default_factory=Control, repr=False)

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
        self.control.checkpoint(to_stored_json(data, "checkpoint")).result()

    async def checkpoint_async(self, data: Any) -> None:
        """The same for async handlers, without blocking the event loop."""
        stored = self.control.checkpoint(to_stored_json(data, "checkpoint"))
        await asyncio.wrap_future(stored)
