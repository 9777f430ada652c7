"""The clock of the servers, which a fault steps under all their processes at once.

clock.c is loaded into them. libfaketime would do the same, but opens and parses a file
at every look, also in PostgreSQL's signal handlers.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o755)
        self.library = directory / "clock.so"
        self.path = directory / "ahead"
        self.path.write_bytes(bytes(8))
        self.path.chmod(0o644)
        with self.path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    @classmethod
    def make(cls, directory: Path) -> Clock | None:
        """None where there is no C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        clock = cls(directory)
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", clock.library, SOURCE],
            check=False,
            capture_output=True,
        )
        return clock if done.returncode == 0 else None

    @classmethod
    @contextlib.contextmanager
    def temporary(cls) -> Iterator[Clock | None]:
        """One for the time of a test."""
        with tempfile.TemporaryDirectory() as directory:
            # The server runs as another user than root.
            Path(directory).chmod(0o711)
            yield cls.make(Path(directory) / "clock")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(self.path)}

    def set_ahead(self, seconds: float) -> tuple[float, float]:
        """Step to so far ahead of the machine's clock; says just before and after."""
        before = time.time()
        self._shared[:] = round(seconds * 1_000_000).to_bytes(8, "big", signed=True)
        return before, time.time()
