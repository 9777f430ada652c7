"""The state of an embedded server, read from its files and its locks.

server.py asks whether a server runs on a directory, where, and whether it stops.
"""

import contextlib
import fcntl
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pulse.embedded.binaries import EmbeddedError


@dataclass(frozen=True)
class Status:
    """Some lines of postmaster.pid; address is empty without TCP."""

    port: str
    socket: str
    address: str
    state: str


def read(directory: Path) -> Status | None:
    with contextlib.suppress(OSError):
        text = (directory / "data" / "postmaster.pid").read_text()
        lines = [line.strip() for line in text.split("\n")]
        if len(lines) >= 8:
            return Status(lines[3], lines[4], lines[5], lines[7])
    return None


def is_ready(directory: Path) -> bool:
    """Whether the file says so and a connection works: a crash leaves the file."""
    found = read(directory)
    if found is None or found.state != "ready":
        return False
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(f"{found.socket}/.s.PGSQL.{found.port}")
        return True
    return False


def open_lock(directory: Path, name: str) -> IO[str]:
    try:
        return (directory / name).open("a")
    except OSError as error:
        raise EmbeddedError(
            f"cannot write to {directory}: {error.strerror}.\n"
            "It belongs to another user. Choose your own directory: --data-dir, or "
            "PULSE_HOME."
        ) from error


def has_keeper(directory: Path) -> bool:
    with open_lock(directory, "keeper.lock") as file:
        return not try_lock(file, fcntl.LOCK_EX)


def is_stopping(directory: Path) -> bool:
    """Whether no user is left: the keeper holds the lock, or the directory is gone."""
    try:
        with open_lock(directory, "users.lock") as file:
            return not try_lock(file, fcntl.LOCK_SH)
    except EmbeddedError:
        return True


def wait_until_stopped(directory: Path) -> None:
    with (
        contextlib.suppress(EmbeddedError),
        open_lock(directory, "keeper.lock") as file,
    ):
        fcntl.flock(file, fcntl.LOCK_SH)


def try_lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def reachable(directory: Path) -> bool:
    """Whether others may pass through to it."""
    return all(step.stat().st_mode & 0o001 for step in (directory, *directory.parents))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
