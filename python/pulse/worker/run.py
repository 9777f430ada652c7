"""Run: one claimed job in this worker, from the claim to the accepted report.

claims.py makes it, executors.py calls its handler, heartbeat.py keeps its lease,
slots.py holds it until exchange.py has reported its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pulse.job import Control, Job, Rows, Verdict
from pulse.tasks import Task
from pulse.worker.outcomes import Outcome

if TYPE_CHECKING:
    from pulse.worker.heartbeat import Heartbeat


class Run(Control):
    """The handler sees it through its Job, whose control it is."""

    __slots__ = (
        "_heartbeat",
        "_loop",
        "begun",
        "chunk",
        "holds_slot",
        "job",
        "lane",
        "lease",
        "outcome",
        "started",
        "task",
        "work",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        heartbeat: Heartbeat,
        lane: str,
        lease: int,
        leased_until: float,
    ) -> None:
        super().__init__(leased_until)
        self.lane = lane
        self.lease = lease
        self.job: Job
        self.task: Task[Any, Any]
        self.work: asyncio.Task[None] | None = None
        self.chunk: asyncio.Task[None] | None = None
        """As work, but shared: what ends this run alone must not cancel it."""
        self.outcome: Outcome | None = None
        self.started = 0.0
        self.holds_slot = True
        self.begun = False
        self._loop = loop
        self._heartbeat = heartbeat

    def set_verdict(self, verdict: Verdict) -> None:
        """From the heartbeat's thread: the server's answer, when it is not ok."""
        if self.verdict == verdict or self.outcome is not None:
            return
        self.verdict = verdict
        if self.work is not None:
            with contextlib.suppress(RuntimeError):  # The worker has stopped.
                self._loop.call_soon_threadsafe(self.interrupt)

    def interrupt(self) -> None:
        # A task cancelled before its first step would end without an outcome.
        if self.work is not None and self.begun:
            self.work.cancel()

    def progress(self, fraction: float, note: str | None) -> None:
        self._heartbeat.progress(self.lease, fraction, note)

    def call(self, name: str, **values: Any) -> Future[Rows]:
        return self._heartbeat.call(name, {"lease": self.lease, **values})
