"""The source without what was made from it, and copies of it for tests to change."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tools import paths

# As .gitignore has it; a checkout may have come without git.
MADE = (
    *(".git", ".venv", ".cache", "build", "dist", "share", "results"),
    *("*.egg-info", "__pycache__", ".*_cache", ".hypothesis"),
)


def files() -> Iterator[str]:
    """Every file of the source, by its path."""
    for folder, folders, names in os.walk(paths.ROOT):
        folders[:] = [name for name in folders if not is_made(name)]
        for name in names:
            if not is_made(name):
                yield str((Path(folder) / name).relative_to(paths.ROOT))


def is_made(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in MADE)


def copy(target: Path, *tops: str) -> Path:
    """All of it, or what these files and folders at the top have."""
    for name in files():
        if not tops or name.partition("/")[0] in tops:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.ROOT / name, target / name)
    return target
