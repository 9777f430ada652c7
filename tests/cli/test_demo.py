"""pulse demo: from nothing to a worked load, and back to nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import command, environment
from tests.cli.test_embedded import for_everybody
from tools import paths, servers

FACTS = (
    "every picture is done",
    "the urgent ones came first",
    "the card's job is dead",
    "the model is trained",
    "the export is cancelled",
    "the digest went out",
)


def test_it_ends_by_itself_and_everything_happened() -> None:
    begin = time.monotonic()
    ran = command("demo", TMPDIR="/tmp")
    assert ran.code == 0, ran.out + ran.err
    assert time.monotonic() - begin < 60
    for fact in FACTS:
        assert f"✓ {fact}" in ran.out
    assert "charge-card" in ran.out
    assert "is dead after 3 failures: ConnectionError: the bank does not" in ran.out
    assert "an operator cancels the export" in ran.out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_an_ordinary_user_can_run_it() -> None:
    python, modules = for_everybody()
    done = subprocess.run(
        [python, "-c", "from pulse.cli import main; main()", "demo", "--seconds", "8"],
        env=environment(HOME="/nonexistent", PYTHONPATH=modules, TMPDIR="/tmp"),
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == len(FACTS)


@pytest.fixture
def clone() -> Iterator[Path]:
    """What a fresh clone has: no venv, nothing built."""
    made = Path(tempfile.mkdtemp(prefix="pulse-clone.", dir=servers.memory()))
    made.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(paths.ROOT / name, made)
    leave = shutil.ignore_patterns("share", "build", "__pycache__", "*.egg-info")
    for name in ("python", "extension", "tools"):
        shutil.copytree(paths.ROOT / name, made / name, ignore=leave)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("uid", [None, 65534], ids=["ourselves", "an ordinary user"])
def test_make_demo_from_a_fresh_clone(clone: Path, uid: int | None) -> None:
    options: dict[str, Any] = {}
    python = "python3"
    if uid is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can be another user")
        python, _ = for_everybody()
        if python == sys.executable:
            python = str(Path(python).resolve())
        options = {"user": uid, "group": uid, "extra_groups": []}
        for path in (clone, *clone.rglob("*")):
            os.chown(path, uid, uid)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MAKE"))}
    done = subprocess.run(
        ["make", "demo", f"PYTHON={python}"],
        cwd=clone,
        env={**kept, "HOME": str(clone), "TMPDIR": "/tmp"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout
    assert "setup: making .venv" in done.stdout
    assert done.stdout.count("✓") == len(FACTS)
    assert shutil.which("pulse") or "Next: .venv/bin/pulse dev" in done.stdout
    # Only what the demo needs.
    assert not (clone / ".venv/bin/pytest").exists()
