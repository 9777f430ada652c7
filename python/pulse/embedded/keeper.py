"""The program that keeps an embedded server running while a process uses it.

    python keeper.py DIRECTORY UID GID REMOVE COMMAND...

Every user of the server holds a shared lock on DIRECTORY/users.lock. The kernel drops
it when the process ends, however it ends, so the exclusive lock is granted to this
program when the last user is gone: it then stops the server and ends. A user that comes
meanwhile waits for the shared lock and starts a new server.

It runs by its path, with the standard library only: the venv may be gone by then.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PATIENCE = 30.0


def main() -> int:
    directory, uid, gid, remove = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    command = sys.argv[5:]
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    with (
        (directory / "keeper.lock").open("a") as keeper,
        (directory / "users.lock").open("a") as users,
    ):
        if not lock(keeper.fileno()):
            return 0
        # Detached: the process that started this one may end or stay. The lock
        # belongs to the open file, so the new process has it.
        if os.fork() != 0:
            return 0
        server: subprocess.Popen[bytes] | None = None
        # A server whose keeper was killed runs on: take it over.
        pid = postmaster(directory)
        if pid is None:
            server = launch(command, uid, gid)
            pid = server.pid
        unused = threading.Event()
        threading.Thread(
            target=stop_when_unused, args=(users.fileno(), pid, unused), daemon=True
        ).start()
        if server is not None:
            server.wait()
        else:
            while alive(pid):
                time.sleep(0.5)
        # After a crash the files are evidence.
        clean(directory, bool(remove) and unused.is_set())
    return 0


def lock(keeper: int) -> bool:
    """Retries: status.has_keeper takes it for a moment."""
    for _ in range(100):
        try:
            fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


def launch(command: list[str], uid: int, gid: int) -> "subprocess.Popen[bytes]":
    same_user = uid < 0
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        cwd="/",
        preexec_fn=reset_signals,
        user=None if same_user else uid,
        group=None if same_user else gid,
        extra_groups=None if same_user else [],
    )


def reset_signals() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def stop_when_unused(users: int, pid: int, unused: threading.Event) -> None:
    fcntl.flock(users, fcntl.LOCK_EX)
    unused.set()
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        time.sleep(PATIENCE)


def postmaster(directory: Path) -> int | None:
    """The server that runs on this directory, if one does."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
        program = Path(os.readlink(f"/proc/{pid}/exe")).name
        if program.startswith("postgres"):
            return pid
    return None


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def clean(directory: Path, remove: bool) -> None:
    """The socket's directory, where it lies elsewhere; all of it, if temporary."""
    with contextlib.suppress(OSError):
        elsewhere = Path((directory / "socket").read_text())
        if elsewhere.parent != directory:
            shutil.rmtree(elsewhere, ignore_errors=True)
    if remove:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
