"""Where handlers run: async ones on the event loop, the others in threads.

A handler with executor="process" is run by a child process that its thread talks to
(processes.py). Every run ends in exactly one call of finish(run, outcome).
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from pulse.chunks import ChunkTask
from pulse.hooks import AllHooks
from pulse.worker import outcomes
from pulse.worker.chunks import Chunk, Gathering
from pulse.worker.outcomes import Outcome
from pulse.worker.processes import Children, Initializer
from pulse.worker.run import Run


class Pools:
    """The threads and processes of a worker, whichever database a job is from."""

    def __init__(self, process_initializer: Initializer | None = None) -> None:
        self.threads = Threads()
        self.children = Children(process_initializer)

    def close(self) -> None:
        self.threads.close()
        self.children.kill()


class Executors:
    """Starts runs; finish is called on the loop's thread or on a handler's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hooks: AllHooks,
        finish: Callable[[Run, Outcome], None],
        pools: Pools | None = None,
    ) -> None:
        self._loop = loop
        self._hooks = hooks
        self._finish = finish
        self._pools = pools or Pools()
        self._threads = self._pools.threads
        self._children = self._pools.children
        self._gathering = Gathering(loop, self._start_chunk)

    def start(self, run: Run) -> None:
        run.started = time.monotonic()
        if isinstance(run.task, ChunkTask):
            self._gathering.add(run.task, run)
        elif run.task.is_async:
            # Slots.runs keeps the run, and with it the task, until it has ended.
            run.work = create_task(self._run_async(run), self._loop)
        else:
            self._threads.put(self._run_in_thread, run)

    def _start_chunk(self, chunk: Chunk) -> None:
        if not chunk.task.is_async:
            self._threads.put(self._run_in_thread, chunk)
            return
        work = create_task(self._run_chunk_async(chunk), self._loop)
        for run in chunk.runs:
            run.chunk = work

    async def _run_chunk_async(self, chunk: Chunk) -> None:
        if not chunk.begin(self._finish):
            return
        try:
            with chunk.around(self._hooks):
                value = await chunk.task.function([run.job for run in chunk.runs])
        except BaseException as error:
            chunk.raised(error, self._finish)
        else:
            chunk.returned(value, self._finish)

    def _run_chunk(self, chunk: Chunk) -> None:
        if not chunk.begin(self._finish):
            return
        try:
            with chunk.around(self._hooks):
                value = chunk.task.function([run.job for run in chunk.runs])
        except BaseException as error:
            chunk.raised(error, self._finish)
        else:
            chunk.returned(value, self._finish)

    async def _run_async(self, run: Run) -> None:
        run.begun = True
        if not run.may_begin:
            self._finish(run, outcomes.stopped(run))
            return
        try:
            if self._hooks.wraps:
                async with self._hooks.around_async(run.job):
                    result = await run.task.run(run.job)
            else:
                result = await run.task.run(run.job)
            outcome = outcomes.returned(run, result)
        except BaseException as error:
            # SystemExit, too: it would end the worker, and other runs with it.
            outcome = outcomes.raised(run, error)
        self._finish(run, outcome)

    def _run_in_thread(self, run: Run | Chunk) -> None:
        if isinstance(run, Chunk):
            self._run_chunk(run)
            return
        if not run.may_begin:
            self._finish(run, outcomes.stopped(run))
            return
        try:
            if self._hooks.wraps:
                with self._hooks.around(run.job):
                    result = self._call(run)
            else:
                result = self._call(run)
            outcome = outcomes.returned(run, result)
        except BaseException as error:
            outcome = outcomes.raised(run, error)
        self._finish(run, outcome)

    def _call(self, run: Run) -> Any:
        if run.task.executor == "process":
            return self._children.run(run.task, run.job)
        return run.task.run(run.job)

    def stop_waiting(self) -> None:
        """Nothing waits for more of its kind any longer."""
        self._gathering.flush()

    async def abandon(self, runs: list[Run], patience: float) -> None:
        """Cancel tasks, kill processes; a thread runs on until its handler ends."""
        for run in runs:
            run.stopping = True
            run.interrupt()
        self._children.end([run.job for run in runs])
        chunks = {run.chunk for run in runs if run.chunk is not None}
        for chunk in chunks:
            chunk.cancel()
        works = [*chunks, *(run.work for run in runs if run.work is not None)]
        if works:
            await asyncio.wait(works, timeout=patience)

    def close(self) -> None:
        self._pools.close()


if sys.version_info >= (3, 12):

    def create_task(
        work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[None]:
        """Begun at once: what ends without waiting never enters the event loop."""
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def create_task(
        work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop)


Work = Callable[[Run | Chunk], None]


class Threads:
    """Daemon threads, made when no idle one is left: the slots are the bound.

    Not concurrent.futures: that joins its threads when the interpreter exits, so one
    stuck handler would keep the process of a stopped worker alive for ever.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, Run | Chunk] | None]
        self._queue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._all = 0

    def put(self, work: Work, run: Run | Chunk) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._all += 1
                threading.Thread(
                    target=self._loop, name=f"pulse handler {self._all}", daemon=True
                ).start()
        self._queue.put((work, run))

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            work, run = item
            work(run)
            del item, run
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        for _ in range(self._all):
            self._queue.put(None)
