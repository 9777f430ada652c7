"""docs/development/add-a-verb.md works: its diff applies, its verb passes its tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project import scratch
from tools import check, paths

PAGE = paths.ROOT / "docs/development/add-a-verb.md"
SPEC = "hurry-against-cancel"
CHECKED = (
    *(
        "tests/sql/operate/hurry.sql",
        "tests/sql/access/levels.sql",
        "tests/sql/hygiene.sql",
    ),
    f"tests/isolation/specs/{SPEC}.spec",
    *("tests/cli/test_hurry.py", "tests/cli/test_docs.py"),
    *("tests/web/test_api_hurry.py", "tests/project/test_coverage_of_contract.py"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source as it is, beside the tools and servers that are here already."""
    copied = scratch.copy(tmp_path_factory.mktemp("verb") / "pulse")
    (copied / ".venv").symlink_to(paths.VENV)
    (copied / ".cache").symlink_to(paths.ROOT / ".cache")
    return copied


def run(copy: Path, *command: str, given: str | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=copy,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


@pytest.mark.skipif(not shutil.which("git"), reason="git is not here")
def test_the_page_adds_a_verb_that_works_everywhere(copy: Path) -> None:
    blocks = re.findall(
        r"^```diff\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) > 5
    # Where the lines are is found by what is around them.
    run(copy, "git", "apply", "-", given="".join(blocks))
    make = ("make", "-s", "-o", "setup")
    run(copy, *make, "isolation-accept", f"SPEC={SPEC}")
    run(copy, *make, "reference", "api")
    python = str(paths.VENV / "bin/python")
    said = run(
        copy,
        python,
        "-m",
        "pytest",
        "-p",
        "anyio",
        "-k",
        check.other_servers(),
        *CHECKED,
    )
    assert " passed" in said
    run(copy, python, "-m", "ruff", "check", "--quiet", "python", "tests")
    run(copy, python, "-m", "ruff", "format", "--quiet", "--check", "python", "tests")
