"""Handlers for processes: they have to be importable."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import Any

import pulse
from pulse import Job


@pulse.task("crunch", executor="process")
def crunch(job: Job, n: int) -> dict[str, int]:
    job.progress(0.5, "in a process")
    job.checkpoint({"n": n})
    return {"sum": sum(range(n)), "pid": os.getpid()}


@pulse.task("endless", executor="process")
def endless(job: Job) -> None:
    while True:
        time.sleep(0.01)


@pulse.task("careful", executor="process")
def careful(job: Job) -> None:
    while job.should_continue():
        threading.Event().wait(0.01)


@pulse.task("crash", executor="process")
def crash(job: Job) -> None:
    os._exit(3)


@pulse.task("boom", executor="process")
def boom(job: Job) -> None:
    raise ValueError("in the child")


@pulse.task("snooze", executor="process")
def snooze(job: Job) -> None:
    raise pulse.Snooze(3600)


INITIALIZED: list[int] = []


def initialize() -> None:
    INITIALIZED.append(os.getpid())


def fail_to_initialize() -> None:
    raise LookupError("no model here")


@pulse.task("initialized", executor="process")
def initialized(job: Job) -> list[int]:
    return [os.getpid(), *INITIALIZED]


@pulse.task("patient", executor="process")
def patient(job: Job, released_by: str) -> dict[str, Any]:
    """Says that it runs, and goes on until a file is there."""
    job.checkpoint("running")
    while not os.path.exists(released_by):
        time.sleep(0.01)
    # What a handler starts can be ended as always.
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    return {"code": child.wait(20)}


def which_attempt(job: Job) -> int:
    return job.attempt


class NoNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise KeyError("notes")


class NoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise KeyError("class")


class Declined(pulse.Fatal):
    """Its arguments are not those of an exception."""

    def __init__(self, card: str, code: int) -> None:
        super().__init__(f"{card} was declined")
        self.code = code


def decline() -> None:
    try:
        os.environ["CARD"]
    except KeyError as error:
        raise Declined("the card", code=5) from error


def put_off() -> None:
    raise pulse.RetryIn(3600)


def leave(job: Job, how: str) -> None:
    {"decline": decline, "put off": put_off}[how]()


leave_process = pulse.task("leave-process", executor="process")(leave)
leave_thread = pulse.task("leave-thread")(leave)


@pulse.task("odd", executor="process")
def odd(job: Job, how: str) -> Any:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    errors = {
        "exit": SystemExit("bye"),
        "interrupt": KeyboardInterrupt(),
        "retry": pulse.RetryIn(float("nan")),
        "notes": NoNotes(),
        "class": NoClass(),
        "value": ValueError("in the child"),
    }
    if how in errors:
        raise errors[how]
    return {"nan": float("nan"), "nul": "\0", "large": "x" * 2_000_000}.get(how, how)


def order(job: Job) -> list[Any]:
    return [
        job.step("charge", lambda: [1, 2]),
        job.wait_for("approved", timeout="1 day"),
    ]
