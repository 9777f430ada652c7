"""A Django project, run as its own programs against a fresh, empty database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Database
from tools import paths

# Its tests are Django's: `manage.py test` runs them.
collect_ignore = ["project"]
PROJECT = Path(__file__).parent / "project"


@dataclass
class Ran:
    code: int
    out: str


@dataclass
class Project:
    """manage.py of a project, with the database it uses."""

    db: Database
    python: str = sys.executable
    directory: Path = PROJECT
    user: str = "postgres"
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            **self.db.server.environ(self.db.name),
            "PGUSER": self.user,
            "PYTHONPATH": str(paths.ROOT / "python"),
            "PYTHONWARNINGS": "default",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environ,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "manage.py", *arguments],
            cwd=self.directory,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, within: float = 120) -> Ran:
        process = self.start(*arguments)
        try:
            out, _ = process.communicate(timeout=within)
        finally:
            process.kill()
        return Ran(process.returncode, out)

    def manage(self, *arguments: str) -> str:
        ran = self.run(*arguments)
        assert ran.code == 0, ran.out
        return ran.out


@pytest.fixture
def project(new_db: Callable[..., Database]) -> Project:
    return Project(new_db(product=None))


@pytest.fixture
def migrated(project: Project) -> Project:
    project.manage("migrate", "-v0")
    return project
