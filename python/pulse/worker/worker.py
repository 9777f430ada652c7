"""pulse.Worker: what users configure, start and stop.

A Worker collects handlers and settings. run() starts a loop (loop.py) on the event
loop, and stop() or a signal ends it. A worker of several databases starts the loops of
pulse.nodes instead; nothing else in this package knows of those.
"""

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

from pulse.connections import distinct_dsns
from pulse.declarations import Declarations, ScheduleOptions, kinds_of
from pulse.hooks import Hooks
from pulse.ids import node_label
from pulse.logs import log_event
from pulse.options import Duration
from pulse.tasks import Decorator, Scheduled, Task, TaskOptions, decorator
from pulse.worker import statement
from pulse.worker.connection import Connector
from pulse.worker.executors import Pools
from pulse.worker.health import ProbeServer, Recycle, supervised
from pulse.worker.loop import LoopSettings, WorkerLoop

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from pulse.batches import BatchDecorator
    from pulse.nodes.worker import NodeLoops

# How long running() waits for the first answer of the server.
START_WITHIN = 2.0


class Worker:
    """Claims jobs of the kinds it has handlers for and runs them.

    Args:
        dsn: Where the database is; empty, the environment chooses. A list of DSNs: the
            worker works on all of these databases, within the same slots.
        concurrency: How many jobs of the lane default run at once; concurrency=10 is
            short for lanes={"default": 10}.
        lanes: The slots of each lane: {"interactive": 2, "maintenance": 1}.
        tasks: Tasks made with pulse.task; only kinds with a handler are claimed.
        name: The name of the worker, other than that of any other; made up if None.
        application: The owner of the settings and schedules that are declared here.
        poll_interval: Seconds between two looks for jobs where no notification comes.
        lease_for: How long a lease lasts; None, as the lane is set.
        grace: Seconds that a stop gives running jobs to end.
        tick: Whether the worker takes part in the maintenance.
        listen: Whether the worker uses LISTEN.
        durable: False reports without waiting for the disk: after a crash of the
            server, jobs may run again.
        prepare: Whether statements are prepared; None, unless a pooler is in between.
        hooks: Called around each job (pulse.Hooks).
        process_initializer: Called in each child process before its first job.
        max_jobs: After how many jobs the worker stops; recycled then has the reason.
        max_memory: At how many bytes of memory the worker stops.
        health_port: The port that answers /livez and /readyz.

    Raises:
        ValueError: An argument is outside its range.

    Example:
        >>> worker = pulse.Worker(dsn, concurrency=10)
        >>> @worker.handle("greet")
        ... def greet(job, name):
        ...     worker.stop()
        ...     return f"hello {name}"
        >>> job_id = pulse.enqueue(connection, "greet", {"name": "world"})
        >>> connection.commit()
        >>> worker.run()
        >>> with pulse.Client(dsn) as client:
        ...     client.result(job_id)
        'hello world'
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
        if poll_interval <= 0 or grace < 0:
            raise ValueError("poll_interval must be above 0 and grace not below it")
        if process_initializer is not None:
            require_importable(process_initializer)
        self.name = name or new_name()
        self.lanes: Mapping[str, int] = slots_by_lane(lanes, concurrency)
        """Slots by lane; may be set until it runs."""
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.application = application
        """The owner of the settings and schedules that are declared here."""
        self.schedules: dict[str, dict[str, Any]] = {}
        self.ready = threading.Event()
        """Set from the first answer of the server until the worker has stopped."""
        dsns = [] if isinstance(dsn, str) else distinct_dsns(dsn)
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
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._loop: WorkerLoop | NodeLoops | None = None
        self._node_loops: NodeLoops | None = None
        """The same, of a worker of several databases."""
        self._probes: ProbeServer | None = None
        self._stop_early = False
        self._asked_to_stop = False
        for task in tasks:
            self.add(task)

    # -- handlers ---------------------------------------------------------------------

    def add(self, task: Task[Any, Any]) -> None:
        """Add a task made with pulse.task; the worker then claims jobs of its kind.

        Args:
            task: The task.

        Raises:
            ValueError: The kind has a handler already.
            RuntimeError: The worker runs.

        Example:
            >>> worker.add(double.using(priority=5))
        """
        if task.kind in self.tasks:
            raise ValueError(f"the kind {task.kind!r} has a handler already")
        if self._event_loop is not None:
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
    ) -> BatchDecorator: ...
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
        """Make a function the handler of a kind.

        Args:
            kind: The name under which jobs of the function are enqueued.
            batch: How many jobs one call takes at most; the function then takes a list
                of jobs (pulse.batches).
            within: How many seconds a batch waits to fill.
            options: Options of the jobs, executor and declare (pulse.task).

        Returns:
            A decorator. It makes a Task, which has enqueue, typed by the function.

        Raises:
            TypeError: The function cannot run with this executor, or an option is
                unknown.
            ValueError: The kind has a handler already.
            RuntimeError: The worker runs.

        Example:
            >>> @worker.handle("greet", priority=5)
            ... def greet(name: str) -> str:
            ...     return f"hello {name}"
            >>> greet.enqueue(connection, "ann").new
            True
        """
        return decorator(kind, options, self.add, batch, within)

    def schedule(self, name: str, **options: Unpack[ScheduleOptions]) -> Scheduled:
        """Have a task of this worker enqueued on a schedule.

        The schedule is declared under the worker's application and written when the
        worker starts. A function that is no task becomes the handler of the
        kind of this name.

        Args:
            name: The name of the schedule.
            options: cron, every or at, and what else pulse.schedule takes.

        Returns:
            A decorator of a task or a function. It returns the task.

        Raises:
            TypeError: The worker has no application.
            ValueError: A schedule of this name is declared already.

        Example:
            >>> worker = pulse.Worker(dsn, application="shop")
            >>> @worker.schedule("digest", cron="0 7 * * *", timezone="Europe/Berlin")
            ... def digest(): ...
            >>> digest.kind
            'digest'
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
        """The settings and schedules that the worker writes when it starts.

        None without an application.
        """
        if self.application is None:
            return None
        kinds = kinds_of(self.tasks.values())
        return Declarations(self.application, kinds, self.schedules)

    # -- running ----------------------------------------------------------------------

    def run(self) -> None:
        """Claim and run jobs until stop(), SIGTERM or SIGINT.

        A second signal ends the grace of running jobs.

        Raises:
            RuntimeError: The worker runs already, or has no handlers.
            NotInstalled: There is no pulse in the database.
            PermissionDenied: The role may not claim jobs.

        Example:
            >>> @worker.handle("once")
            ... def once():
            ...     worker.stop()
            >>> job_id = once.enqueue(connection).id
            >>> connection.commit()
            >>> worker.run()
        """
        asyncio.run(self.run_async(signals=True))

    async def run_async(self, *, signals: bool = False) -> None:
        """Claim and run jobs on the running event loop until stop().

        Cancelling this stops the worker as stop() does, and takes as long.

        Args:
            signals: Whether SIGTERM and SIGINT stop the worker.

        Raises:
            RuntimeError: The worker runs already, or has no handlers.
            NotInstalled: There is no pulse in the database.
            PermissionDenied: The role may not claim jobs.

        Example:
            >>> worker.add(double)
            >>> async def main():
            ...     work = asyncio.create_task(worker.run_async())
            ...     worker.stop()
            ...     await work
            >>> asyncio.run(main())
        """
        event_loop = asyncio.get_running_loop()
        with self._lock:
            if self._event_loop is not None:
                raise RuntimeError(f"worker {self.name} runs already")
            if not self.tasks:
                raise RuntimeError(
                    "this worker has no handlers: add some with @worker.handle(kind) "
                    "or Worker(…, tasks=[…])"
                )
            self._warn_of_other_lanes()
            self._log_documented_form()
            self._event_loop = event_loop
            self.recycled = None
            recycle = Recycle(self.max_jobs, self.max_memory, self._stop)
            pools = Pools(self._process_initializer)
            loop = self._loop = self._make_loop(self._settings(recycle), pools)
            if self._stop_early:
                loop.stop()
        try:
            with _signals(signals, event_loop, self._on_signal):
                work = event_loop.create_task(
                    self._work(loop, pools), name="pulse worker"
                )
                try:
                    await asyncio.shield(work)
                except asyncio.CancelledError:
                    loop.stop()
                    await work
                    raise
        finally:
            with self._lock:
                self._event_loop = self._loop = self._node_loops = None
                self._probes = None
                # An explicit stop wins over recycling.
                self.recycled = None if self._asked_to_stop else recycle.reason
                self._asked_to_stop = False
                self._stop_early = False
                self.ready.clear()

    def _make_loop(
        self, settings: LoopSettings, pools: Pools
    ) -> WorkerLoop | NodeLoops:
        if not self._connectors:
            return WorkerLoop(settings, pools, self.ready)
        from pulse.nodes.worker import NodeLoops

        self._node_loops = NodeLoops(settings, self._connectors, pools, self.ready)
        return self._node_loops

    async def _work(self, loop: WorkerLoop | NodeLoops, pools: Pools) -> None:
        try:
            async with supervised(loop, self.health_port) as self._probes:
                await loop.run()
        finally:
            pools.close()

    def _log_documented_form(self) -> None:
        """Log why jobs cost the worker more CPU than with a psycopg that it knows."""
        if statement.DOCUMENTED_BECAUSE:
            message = "claims and reports with psycopg's public API, which takes more "
            message += f"CPU time: {statement.DOCUMENTED_BECAUSE}"
            log_event(logging.INFO, message, worker=self.name)

    def _warn_of_other_lanes(self) -> None:
        """Warn where its tasks put jobs into lanes that this worker does not take."""
        wanted = [(k, {**t.settings, **t.options}) for k, t in self.tasks.items()]
        own = [(k, lane) for k, how in wanted if (lane := how.get("lane"))]
        others = [f"{lane} ({k})" for k, lane in own if lane != "default"]
        if others and list(self.lanes) == ["default"]:
            message = "this worker takes lane default alone; its jobs go also into "
            message += f"{', '.join(others)}: name the slots with lanes={{…}}"
            log_event(logging.WARNING, message, worker=self.name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Claim and run jobs while the block runs, and stop when it ends.

        If the server does not answer, the block begins after two seconds, and the
        worker goes on to connect.

        Returns:
            An async context manager with the worker.

        Raises:
            RuntimeError: The worker runs already, or has no handlers.
            NotInstalled: There is no pulse in the database.
            PermissionDenied: The role may not claim jobs.

        Example:
            >>> worker.add(double)
            >>> async with worker.running():
            ...     handle = await double.enqueue(client, 21)
            ...     await handle.result(timeout=10)
            42
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
        """Run the worker while an ASGI app runs: FastAPI, Starlette or Litestar.

        Args:
            app: The app; it is not used.

        Returns:
            An async context manager without a value.

        Example:
            >>> worker.add(double)
            >>> # app = FastAPI(lifespan=worker.lifespan)
            >>> async with worker.lifespan(app=None):
            ...     handle = await double.enqueue(client, 21)
            ...     await handle.result(timeout=10)
            42
        """
        return _without_value(self.running())

    def stop(self, grace: float | None = None) -> None:
        """Ask the worker to stop; from any thread or signal handler, and repeatedly.

        It claims no more and lets running jobs end within the grace. It releases the
        rest, which does not count as a failed attempt. Then run() returns. Called
        before run(), it makes that return at once.

        Args:
            grace: How many seconds running jobs get; None, the worker's own.

        Example:
            >>> worker.add(double)
            >>> worker.stop()
            >>> worker.run()
        """
        self._asked_to_stop = True
        self._stop(grace)

    @property
    def dsns(self) -> list[str]:
        """The databases that the worker works on; may be set until it runs."""
        return [each.dsn for each in self._connectors] or [self.dsn]

    @dsns.setter
    def dsns(self, dsns: Sequence[str]) -> None:
        if self._event_loop is not None:
            raise RuntimeError("it runs: add_node and remove_node")
        self._connectors = [self._connector(dsn) for dsn in distinct_dsns(dsns)]
        self.dsn = self._connectors[0].dsn

    def add_node(self, dsn: str) -> None:
        """Work on one more database; only a worker that was given a list of DSNs can.

        Args:
            dsn: Where the database is.

        Raises:
            TypeError: The worker was given one DSN and no list.
            ValueError: It works on this database already.

        Example:
            >>> worker = pulse.Worker(["host=one dbname=app"])
            >>> worker.add_node("host=two dbname=app")
            >>> worker.dsns
            ['host=one dbname=app', 'host=two dbname=app']
        """
        connector = self._connector(dsn)
        with self._lock:
            self._require_several()
            if connector in self._connectors:
                raise ValueError(f"it works on {connector.label} already")
            self._connectors.append(connector)
            if self._node_loops is not None:
                self._call_soon(self._node_loops.add, connector)

    def remove_node(self, dsn: str, grace: float | None = None) -> None:
        """Leave a database: its running jobs get the grace, the rest is released.

        Args:
            dsn: As it was given to the worker or to add_node.
            grace: How many seconds running jobs get; None, the worker's own.

        Raises:
            TypeError: The worker was given one DSN and no list.
            ValueError: It does not work on this database, or on no other.

        Example:
            >>> worker = pulse.Worker(["host=one dbname=app", "host=two dbname=app"])
            >>> worker.remove_node("host=one dbname=app")
            >>> worker.dsns
            ['host=two dbname=app']
        """
        connector = self._connector(dsn)
        with self._lock:
            self._require_several()
            if connector not in self._connectors:
                raise ValueError(f"it does not work on {connector.label}")
            if len(self._connectors) == 1:
                raise ValueError("the last database cannot be left: stop the worker")
            self._connectors.remove(connector)
            if self._node_loops is not None:
                self._call_soon(self._node_loops.remove, connector, grace)

    def _require_several(self) -> None:
        if not self._connectors:
            raise TypeError("pass a list of DSNs: Worker([dsn, …])")

    def _call_soon(self, function: Callable[..., None], *args: Any) -> None:
        """From any thread: call this on the worker's event loop."""
        assert self._event_loop is not None
        with contextlib.suppress(RuntimeError):  # The loop has just been closed.
            self._event_loop.call_soon_threadsafe(function, *args)

    def _stop(self, grace: float | None = None) -> None:
        with self._lock:
            if self._loop is None:
                self._stop_early = True
            else:
                self._call_soon(self._loop.stop, grace)

    def _on_signal(self) -> None:
        self._asked_to_stop = True
        if self._loop is not None:
            self._loop.stop(0 if self._loop.stopping else None)

    def _connector(self, dsn: str) -> Connector:
        """Make the Connector of one of several databases."""
        return Connector(dsn, self.name, self._prepare, self._durable, node_label(dsn))

    def _settings(self, recycle: Recycle) -> LoopSettings:
        limited = self.max_jobs is not None or self.max_memory is not None
        return LoopSettings(
            connector=Connector(self.dsn, self.name, self._prepare, self._durable),
            lanes=self.lanes,
            tasks=dict(self.tasks),
            poll_interval=self._poll_interval,
            lease_for=self._lease_for,
            grace=self._grace,
            ticks=self._tick,
            listens=self._listen,
            hooks=(*self._hooks, recycle) if limited else self._hooks,
            declarations=self.declarations,
        )


@contextlib.asynccontextmanager
async def _without_value(
    context: AbstractAsyncContextManager[object],
) -> AsyncIterator[None]:
    # ASGI takes the value of a lifespan for the state of the application.
    async with context:
        yield


def slots_by_lane(
    lanes: Mapping[str, int] | None, concurrency: int | None
) -> dict[str, int]:
    """The arguments lanes and concurrency of a worker, checked."""
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
    return dict(lanes)


def new_name() -> str:
    """Unique among restarts and hosts: a lease carries the name of its holder."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


def require_importable(function: Callable[[], object]) -> None:
    """Raise TypeError unless a child process can find the function by its name."""
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
