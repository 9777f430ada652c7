"""A Django project, run as its own programs against a fresh, empty database."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pulse
from tests.conftest import Database
from tools import paths
from tools.servers import Server

# Its tests are Django's: `manage.py test` runs them.
collect_ignore = ["project"]
PROJECT = Path(__file__).parent / "project"
PATIENCE = 60.0


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


class Worker:
    """manage.py pulse_worker, and the jobs it works off."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self.process = project.start("pulse_worker", "-v2", *arguments)
        self._connection = project.db.connect()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.append(line)

    @property
    def out(self) -> str:
        return "".join(self._lines)

    def enqueue(
        self, name: str, *args: Any, backend: str = "default", **options: Any
    ) -> int:
        payload = {"args": args, "kwargs": {}, "backend": backend}
        options = {"max_attempts": 1, **options}
        return pulse.enqueue(self._connection, f"shop.tasks.{name}", payload, **options)

    def job(self, job: int) -> dict[str, Any]:
        row = self._connection.execute(
            "SELECT to_jsonb(j) FROM pulse.jobs AS j WHERE j.job_id = %s", [job]
        ).fetchone()
        assert row is not None
        return dict(row[0])

    def until(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            assert self.process.poll() is None, self.out
            assert time.monotonic() < end, self.out
            time.sleep(0.01)

    def result(self, job: int) -> Any:
        self.until(lambda: self.job(job)["state"] in ("completed", "dead", "cancelled"))
        ended = self.job(job)
        assert ended["state"] == "completed", ended["last_error"]
        return ended["result"]

    def error(self, job: int) -> str:
        self.until(lambda: self.job(job)["state"] == "dead")
        return str(self.job(job)["last_error"])

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        # Not killed: a reloader, and its child, end on TERM.
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self._reader.join(PATIENCE)


@pytest.fixture
def work(migrated: Project) -> Iterator[Callable[..., Worker]]:
    """work("--lanes", "mail=2") starts a worker; it ends with the test."""
    started: list[Worker] = []

    def start(*arguments: str) -> Worker:
        started.append(Worker(migrated, *arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def project(new_db: Callable[..., Database]) -> Project:
    return Project(new_db(product=None))


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """A database after `migrate`, to be copied: that takes seconds."""
    database = Database(server, server.create("django_project"))
    Project(database).manage("migrate", "-v0")
    return database.name


@pytest.fixture
def migrated(project: Project, template: str) -> Project:
    name = project.db.name
    project.db.server.drop(name)
    project.db.server.psql(
        "postgres", "-c", f"CREATE DATABASE {name} TEMPLATE {template}"
    )
    return project
