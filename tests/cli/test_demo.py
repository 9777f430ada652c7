"""pulse demo: from nothing to a worked load, and back to nothing."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import command, environment
from tests.cli.test_embedded import for_everybody
from tools import paths

FACTS = (
    "every picture is done",
    "the urgent ones came first",
    "the card's job is dead",
    "the model is trained",
    "the export is cancelled",
    "the digest went out",
)


def test_it_ends_by_itself_and_everything_happened(tmp_path: Path) -> None:
    begin = time.monotonic()
    ran = command("demo", TMPDIR="/tmp")
    assert ran.code == 0, ran.out + ran.err
    assert time.monotonic() - begin < 60
    for fact in FACTS:
        assert f"✓ {fact}" in ran.out
    assert "charge-card" in ran.out
    assert "is dead after 3 failures: ConnectionError: the bank does not" in ran.out
    assert "somebody cancels the export" in ran.out


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


def test_make_demo_is_what_runs_it() -> None:
    said = subprocess.check_output(["make", "-n", "demo"], cwd=paths.ROOT, text=True)
    assert "-m tools.demo" in said
