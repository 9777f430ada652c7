"""The package as people get it: built from a copy, installed into empty venvs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import paths


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MAKE"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}"
    return done.stdout


def copy_source(place: Path) -> Path:
    """What the package is built from, so that the checkout stays as it is."""
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(paths.ROOT / name, source)
    leave = shutil.ignore_patterns("share", "build", "__pycache__", "*.egg-info")
    for name in ("python", "extension"):
        shutil.copytree(paths.ROOT / name, source / name, ignore=leave)
    return source


def build_wheel(place: Path, source: Path) -> Path:
    """Of a directory or of a source distribution, as pip does."""
    run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"),
        *("-w", place / "dist", source),
        cwd=place,
    )
    return next((place / "dist").glob("pgpulse-*.whl"))


def empty_venv(place: Path, python: str = sys.executable) -> Path:
    """The Python of a venv with nothing in it, no pip either: ours installs into it."""
    run(python, "-m", "venv", "--without-pip", place, cwd=place.parent)
    return place / "bin" / "python"


def install(python: Path, *wanted: str | Path, cwd: Path) -> None:
    run(
        *(sys.executable, "-m", "pip", "--python", python),
        *("install", "-q", "--no-compile", *wanted),
        cwd=cwd,
    )
