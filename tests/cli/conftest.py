"""Run the command in this process, and see what a person would see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pulse.cli import command as cli
from tests.conftest import Database
from tools import paths


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Pulse = Callable[..., Ran]
PULSE = [sys.executable, "-c", "from pulse.cli import main; main()"]


def environment(**more: str) -> dict[str, str]:
    """For a process of its own, which imports the package from the checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PULSE"))}
    return {**kept, "PYTHONPATH": str(paths.ROOT / "python"), **more}


def command(*arguments: object, cwd: Path = paths.ROOT, **more: str) -> Ran:
    """The command in a process of its own."""
    done = subprocess.run(
        [*PULSE, *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run_pulse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Pulse:
    """run_pulse("ps", "--json"): in this process, on a wide screen, without a TTY."""
    for name in ("PULSE_DSN", "DATABASE_URL", "COLUMNS", "PULSE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, **environment: str) -> Ran:
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            capsys.readouterr()
            code = cli.run([str(each) for each in arguments])
            captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def pulse(run_pulse: Pulse, db: Database) -> Pulse:
    """The command on a fresh database with pulse: pulse("ps")."""

    def run(*arguments: object, **environment: str) -> Ran:
        return run_pulse(*arguments, **{"PULSE_DSN": db.dsn, **environment})

    return run
