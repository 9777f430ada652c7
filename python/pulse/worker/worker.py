"""pulse.Worker: what users configure, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import secrets
import signal
import socket
import threading
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, overload

from pulse.declarations import Declarations, ScheduleOptions, kinds_of
from pulse.hooks import Hooks
from pulse.logs import log_event
from pulse.nodes import place, several
from pulse.options import Duration
from pulse.tasks import Decorator, Scheduled, Task, TaskOptions, decorator
from pulse.worker.connector import Connector
from pulse.worker.coordinator import Coordinator, Settings
from pulse.worker.fleet import Fleet
from pulse.worker.recycle import Recycle

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from pulse.chunks import ChunkDecorator

# How long running() waits for the first answer of the server.
START_WITHIN = 2.0


class Worker:
    """Claims jobs of the kinds it has handlers for and runs them.

    lanes gives each lane its own slots, {"interactive": 2, "maintenance": 1};
    concurrency=10 is short for {"default": 10}. Only kinds with a handler are claimed.
    Given several DSNs it works on all of these databases, within the same slots.
    """

    def __init__(
        self,
        dsn: str | Sequence[str] = "",
        *,
        concurrency: int | None = None,
        lanes: Mapping[str, int] | None = None,
        tasks: Iterable[Task[Any, Any]] = (),
        name: str | None = None,
        application: str | None = None,
        poll_interval: float = 0.5,
        lease_for: Duration | None = None,
        grace: float = 30.0,
        tick: bool = True,
        listen: bool = True,
        durable: bool = True,
        prepare: bool | None = None,
        hooks: Sequence[Hooks] = (),
        process_initializer: Callable[[], object] | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        health_port: int | None = None,
    ) -> None:
        if lanes is not None and concurrency is not None:
            raise TypeError("pass lanes or concurrency, not both")
        if lanes is None:
            lanes = {"default": 10 if concurrency is None else concurrency}
        if not isinstance(lanes, Mapping) or not all(
            isinstance(n, int) and n > 0 for n in lanes.values() or [0]
        ):
            raise ValueError(
                "every lane needs at least one slot: lanes is slots by lane, as in "
                "{'mail': 4}"
            )
        slots = dict(lanes)
        if poll_interval <= 0 or grace < 0:
            raise ValueError("poll_interval must be above 0 and grace not below it")
        if process_initializer is not None:
            require_importable(process_initializer)
        self.name = name or new_name()
        self.lanes: Mapping[str, int] = slots
        """Slots by lane; may be set until it runs."""
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.application = application
        """Who owns the settings and schedules that are declared here."""
        self.schedules: dict[str, dict[str, Any]] = {}
        self.ready = threading.Event()
        """Set from the first answer of the server until the worker has stopped."""
        dsns = [] if isinstance(dsn, str) else several(dsn)
        self.dsn: str = dsn if isinstance(dsn, str) else dsns[0]
        """As given, the first of several; empty, the environment chooses."""
        self._prepare, self._durable = prepare, durable
        self._connectors = [self._connector(dsn) for dsn in dsns]
        self._poll_interval = poll_interval
        self._lease_for = lease_for
        self._grace = grace
        self._tick = tick
        self._listen = listen
        self._hooks = tuple(hooks)
        self._process_initializer = process_initializer
        self.max_jobs = max_jobs
        self.max_memory = max_memory
        self.health_port = health_port
        self.recycled: str | None = None
        """Why max_jobs or max_memory has stopped it."""
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coordinator: Coordinator | Fleet | None = None
        self._stop_early = False
        self._asked_to_stop = False
        for task in tasks:
            self.add(task)

    # -- handlers ---------------------------------------------------------------------

    def add(self, task: Task[Any, Any]) -> None:
        """Take a task made with pulse.task."""
        if task.kind in self.tasks:
            raise ValueError(f"the kind {task.kind!r} has a handler already")
        if self._loop is not None:
            raise RuntimeError("handlers are added before the worker runs")
        self.tasks[task.kind] = task

    @overload
    def handle(
        self,
        kind: str,
        *,
        batch: int,
        within: float = ...,
        **options: Unpack[TaskOptions],
    ) -> ChunkDecorator: ...
    @overload
    def handle(self, kind: str, **options: Unpack[TaskOptions]) -> Decorator: ...
    def handle(
        self,
        kind: str,
        *,
        batch: int | None = None,
        within: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function the handler of a kind; the options are those of task."""
        return decorator(kind, options, self.add, batch, within)

    def schedule(self, name: str, **options: Unpack[ScheduleOptions]) -> Scheduled:
        """Have a task of this worker enqueued on a schedule: cron=, every= or at=.

        Declared under the worker's application and written when the worker starts. A
        function that is no task yet becomes the handler of the kind of this name.
        """
        if self.application is None:
            raise TypeError(
                "a schedule belongs to an application: Worker(application='shop')"
            )
        if name in self.schedules:
            raise ValueError(f"the schedule {name!r} is declared already")

        def declare(task: Task[Any, Any]) -> None:
            self.schedules[name] = {"kind": task.kind, **options}

        return Scheduled(self.handle(name), declare)

    @property
    def declarations(self) -> Declarations | None:
        """What is written when it starts; None without an application."""
        if self.application is None:
            return None
        kinds = kinds_of(self.tasks.values())
        return Declarations(self.application, kinds, self.schedules)

    # -- running ----------------------------------------------------------------------

    def run(self) -> None:
        """Work until stop() or SIGTERM or SIGINT; a second signal ends the grace."""
        asyncio.run(self.run_async(signals=True))

    async def run_async(self, *, signals: bool = False) -> None:
        """Work on the running event loop until stop().

        Cancelling this stops the worker as stop() does, and takes as long.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is not None:
                raise RuntimeError(f"worker {self.name} runs already")
            if not self.tasks:
                raise RuntimeError(
                    "this worker has no handlers: add some with @worker.handle(kind) "
                    "or Worker(…, tasks=[…])"
                )
            self._warn_of_other_lanes()
            self._loop = loop
            self.recycled = None
            recycle = Recycle(self.max_jobs, self.max_memory, self._stop)
            settings = self._settings(recycle)
            self._coordinator = (
                Fleet(settings, self._connectors, self.ready)
                if self._connectors
                else Coordinator(settings, self.ready)
            )
            if self._stop_early:
                self._coordinator.stop()
        try:
            with _signals(signals, loop, self._on_signal):
                work = loop.create_task(self._coordinator.run(), name="pulse worker")
                try:
                    await asyncio.shield(work)
                except asyncio.CancelledError:
                    self._coordinator.stop()
                    await work
                    raise
        finally:
            with self._lock:
                self._loop = self._coordinator = None
                # Whoever asks it to stop does not want a fresh start.
                self.recycled = None if self._asked_to_stop else recycle.reason
                self._asked_to_stop = False
                self._stop_early = False
                self.ready.clear()

    def _warn_of_other_lanes(self) -> None:
        """Warn where its tasks put jobs into lanes that this worker does not take."""
        wanted = [(k, {**t.settings, **t.options}) for k, t in self.tasks.items()]
        own = [(k, lane) for k, how in wanted if (lane := how.get("lane"))]
        others = [f"{lane} ({k})" for k, lane in own if lane != "default"]
        if others and list(self.lanes) == ["default"]:
            words = "this worker takes lane default alone; its jobs go also into "
            words += f"{', '.join(others)}: name the slots with lanes={{…}}"
            log_event(logging.WARNING, words, worker=self.name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Work beside what the block does, and stop when it ends.

        What keeps the worker from starting is raised here: no pulse in the database, no
        access. A server that does not answer is waited for meanwhile.
        """
        work = asyncio.create_task(self.run_async(), name="pulse worker")
        try:
            until = time.monotonic() + START_WITHIN
            while not (self.ready.is_set() or work.done() or time.monotonic() > until):
                await asyncio.sleep(0.01)
            if work.done():
                await work
            yield self
        finally:
            self.stop()
            await work

    def lifespan(self, app: object) -> AbstractAsyncContextManager[None]:
        """FastAPI(lifespan=worker.lifespan), also Starlette and Litestar."""
        return _without_value(self.running())

    def stop(self, grace: float | None = None) -> None:
        """Ask the worker to stop; from any thread or signal handler, and repeatedly.

        It claims no more, lets running jobs end within grace (default: the worker's),
        releases the rest without charge, and run() returns. Called before run(), it
        makes that return at once.
        """
        self._asked_to_stop = True
        self._stop(grace)

    @property
    def dsns(self) -> list[str]:
        """The databases it works on; may be set until it runs."""
        return [each.dsn for each in self._connectors] or [self.dsn]

    @dsns.setter
    def dsns(self, dsns: Sequence[str]) -> None:
        if self._loop is not None:
            raise RuntimeError("it runs: add_node and remove_node")
        self._connectors = [self._connector(dsn) for dsn in several(dsns)]
        self.dsn = self._connectors[0].dsn

    def add_node(self, dsn: str) -> None:
        """Work on one more database; of a worker that was given several, any time."""
        connector = self._connector(dsn)
        with self._lock:
            self._require_several()
            if connector in self._connectors:
                raise ValueError(f"it works on {connector.place} already")
            self._connectors.append(connector)
            self._tell_fleet("add", connector)

    def remove_node(self, dsn: str, grace: float | None = None) -> None:
        """Leave a database: its runs may end within grace, the rest is released."""
        connector = self._connector(dsn)
        with self._lock:
            self._require_several()
            if connector not in self._connectors:
                raise ValueError(f"it does not work on {connector.place}")
            if len(self._connectors) == 1:
                raise ValueError("the last database cannot be left: stop the worker")
            self._connectors.remove(connector)
            self._tell_fleet("remove", connector, grace)

    def _require_several(self) -> None:
        if not self._connectors:
            raise TypeError("pass a list of DSNs: Worker([dsn, …])")

    def _tell_fleet(self, verb: str, *facts: Any) -> None:
        if self._loop is not None and isinstance(self._coordinator, Fleet):
            with contextlib.suppress(RuntimeError):  # The loop has just been closed.
                act = getattr(self._coordinator, verb)
                self._loop.call_soon_threadsafe(act, *facts)

    def _stop(self, grace: float | None = None) -> None:
        with self._lock:
            loop, coordinator = self._loop, self._coordinator
            if loop is None or coordinator is None:
                self._stop_early = True
                return
        with contextlib.suppress(RuntimeError):  # The loop has just been closed.
            loop.call_soon_threadsafe(coordinator.stop, grace)

    def _on_signal(self) -> None:
        self._asked_to_stop = True
        if self._coordinator is not None:
            self._coordinator.stop(0 if self._coordinator.stopping else None)

    def _connector(self, dsn: str) -> Connector:
        """To one of several databases."""
        return Connector(dsn, self.name, self._prepare, self._durable, place(dsn))

    def _settings(self, recycle: Recycle) -> Settings:
        limited = self.max_jobs is not None or self.max_memory is not None
        return Settings(
            connector=Connector(self.dsn, self.name, self._prepare, self._durable),
            lanes=self.lanes,
            tasks=dict(self.tasks),
            poll_interval=self._poll_interval,
            lease_for=self._lease_for,
            grace=self._grace,
            ticks=self._tick,
            listens=self._listen,
            hooks=(*self._hooks, recycle) if limited else self._hooks,
            process_initializer=self._process_initializer,
            declarations=self.declarations,
            health_port=self.health_port,
        )


@contextlib.asynccontextmanager
async def _without_value(
    context: AbstractAsyncContextManager[object],
) -> AsyncIterator[None]:
    # What a lifespan yields is the state of the application.
    async with context:
        yield


def new_name() -> str:
    """Unique among restarts and hosts: a lease carries the name of its holder."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


def require_importable(function: Callable[[], object]) -> None:
    """A child process finds it by its name."""
    try:
        pickle.dumps(function)
    except Exception as error:
        raise TypeError(
            "process_initializer is called in other processes, so it must be defined "
            f"at the top level of a module ({error})"
        ) from error


@contextlib.contextmanager
def _signals(
    wanted: bool, loop: asyncio.AbstractEventLoop, act: Callable[[], None]
) -> Iterator[None]:
    """Handle SIGTERM and SIGINT; only the main thread can."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
