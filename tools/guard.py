"""Run a PostgreSQL server for as long as a process holds the other end of stdin.

    guard.py DIRECTORY:DIRECTORY USER COMMAND...

A line on stdin (SIGINT, SIGQUIT or SIGKILL) stops the server that way and keeps the
directory. End of file means that the owner is gone, kill -9 included: the server is
stopped and the directories are removed. USER is "-" or whom to run COMMAND as.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys

# A server that is shot waits for its children, and those for the disk.
PATIENCE = 60


def main() -> int:
    directories, user, *command = sys.argv[1:]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    demote: dict[str, object] = {}
    if user != "-":
        import pwd

        entry = pwd.getpwnam(user)
        demote = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    server = subprocess.Popen(  # type: ignore[call-overload]
        command,
        stdin=subprocess.DEVNULL,
        cwd="/",
        preexec_fn=reset_signals,
        **demote,
    )
    asked = wait(server)
    if server.poll() is None:
        server.send_signal(getattr(signal, asked) if asked else signal.SIGINT)
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGQUIT)
            server.wait(PATIENCE)
    if asked is None:
        # Only the owner's silence removes: after a crash the files are evidence.
        for directory in directories.split(":"):
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if server.returncode is None else abs(server.returncode)


def reset_signals() -> None:
    for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(restored, signal.SIG_DFL)


def wait(server: "subprocess.Popen[bytes]") -> "str | None":
    """The signal that was asked for; None at end of file; "" when the server ended."""
    while server.poll() is None:
        with contextlib.suppress(InterruptedError):
            if select.select([0], [], [], 0.2)[0]:
                line = os.read(0, 100).decode().strip()
                return line or None
    return ""


if __name__ == "__main__":
    sys.exit(main())
