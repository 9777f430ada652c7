"""Executors: where handlers run. Each run ends in exactly one call of Runs.finish.

    async functions      on the event loop, each run in an asyncio task of its own
    functions            in a thread
    executor="process"   in a child process, which a thread talks to (processes.py)
    batch=100            several jobs in one call: on the event loop or in a thread

Executors starts the runs of one database. Pools has the threads and child processes,
which the whole worker shares.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from pulse.batches import BatchTask, results_of
from pulse.hooks import AllHooks
from pulse.worker import outcomes
from pulse.worker.processes import Initializer, Processes
from pulse.worker.runs import Run, Runs


class Pools:
    """The threads and child processes of a worker."""

    def __init__(self, process_initializer: Initializer | None = None) -> None:
        self.threads = Threads()
        self.processes = Processes(process_initializer)

    def close(self) -> None:
        self.threads.close()
        self.processes.kill()


class Executors:
    """Calls the handler of each run, and reports its outcome to Runs."""

    def __init__(self, runs: Runs, pools: Pools, hooks: AllHooks) -> None:
        self._runs = runs
        self._threads = pools.threads
        self._processes = pools.processes
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._batches = BatchCollector(self)

    def start(self, run: Run) -> None:
        run.started = time.monotonic()
        if isinstance(run.task, BatchTask):
            self._batches.add(run.task, run)
        elif run.task.is_async:
            # Runs keeps the run, and with it the task, until it has ended.
            run.work = create_task(self._run_async(run), self._loop)
        else:
            self._threads.call(self._run_in_thread, run)

    async def _run_async(self, run: Run) -> None:
        run.begun = True
        job = run.job
        if not job.control.may_begin:
            self._runs.finish(run, outcomes.stopped(job.control))
            return
        try:
            if self._hooks.wraps:
                async with self._hooks.around_async(job):
                    result = await run.task.run(job)
            else:
                result = await run.task.run(job)
            outcome = outcomes.returned(job.control, result)
        except BaseException as error:
            # SystemExit, too: it would end the worker, and other runs with it.
            outcome = outcomes.raised(job.control, error)
        self._runs.finish(run, outcome)

    def _run_in_thread(self, run: Run) -> None:
        job = run.job
        if not job.control.may_begin:
            self._runs.finish(run, outcomes.stopped(job.control))
            return
        try:
            if self._hooks.wraps:
                with self._hooks.around(job):
                    result = self._call(run)
            else:
                result = self._call(run)
            outcome = outcomes.returned(job.control, result)
        except BaseException as error:
            outcome = outcomes.raised(job.control, error)
        self._runs.finish(run, outcome)

    def _call(self, run: Run) -> Any:
        if run.task.executor == "process":
            return self._processes.run(run.task, run.job)
        return run.task.run(run.job)

    # -- batches ----------------------------------------------------------------------

    def start_batch(self, batch: Batch) -> None:
        if not batch.task.is_async:
            self._threads.call(self._run_batch, batch)
            return
        work = create_task(self._run_batch_async(batch), self._loop)
        for run in batch.runs:
            run.batch = work

    async def _run_batch_async(self, batch: Batch) -> None:
        if not batch.begin(self._runs):
            return
        try:
            with batch.around(self._hooks):
                value = await batch.task.function([run.job for run in batch.runs])
        except BaseException as error:
            batch.raised(error, self._runs)
        else:
            batch.returned(value, self._runs)

    # Made from _run_batch_async by tools/twins.py.
    def _run_batch(self, batch: Batch) -> None:
        if not batch.begin(self._runs):
            return
        try:
            with batch.around(self._hooks):
                value = batch.task.function([run.job for run in batch.runs])
        except BaseException as error:
            batch.raised(error, self._runs)
        else:
            batch.returned(value, self._runs)

    # -- shutdown ---------------------------------------------------------------------

    def stop_collecting(self) -> None:
        """Start what waits for a batch to fill: it sees the stop and is released."""
        self._batches.flush()

    async def abandon(self, runs: list[Run], within: float) -> None:
        """Cancel tasks, kill processes; a thread runs on until its handler ends."""
        for run in runs:
            run.job.control.stopping = True
            run.interrupt()
        self._processes.end([run.job for run in runs])
        batches = {run.batch for run in runs if run.batch is not None}
        for batch in batches:
            batch.cancel()
        works = [*batches, *(run.work for run in runs if run.work is not None)]
        if works:
            await asyncio.wait(works, timeout=within)


if sys.version_info >= (3, 12):

    def create_task(
        work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[None]:
        """Begins at once: what ends without waiting never enters the event loop."""
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def create_task(
        work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop)


class Batch:
    """Runs of one kind that one call handles; each has its own slot and report."""

    def __init__(self, task: BatchTask, runs: list[Run]) -> None:
        self.task = task
        self.runs = runs

    def begin(self, all_runs: Runs) -> bool:
        """Leave out runs that must not begin any more; False when none is left."""
        for run in self.runs:
            if not run.job.control.may_begin:
                all_runs.finish(run, outcomes.stopped(run.job.control))
        self.runs = [run for run in self.runs if run.job.control.may_begin]
        return bool(self.runs)

    def around(self, hooks: AllHooks) -> ExitStack:
        stack = ExitStack()
        if hooks.wraps:
            for run in self.runs:
                stack.enter_context(hooks.around(run.job))
        return stack

    def returned(self, value: Any, all_runs: Runs) -> None:
        try:
            results = results_of([run.job for run in self.runs], value)
        except TypeError as error:
            self.raised(error, all_runs)
            return
        for run, result in zip(self.runs, results, strict=True):
            if isinstance(result, BaseException):
                all_runs.finish(run, outcomes.raised(run.job.control, result))
            else:
                all_runs.finish(run, outcomes.returned(run.job.control, result))

    def raised(self, error: BaseException, all_runs: Runs) -> None:
        for run in self.runs:
            all_runs.finish(run, outcomes.raised(run.job.control, error))


class BatchCollector:
    """Starts a batch when it is full, or when its time is over."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, list[Run]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def add(self, task: BatchTask, run: Run) -> None:
        runs = self._runs.setdefault(task.kind, [])
        runs.append(run)
        if len(runs) >= task.batch:
            self._start(task)
        elif len(runs) == 1:
            timer = self._loop.call_later(task.within, self._start, task)
            self._timers[task.kind] = timer

    def flush(self) -> None:
        for runs in list(self._runs.values()):
            task = runs[0].task
            assert isinstance(task, BatchTask)
            self._start(task)

    def _start(self, task: BatchTask) -> None:
        runs = self._runs.pop(task.kind, [])
        timer = self._timers.pop(task.kind, None)
        if timer is not None:
            timer.cancel()
        if runs:
            self._executors.start_batch(Batch(task, runs))


class Threads:
    """Daemon threads, made when no idle one is left: the slots are the bound.

    Not concurrent.futures: that joins its threads when the interpreter exits, so one
    stuck handler would keep the process of a stopped worker alive for ever.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None]
        self._queue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._all = 0

    def call(self, function: Callable[[Any], None], argument: Any) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._all += 1
                threading.Thread(
                    target=self._serve, name=f"pulse handler {self._all}", daemon=True
                ).start()
        self._queue.put((function, argument))

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            function, argument = item
            function(argument)
            del item, argument
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        for _ in range(self._all):
            self._queue.put(None)
