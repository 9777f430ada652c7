"""What every process of a run is given, and where it writes what it saw."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import random
import signal
from pathlib import Path

from tests.chaos.history import Recorder

PR_SET_PDEATHSIG = 1


def name() -> str:
    """Who this process is; a handler's child is another than its worker."""
    own = os.environ["CHAOS_NAME"]
    if multiprocessing.parent_process() is not None:
        own += f".child.{os.getpid()}"
    return own


def dsn() -> str:
    return os.environ["CHAOS_DSN"]


def chance() -> random.Random:
    """The same choices for the same seed and name."""
    return random.Random(f"{os.environ['CHAOS_SEED']} {name()}")


@functools.cache
def recorder() -> Recorder:
    return Recorder(Path(os.environ["CHAOS_HISTORY"]) / f"{name()}.jsonl", name())


def die_with_parent() -> None:
    """Killed, and even while stopped, no process of a run outlives the run."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
