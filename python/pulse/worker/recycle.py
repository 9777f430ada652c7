"""Stop after so many jobs, or when the process has grown too large."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pulse.hooks import Hooks
from pulse.job import Job

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
    """What this process uses now, in bytes; its peak where that is not told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
