"""Handlers for processes: they have to be importable."""

from __future__ import annotations

import os
import threading
import time

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


def which_attempt(job: Job) -> int:
    return job.attempt
