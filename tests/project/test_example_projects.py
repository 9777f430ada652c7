"""The example projects, from an empty venv with the built wheel: their own tests, then
request, job and result, and a failover in the middle: the server is killed and its
standby promoted. libpq finds out which of the two hosts it is."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import packages
from tests.chaos.cluster import Node
from tools import paths, requirements, servers
from tools.servers import Server

EXAMPLES = paths.ROOT / "examples"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pulse-examples.", dir=servers.memory()))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    return packages.build_wheel(place, packages.copy_source(place))


class Example:
    """An example in a venv of its own, on a server with a synchronous standby."""

    def __init__(self, name: str, place: Path, wheel: Path, python: str) -> None:
        self.directory = Path(shutil.copytree(EXAMPLES / name, place / name))
        self.bin = place / f"{name}-venv" / "bin"
        packages.install(
            packages.empty_venv(self.bin.parent, python),
            *("--find-links", wheel.parent, "-r", "requirements.txt"),
            cwd=self.directory,
        )
        self.server: Server = Node(servers.primary(), waits_for="")
        self.server.create("shop")
        self.standby = Node(servers.primary(), source=self.server, waits_for="")
        self.server.psql(
            *("postgres", "-c", "ALTER SYSTEM SET synchronous_standby_names = '*'"),
            *("-c", "SELECT pg_reload_conf()"),
        )
        hosts = (self.server.socket, self.standby.socket)
        self._hosts = {
            "PGHOST": ",".join(map(str, hosts)),
            "PGTARGETSESSIONATTRS": "read-write",
        }
        self._started: list[subprocess.Popen[str]] = []

    def env(self, database: str) -> dict[str, str]:
        environ = {**self.server.environ(database), **self._hosts}
        return {k: v for k, v in environ.items() if not k.startswith("PYTHON")}

    def run(self, *command: str, database: str = "shop") -> str:
        program, *arguments = command
        return packages.run(
            self.bin / program,
            *arguments,
            cwd=self.directory,
            env=self.env(database),
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        program, *arguments = command
        log = (self.directory / f"log-{len(self._started)}").open("w")
        with log:
            process = subprocess.Popen(
                [str(self.bin / program), *arguments],
                cwd=self.directory,
                env=self.env("shop"),
                stdout=log,
                stderr=log,
                text=True,
            )
        self._started.append(process)
        return process

    @property
    def out(self) -> str:
        logs = sorted(self.directory.glob("log-*"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-4000:]}" for log in logs)

    def stop(self) -> list[int]:
        for process in self._started:
            process.terminate()
        codes = [process.wait(PATIENCE) for process in self._started]
        self._started.clear()
        return codes

    def fail_over(self) -> None:
        self.server.stop("SIGKILL")
        self.standby.psql("postgres", "-c", "SELECT pg_promote(true, 60)")
        self.server, self.standby = self.standby, self.server

    def close(self) -> None:
        self.stop()
        self.server.close()
        self.standby.close()


Make = Callable[..., Example]


@pytest.fixture
def make(place: Path, wheel: Path) -> Iterator[Callable[..., Example]]:
    made: list[Example] = []

    def example(name: str, python: str = sys.executable) -> Example:
        made.append(Example(name, place, wheel, python))
        return made[-1]

    yield example
    for each in made:
        each.close()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def ask(url: str, **fields: Any) -> Any:
    """JSON of an address; None while it does not answer as it should."""
    data = json.dumps(fields).encode() if fields else None
    headers = {"Content-Type": "application/json"}
    if "order" in fields:
        data = urllib.parse.urlencode(fields["order"]).encode()
        headers = {}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, OSError):
        return None


def until(example: Example, answer: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while True:
        got = answer()
        if got:
            return got
        assert time.monotonic() < end, example.out
        threading.Event().wait(0.05)


def a_failover_in_the_middle(
    example: Example,
    take: Callable[[float], Any],
    show: Callable[[int], Any],
    ended: str,
) -> None:
    """An order before, one while the server is lost, one after."""

    def confirmed(number: int) -> Any:
        shown = show(number)
        return shown and shown["status"] == ended and shown

    first = until(example, lambda: take(0))["order"]
    assert "a@example.org" in until(example, lambda: confirmed(first))["result"]
    slow = take(2)["order"]
    running = (
        "SELECT count(*) FROM pulse.jobs WHERE state = 'running' AND payload::text"
        " LIKE '%2.0%'"
    )
    until(example, lambda: example.server.psql("shop", "-c", running).strip() == "1")
    example.fail_over()
    assert until(example, lambda: confirmed(slow))
    last = until(example, lambda: take(0))["order"]
    assert until(example, lambda: confirmed(last))
    # What was committed on the server that was lost is all there.
    assert show(first)["status"] == ended
    problems = example.server.psql("shop", "-c", "SELECT * FROM pulse.check()")
    assert problems.strip() == ""


def test_the_django_project(make: Make) -> None:
    # Django 6 where there is a Python for it, else 5.2 with the backport.
    example = make("django", requirements.newer_python() or sys.executable)
    python = example.bin / "python"
    manage = ("python", "manage.py")
    # `make lint` has read the other one; here Django's types are needed.
    packages.install(python, "django-stubs", "mypy", cwd=example.directory)
    example.run("mypy", ".")
    pyright = (sys.executable, "-m", "basedpyright", "--pythonpath", python, ".")
    packages.run(*pyright, cwd=example.directory)
    example.run(*manage, "migrate", "-v0")
    assert "OK" in example.run(*manage, "test")
    assert "No changes" in example.run(*manage, "makemigrations", "--check")
    site = f"127.0.0.1:{free_port()}"
    worker = example.start(*manage, "pulse_worker")
    example.start(*manage, "runserver", "--noreload", site)

    def take(seconds: float) -> Any:
        order = {"email": "a@example.org", "seconds": float(seconds)}
        return ask(f"http://{site}/orders/", order=order)

    a_failover_in_the_middle(
        example, take, lambda n: ask(f"http://{site}/orders/{n}/"), "SUCCESSFUL"
    )
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    # The tests of pulse.django have run on 5.2; here is the other Django.
    example.directory = Path(
        shutil.copytree(paths.ROOT / "tests/django/project", example.directory / "all")
    )
    for settings, app in (("settings", "shop"), ("judge", "judge")):
        where = ("--settings", f"config.{settings}")
        assert "OK" in example.run(*manage, "test", app, *where)


def test_the_fastapi_application(make: Make) -> None:
    example = make("fastapi")
    example.server.create("test")
    example.run("pytest", "-q", database="test")
    example.run("alembic", "upgrade", "head")
    port = str(free_port())
    site = example.start("uvicorn", "app:app", "--port", port)
    here = f"http://127.0.0.1:{port}/orders"

    def take(seconds: float) -> Any:
        return ask(here, email="a@example.org", seconds=float(seconds))

    a_failover_in_the_middle(example, take, lambda n: ask(f"{here}/{n}"), "confirmed")
    with contextlib.suppress(ProcessLookupError):
        site.terminate()
    site.wait(PATIENCE)
    assert "has stopped" in example.out or "Application shutdown" in example.out
    example.run("alembic", "downgrade", "base")
