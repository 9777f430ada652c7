"""`pulse web` in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.conftest import PULSE, environment


@dataclass
class Running:
    """The address and the role that it has printed."""

    process: subprocess.Popen[str]
    url: str
    role: str
    database: str


@contextmanager
def pulse_web(directory: Path, *options: str | Path) -> Iterator[Running]:
    """Start it, and end it if it has not ended by then."""
    with (directory / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [*PULSE, "web", "--port", "0", "--json", *map(str, options)],
            cwd=directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith("}"):
                break
        assert output, (directory / "stderr").read_text()
        yield Running(process, **json.loads(output))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
