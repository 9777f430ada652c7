"""From the answer of an exchange to running handlers.

Reading jobs out of an answer and starting them costs the worker about as much as
claiming them costs the server. Where runs have ended meanwhile the two go on side by
side: their reports are sent first, and jobs are read while the server works on those.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pulse.executors import Executors, Run
from pulse.heartbeat import Heart
from pulse.ledger import Ledger
from pulse.messages import Answer
from pulse.reports import Outcome
from pulse.tasks import Task
from pulse.tracing import AllHooks


class Intake:
    """Its jobs hold their slots from the answer on."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        ledger: Ledger,
        heart: Heart,
        executors: Executors,
        hooks: AllHooks,
        stopping: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._ledger = ledger
        self._heart = heart
        self._executors = executors
        self._hooks = hooks
        self._stopping = stopping
        self._answer: Answer | None = None
        self._unread: deque[Run] = deque()

    @property
    def unread(self) -> int:
        return len(self._unread)

    async def accept(self, answer: Answer, took: float) -> None:
        """Take an answer; the one before has been read."""
        self._answer = answer
        now = time.monotonic()
        for leased in answer.leased:
            run = Run(self._loop, self._heart, leased)
            self._unread.append(run)
            self._ledger.add(run)
            self._heart.leased(leased.until - now)
        if self._hooks:
            runs = await self._read(self.unread)
            self._hooks.call("claimed", [run.job for run in runs], took)
            self._start(runs)
        elif not self._ledger.ended:
            await self.start_all()

    async def start_all(self) -> None:
        self._start(await self._read(self.unread))

    def forget(self) -> None:
        """What was not read cannot be given back; its leases lapse."""
        while self._unread:
            self._ledger.forget(self._unread.popleft())

    async def _read(self, jobs: int) -> list[Run]:
        runs: list[Run] = []
        if self._answer is None or jobs == 0:
            return runs
        for job, error in await self._answer.read(jobs):
            run = self._unread.popleft()
            run.job = job
            job.control = run
            run.task = self._tasks[job.kind]
            if error is None:
                runs.append(run)
            else:
                said = f"the job cannot be read: {type(error).__name__}: {error}"
                self._ledger.done(run, Outcome("fail", error=said))
        return runs

    def _start(self, runs: list[Run]) -> None:
        for run in runs:
            if self._stopping():
                # Claimed, never started: given back at once.
                self._ledger.give_back(run)
                continue
            if self._hooks:
                self._hooks.call("started", run.job)
            self._executors.start(run)
