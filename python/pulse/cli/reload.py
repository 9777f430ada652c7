"""work --reload: a child process works, and is replaced when a file changes.

work.py calls supervise() instead of running the worker itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LOOK_EVERY = 0.5
END_WITHIN = 35.0
SKIPPED = {"node_modules", "__pycache__", "site-packages"}


def supervise(directory: Path) -> int:
    """Run this command without --reload, again and again; returns how it ended."""
    command = [sys.executable, *(a for a in sys.orig_argv[1:] if a != "--reload")]
    stops: list[int] = []

    def stop(number: int, _: object) -> None:
        stops.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    while True:
        before = state(directory)
        # A group of its own: Ctrl-C reaches it through us, once. It writes no bytecode,
        # which would be taken for that of a file of the same size and the same second.
        child = subprocess.Popen(
            command,
            start_new_session=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        changed = False
        while not stops and not changed:
            time.sleep(LOOK_EVERY)
            changed = state(directory) != before
            if child.poll() is not None and not changed and not stops:
                print("pulse: it ended; a change starts it again", file=sys.stderr)
                while not stops and not (changed := state(directory) != before):
                    time.sleep(LOOK_EVERY)
        code = end(child)
        if stops:
            return code
        print("pulse: a file has changed, starting again", file=sys.stderr)


def end(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def state(directory: Path) -> dict[str, int]:
    """When each Python file below it was last written."""
    found: dict[str, int] = {}
    for path in sources(directory):
        try:
            found[str(path)] = path.stat().st_mtime_ns
        except OSError:
            continue
    return found


def sources(directory: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(directory):
        folders[:] = [
            f
            for f in folders
            if f not in SKIPPED
            and not f.startswith(".")
            and not Path(where, f, "pyvenv.cfg").exists()
        ]
        yield from (Path(where, name) for name in files if name.endswith(".py"))
