"""One version, stated in many places; how it is released and raised."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import scratch
from tools import paths, release

needs_git = pytest.mark.skipif(not shutil.which("git"), reason="git is not here")
SOURCES = (
    *("extension", "python", "tools"),
    *("META.json", "CHANGELOG.md", "pyproject.toml"),
)


def test_every_place_states_the_same_version() -> None:
    assert set(release.versions().values()) == {release.control()}


def test_no_other_file_names_a_built_script_by_its_version() -> None:
    # 0.9 and 1.1 are versions that tests make up.
    script = re.compile(rb"pulse--(?!0\.9|1\.1)\d+\.\d+\.sql")
    named = {
        name
        for name in scratch.files()
        if script.search((paths.ROOT / name).read_bytes())
        and not name.startswith("extension/released/")
    }
    assert named == {"META.json"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The version's places in a repository of their own."""
    copied = scratch.copy(tmp_path / "clone", *SOURCES)
    # As before a release, also when this is the commit of one.
    changelog = copied / "CHANGELOG.md"
    dated = r"(?m)^(## .+) \(.+\)$"
    changelog.write_text(
        re.sub(dated, r"\1 (unreleased)", changelog.read_text(), count=1)
    )
    (copied / ".gitignore").write_text("build/\n__pycache__/\n")
    git(copied, "init", "-q")
    commit(copied)
    return copied


def git(where: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=where, check=True)


def commit(where: Path) -> None:
    git(where, "add", "-A")
    git(where, "commit", "-qm", "all")


def run(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.release", *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )


@needs_git
def test_a_release_and_the_version_after_it(clone: Path) -> None:
    old = release.control()
    new = f"{old}1"
    done = run(clone, "release", old)
    assert done.returncode == 0, done.stderr
    assert f"git tag -a v{old}" in done.stdout
    assert re.search(
        rf"^## {old} \(\d{{4}}-\d\d-\d\d\)$", (clone / "CHANGELOG.md").read_text(), re.M
    )
    commit(clone)
    assert "extension/ is not what the tag" in run(clone, "next", new).stderr
    git(clone, "tag", f"v{old}")
    done = run(clone, "next", new)
    assert done.returncode == 0, done.stderr

    ask = "from tools import release; print(set(release.versions().values()))"
    stated = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    assert stated.stdout == f"{{'{new}'}}\n"
    assert f"## {new} (unreleased)" in (clone / "CHANGELOG.md").read_text()
    frozen = clone / f"extension/released/pulse--{old}.sql"
    assert "CREATE FUNCTION pulse.enqueue" in frozen.read_text()
    subprocess.run(["make", "-s", "-C", str(clone / "extension")], check=True)
    assert (clone / f"extension/build/pulse--{old}--{new}.sql").exists()
    assert (clone / f"extension/build/pulse--{new}.sql").exists()
    *_, first, second = sorted((clone / release.MIGRATIONS).glob("0*.py"))
    assert f'("pulse", "{first.stem}")' in second.read_text()
    assert f'InstallPulse("{new}")' in second.read_text()


@needs_git
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("release", "1"), "two numbers"),
        (("release", "99.0"), "these are not 99.0"),
        (("next", "99.0"), "is not released yet"),
    ],
)
def test_what_a_release_refuses(
    clone: Path, arguments: tuple[str, str], says: str
) -> None:
    done = run(clone, *arguments)
    assert done.returncode == 1
    assert says in done.stderr


@needs_git
def test_a_release_with_uncommitted_changes_is_refused(clone: Path) -> None:
    (clone / "more").touch()
    assert "uncommitted" in run(clone, "release", release.control()).stderr
