"""Handlers in processes: for work that would hold the interpreter.

Each child runs one job at a time and talks over a pipe to the thread that waits for
it. A lost lease and a stop end it with SIGKILL; a thread cannot be ended. Children are
spawned, not forked: the worker has threads.

Ctrl-C and a TERM to the process group reach children as well. They take no notice: the
worker decides how long a run may go on, and tells them over the pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from pulse import errors
from pulse.job import Control, Job, Rows
from pulse.tasks import Task
from pulse.worker.outcomes import RemoteError, described, encoded, undescribed

POLL_INTERVAL = 0.05
STOPS = (signal.SIGINT, signal.SIGTERM)

Initializer = Callable[[], object]


class Children:
    """Idle and busy processes of this worker."""

    def __init__(self, initializer: Initializer | None = None) -> None:
        self._initializer = initializer
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._busy: dict[Child, Job] = {}
        self._closed = False

    def run(self, task: Task[Any, Any], job: Job) -> Any:
        child = self._take(job)
        try:
            return child.run(task, job)
        finally:
            self._give_back(child)

    def _take(self, job: Job) -> Child:
        with self._lock:
            if self._closed or job.control.stopping:
                raise errors.Cancelled("the worker is stopping")
            if not self._idle and not self._busy:
                # multiprocessing sends TERM at exit, and waits: they do not mind it.
                atexit.register(self.kill)
            child = self._idle.pop() if self._idle else Child(self._initializer)
            self._busy[child] = job
            return child

    def _give_back(self, child: Child) -> None:
        with self._lock:
            self._busy.pop(child, None)
            if child.usable and not self._closed:
                self._idle.append(child)
            else:
                child.kill()

    def end(self, jobs: Collection[Job]) -> None:
        """End those that run these jobs."""
        ids = {id(job) for job in jobs}
        with self._lock:
            for child, job in self._busy.items():
                if id(job) in ids:
                    child.kill()

    def kill(self) -> None:
        """End all of them, for good."""
        with self._lock:
            self._closed = True
            for child in [*self._idle, *self._busy]:
                child.kill()
            self._idle.clear()
        atexit.unregister(self.kill)


class Child:
    def __init__(self, initializer: Initializer | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve,
            args=(theirs, initializer),
            name="pulse handler",
            daemon=True,
        )
        # It unblocks signals where it starts, which is before the first child.
        resource_tracker.ensure_running()
        with stops_blocked():
            self._process.start()
        theirs.close()
        self.usable = True

    def run(self, task: Task[Any, Any], job: Job) -> Any:
        """Send the job, pass on its messages, return its result or raise its error."""
        control, asked_to_stop = job.control, False
        self.usable = False
        try:
            where = (task.function.__module__, task.function.__qualname__)
            self._pipe.send((where, replace(job, control=Control())))
            while True:
                while not self._pipe.poll(POLL_INTERVAL):
                    if control.verdict == "lost":
                        self.kill()
                        raise errors.LeaseLost("the lease was lost while it ran")
                    if control.must_stop and not asked_to_stop:
                        asked_to_stop = True
                        self._pipe.send((control.verdict, control.stopping))
                message, content = self._pipe.recv()
                if message == "progress":
                    job.control.progress(*content)
                elif message == "call":
                    self._pipe.send(("answer", answer(control, *content)))
                elif message == "seen":
                    control.seen = True
                elif message == "ready":
                    # It may have taken so long to start that the lease has ended.
                    begins = control.may_begin
                    self._pipe.send(("begin", begins))
                    if not begins:
                        self.usable = not asked_to_stop
                        control.stopping = True
                        raise errors.Cancelled("it could not begin in time")
                elif message == "returned":
                    self.usable = not asked_to_stop
                    return content
                else:
                    self.usable = not asked_to_stop
                    raise content
        except (EOFError, ConnectionError) as error:
            if control.must_stop:
                raise errors.Cancelled("the process was stopped") from error
            self._process.join(1)
            how = ending(self._process.exitcode)
            raise RemoteError(f"the process of the handler died ({how})") from None

    def kill(self) -> None:
        self.usable = False
        self._process.kill()


def ending(code: int | None) -> str:
    """An exit code, or the name of the signal that killed it."""
    with contextlib.suppress(ValueError):
        if code is not None and code < 0:
            return signal.Signals(-code).name
    return str(code)


@contextlib.contextmanager
def stops_blocked() -> Iterator[None]:
    """What this thread starts meanwhile ignores stop signals until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer(control: Control, name: str, values: dict[str, Any]) -> Rows | BaseException:
    """What the child asked the server for, or what it is to raise."""
    try:
        return control.call(name, **values).result()
    except Exception as error:
        return error


class RemoteControl(Control):
    """The child's end of the pipe: sends messages, receives verdicts."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._sending = threading.Lock()

    def send(self, message: str, content: Any) -> None:
        with self._sending:
            self._pipe.send((message, content))

    def may_begin_now(self) -> bool:
        self.send("ready", None)
        return bool(self._receive("begin"))

    def progress(self, fraction: float, note: str | None) -> None:
        self.send("progress", (fraction, note))

    def call(self, name: str, **values: Any) -> Future[Rows]:
        done: Future[Rows] = Future()
        self.send("call", (name, values))
        content = self._receive("answer")
        if isinstance(content, BaseException):
            done.set_exception(content)
        else:
            done.set_result(content)
        return done

    def _receive(self, awaited: str) -> Any:
        """The content of this message; takes the verdicts that come before it."""
        while True:
            message, content = self._pipe.recv()
            if message == awaited:
                return content
            self.verdict, self.stopping = message, content

    @property
    def must_stop(self) -> bool:
        while self._pipe.poll():
            self.verdict, self.stopping = self._pipe.recv()
        return self.stopping or self.verdict != "ok"


def serve(pipe: Connection, initializer: Initializer | None) -> None:
    """Main function of a child: one job after another until the pipe is closed."""
    for number in STOPS:
        # Not SIG_IGN: programs that a handler starts would inherit that.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=end_with_the_worker, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            (module, name), job = pipe.recv()
            control = RemoteControl(pipe)
            job.control = control
            try:
                if initializer is not None:
                    initializer()
                    initializer = None
                found: Any = importlib.import_module(module)
                for part in name.split("."):
                    found = getattr(found, part)
                task = found if isinstance(found, Task) else Task(job.kind, found)
                if not control.may_begin_now():
                    continue
                result = task.run(job)
                if control.seen:
                    control.send("seen", None)
                control.send("returned", None if result is None else encoded(result))
            except BaseException as error:
                control.send("raised", portable(error))


def end_with_the_worker() -> None:
    """A handler must not go on when the worker was killed and its lease lapses."""
    worker = multiprocessing.parent_process()
    assert worker is not None
    worker.join()
    os._exit(1)


def portable(error: BaseException) -> BaseException:
    """An error that the worker acts on travels as it is, others as their traceback."""
    try:
        text = described(error)
        if isinstance(error, (errors.HandlerExit, errors.LeaseLost, errors.Suspended)):
            with contextlib.suppress(Exception):
                if isinstance(error, errors.HandlerExit):
                    error.described = text
                pickle.loads(pickle.dumps(error))
                return error
        return RemoteError(text)
    except BaseException as second:
        # As in outcomes.raised.
        return RemoteError(undescribed(error, second))
