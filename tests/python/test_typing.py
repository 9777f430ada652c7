"""mypy and pyright read programs that use pulse as their authors meant them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import paths

PROGRAMS = Path(__file__).parent / "typing"
LINE = re.compile(r"wrong\.py:(\d+)")


def mypy(program: Path) -> subprocess.CompletedProcess[str]:
    return run("mypy", "--strict", "--enable-error-code=unused-coroutine", str(program))


def pyright(program: Path) -> subprocess.CompletedProcess[str]:
    project = ("--project", str(PROGRAMS), "--pythonpath", sys.executable)
    return run("basedpyright", *project, str(program))


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


Check = Callable[[Path], "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("check", [mypy, pyright])
def test_what_users_write_is_clean(check: Check) -> None:
    ran = check(PROGRAMS / "right.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("check", [mypy, pyright])
def test_mistakes_are_found(check: Check) -> None:
    program = PROGRAMS / "wrong.py"
    ran = check(program)
    marked = {
        number
        for number, line in enumerate(program.read_text().splitlines(), 1)
        if "# wrong: " in line
    }
    assert {int(number) for number in LINE.findall(ran.stdout)} == marked, ran.stdout
