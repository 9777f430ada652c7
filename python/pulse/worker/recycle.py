"""Stop after so many jobs, or when the process has grown too large."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from pulse.hooks import Hooks
from pulse.job import Job
from pulse.logs import log_event

LOOK_EVERY = 20
"""Runs between two looks at the memory."""


class Recycle(Hooks):
    """Counts runs that ended; then the worker stops as at a signal."""

    def __init__(
        self, max_jobs: int | None, max_memory: int | None, stop: Callable[[], None]
    ) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._stop = stop
        self._ended = 0
        self.reason: str | None = None

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        self._ended += 1
        if self.reason is not None:
            return
        if self._max_jobs is not None and self._ended >= self._max_jobs:
            self.reason = f"it has run {self._ended} jobs"
        elif self._max_memory is not None and self._ended % LOOK_EVERY == 1:
            used = memory()
            if used > self._max_memory:
                self.reason = f"it uses {used >> 20} MB"
        if self.reason is not None:
            self._stop()


def memory() -> int:
    """What this process uses now, in bytes; its peak where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def start_afresh(reason: str) -> None:
    """The same process with a fresh interpreter: no supervisor has to do it."""
    log_event(logging.INFO, f"starting afresh: {reason}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def bytes_of(size: str) -> int:
    """512MB, 2 GiB, 100000."""
    found = re.fullmatch(r"(\d+)\s*([kMG]?)i?B?", size.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{size!r} is not a size such as 512MB")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2].lower()]
