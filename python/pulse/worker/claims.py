"""From the answer of an exchange to running handlers.

Reading jobs out of an answer and starting them costs the worker about as much as
claiming them costs the server. Where runs have ended meanwhile the two go on side by
side: their reports are sent first, and jobs are read while the server works on those.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from pulse.hooks import AllHooks
from pulse.job import Job
from pulse.logs import log
from pulse.tasks import Task
from pulse.worker.answer import KIND, LANE, LEASE, UNTIL, Answer, Unreadable, job_of
from pulse.worker.executors import Executors
from pulse.worker.heartbeat import Heartbeat
from pulse.worker.outcomes import failure
from pulse.worker.run import Run
from pulse.worker.slots import Slots


class Claims:
    """Claimed jobs hold their slots as soon as the answer is here."""

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        slots: Slots,
        heartbeat: Heartbeat,
        executors: Executors,
        hooks: AllHooks,
        stopping: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._slots = slots
        self._heartbeat = heartbeat
        self._executors = executors
        self._hooks = hooks
        self._stopping = stopping
        self._answer: Answer | None = None

    @property
    def unread(self) -> int:
        return 0 if self._answer is None else self._answer.count

    def accept(self, answer: Answer, seconds: float) -> None:
        """Take an answer; the one before has been read."""
        self._answer = answer
        self._slots.take(answer.lanes)
        if self._hooks:
            runs = self._read()
            self._hooks.call("claimed", [run.job for run in runs], seconds)
            self._start(runs)

    def start_all(self) -> None:
        if self.unread:
            self._start(self._read())

    def forget(self) -> None:
        """Free the slots of what was not read: without a lease nothing is released."""
        if self._answer is not None:
            self._slots.free(self._answer.lanes)
            self._answer = None

    def _read(self) -> list[Run]:
        answer = self._answer
        if answer is None:
            return []
        rows = answer.read()
        self._answer = None
        runs: list[Run] = []
        loop, heartbeat, tasks = self._loop, self._heartbeat, self._tasks
        all_runs, asked_at, first = self._slots.runs, answer.asked_at, math.inf
        for row in rows:
            if isinstance(row, Unreadable):
                first = min(first, self._fail(row, asked_at))
                continue
            until = asked_at + row[UNTIL]
            if until < first:
                first = until
            run = Run(loop, heartbeat, row[LANE], row[LEASE], until)
            run.job = job_of(row, run)
            run.task = tasks[row[KIND]]
            all_runs[run.lease] = run
            runs.append(run)
        if rows:
            self._heartbeat.expect(first)
        return runs

    def _fail(self, row: Unreadable, asked_at: float) -> float:
        """A run that fails without its handler; returns when its lease ends."""
        until = asked_at + row.until
        run = Run(self._loop, self._heartbeat, row.lane, row.lease, until)
        run.job = Job(
            row.lease, row.job, row.lane, row.kind, None, row.attempt, control=run
        )
        run.task = self._tasks[row.kind]
        self._slots.runs[run.lease] = run
        error = f"the job cannot be read: {type(row.error).__name__}: {row.error}"
        self._slots.finish(run, failure(error))
        return until

    def _start(self, runs: list[Run]) -> None:
        if self._stopping():
            # Claimed, never started: released at once.
            self._slots.release(*runs)
            return
        tells_all, hooks = log.isEnabledFor(logging.INFO), bool(self._hooks)
        surplus, start = self._slots.surplus, self._executors.start
        for run in runs:
            if surplus and self._slots.gives_back(run.lane):
                self._slots.release(run)
                continue
            if hooks:
                self._hooks.call("started", run.job)
            if tells_all:
                self._slots.log_start(run)
            start(run)
