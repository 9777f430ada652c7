"""A small disk: a tmpfs of our own, which becomes full when it is made smaller.

Mounting needs root. The mounts are made in a mount namespace of this process, so
nobody else sees them and they end with it, also when it is killed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from tools import servers

SIZE = 6 << 30
PAGE = 4096
TRIES = 200
CLONE_NEWNS = 0x00020000


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.mounted = private() and mount("-t", "tmpfs", *size(SIZE), "tmpfs", path)
        path.chmod(0o711)

    @property
    def store(self) -> Path | None:
        """Where a server may put its data."""
        return self.path if self.mounted else servers.memory()

    def fill(self) -> None:
        """Leave room for a few pages and no more."""
        for _ in range(TRIES):
            status = os.statvfs(self.path)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            # Refused when the server wrote more than that in between.
            if mount("-o", f"remount,{size(used + 16 * PAGE)[1]}", self.path):
                return
        raise RuntimeError(f"{self.path} could not be made smaller")

    def free(self) -> None:
        if not mount("-o", f"remount,{size(SIZE)[1]}", self.path):
            raise RuntimeError(f"{self.path} could not be made larger")

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False)


def size(octets: int) -> tuple[str, str]:
    return "-o", f"size={octets}"


def mount(*arguments: str | Path) -> bool:
    done = subprocess.run(
        ["mount", *map(str, arguments)], check=False, capture_output=True
    )
    return done.returncode == 0


def private() -> bool:
    """Leave the common mount namespace; False where that is not allowed."""
    if os.geteuid() != 0:
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return False
    return mount("--make-rprivate", "/")
