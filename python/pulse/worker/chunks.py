"""Runs that wait for others of their kind, and are then handled together.

Each keeps its slot, lease and report; only the call of the handler is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pulse.chunks import ChunkTask, results_of
from pulse.hooks import AllHooks
from pulse.worker import outcomes
from pulse.worker.outcomes import Outcome
from pulse.worker.run import Run


class Chunk:
    """Runs of one kind that one call handles."""

    def __init__(self, task: ChunkTask, runs: list[Run]) -> None:
        self.task = task
        self.runs = runs

    def begin(self, finish: Callable[[Run, Outcome], None]) -> bool:
        """Leave out what must not begin any more; False when nothing is left."""
        for run in self.runs:
            if not run.may_begin:
                finish(run, outcomes.stopped(run))
        self.runs = [run for run in self.runs if run.may_begin]
        return bool(self.runs)

    def around(self, hooks: AllHooks) -> ExitStack:
        stack = ExitStack()
        if hooks.wraps:
            for run in self.runs:
                stack.enter_context(hooks.around(run.job))
        return stack

    def returned(self, value: Any, finish: Callable[[Run, Outcome], None]) -> None:
        try:
            results = results_of([run.job for run in self.runs], value)
        except TypeError as error:
            self.raised(error, finish)
            return
        for run, result in zip(self.runs, results, strict=True):
            if isinstance(result, BaseException):
                finish(run, outcomes.raised(run, result))
            else:
                finish(run, outcomes.returned(run, result))

    def raised(
        self, error: BaseException, finish: Callable[[Run, Outcome], None]
    ) -> None:
        for run in self.runs:
            finish(run, outcomes.raised(run, error))


class Gathering:
    """On the event loop: starts a chunk when it is full, or when its time is over."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, start: Callable[[Chunk], None]
    ) -> None:
        self._loop = loop
        self._start = start
        self._runs: dict[str, list[Run]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def add(self, task: ChunkTask, run: Run) -> None:
        runs = self._runs.setdefault(task.kind, [])
        runs.append(run)
        if len(runs) >= task.batch:
            self._flush(task)
        elif len(runs) == 1:
            timer = self._loop.call_later(task.within, self._flush, task)
            self._timers[task.kind] = timer

    def flush(self) -> None:
        """At a stop: what waits for others does not begin, and is given back."""
        for runs in list(self._runs.values()):
            task = runs[0].task
            assert isinstance(task, ChunkTask)
            self._flush(task)

    def _flush(self, task: ChunkTask) -> None:
        runs = self._runs.pop(task.kind, [])
        timer = self._timers.pop(task.kind, None)
        if timer is not None:
            timer.cancel()
        if runs:
            self._start(Chunk(task, runs))
