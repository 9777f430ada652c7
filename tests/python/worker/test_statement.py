"""The statement of the loop: by psycopg's internals, and by its documented API.

The slow test runs this file with the oldest psycopg that pulse supports and with the
newest one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pulse
from pulse.worker import statement, watched
from pulse.worker.connection import Connector
from pulse.worker.statement import Statement, WorkerConnection
from tests.conftest import Database
from tests.packages import run
from tests.python.worker.conftest import Queue, Start
from tools import paths

ECHO = "SELECT CAST(%(text)s AS text)"
SLEEP = "SELECT pg_sleep(CAST(%(text)s AS float8))"
PATIENCE = 20.0

FORMS = {
    "watched": (watched.WatchedConnection, watched.WatchedStatement),
    "documented": (WorkerConnection, statement.DocumentedStatement),
}

# Prints the form that the worker uses, and why.
PRINT_FORM = """
import sys, psycopg
psycopg.__version__ = sys.argv[1] or psycopg.__version__
from pulse.worker import statement
print(statement.PREPARED.__name__, statement.DOCUMENTED_BECAUSE, sep="|")
"""


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The worker uses this form of the statement."""
    connection, prepared = FORMS[request.param]
    monkeypatch.setattr(statement, "CONNECTION", connection)
    monkeypatch.setattr(statement, "PREPARED", prepared)
    return str(request.param)


def play(db: Database, scenario: Callable[[WorkerConnection], Awaitable[None]]) -> None:
    async def run() -> None:
        connection = await Connector(db.dsn, "w").open_async("coordinator")
        try:
            await asyncio.wait_for(scenario(connection), PATIENCE)
        finally:
            await connection.close()

    asyncio.run(run())


async def echo(prepared: Statement, connection: WorkerConnection, text: str) -> Any:
    rows = await prepared.execute(connection, [text])
    return rows.read(0, 1)[0][0]


def echoing() -> Statement:
    return statement.PREPARED("echo", ECHO, ["text"])


def sleeping() -> Statement:
    return statement.PREPARED("sleep", SLEEP, ["text"])


def watched_socket(connection: WorkerConnection) -> int | None:
    """The socket that is registered between two statements; psycopg keeps none."""
    if isinstance(connection, watched.WatchedConnection):
        return connection._watched
    return None


async def until_active(db: Database, connection: WorkerConnection) -> None:
    query = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
    watching, pid = db.connect(), connection.info.backend_pid
    while watching.execute(query, [pid]).fetchone() != (True,):
        await asyncio.sleep(0.01)


def test_other_statements_come_between(db: Database, form: str) -> None:
    async def scenario(connection: WorkerConnection) -> None:
        prepared = echoing()
        for n in range(3):
            assert await echo(prepared, connection, f"a{n}") == f"a{n}"
            assert await echo(prepared, connection, f"b{n}") == f"b{n}"
            cursor = await connection.execute("SELECT %s", [n])
            assert await cursor.fetchone() == (n,)

    play(db, scenario)


def test_a_statement_that_cannot_be_sent_at_once(db: Database, form: str) -> None:
    async def scenario(connection: WorkerConnection) -> None:
        prepared = echoing()
        text = "x" * (16 << 20)
        assert await echo(prepared, connection, text) == text
        assert await echo(prepared, connection, "a") == "a"

    play(db, scenario)


def test_a_cancel_ends_the_statement_on_the_server(db: Database, form: str) -> None:
    async def scenario(connection: WorkerConnection) -> None:
        task = asyncio.create_task(sleeping().execute(connection, ["600"]))
        await until_active(db, connection)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await echo(echoing(), connection, "a") == "a"

    play(db, scenario)


def test_a_session_that_the_server_ends_is_watched_no_longer(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement, "CONNECTION", watched.WatchedConnection)

    async def scenario(connection: WorkerConnection) -> None:
        prepared = watched.WatchedStatement("echo", ECHO, ["text"])
        assert await echo(prepared, connection, "a") == "a"
        assert watched_socket(connection) is not None
        pid = connection.info.backend_pid
        db.connect().execute("SELECT pg_terminate_backend(%s)", [pid])
        while watched_socket(connection) is not None:
            await asyncio.sleep(0)
        with pytest.raises(psycopg.OperationalError):
            await echo(prepared, connection, "b")
        # The next one has the same number of a file.
        async with await Connector(db.dsn, "w").open_async("coordinator") as other:
            assert await echo(prepared, other, "c") == "c"

    play(db, scenario)


def test_a_session_that_has_ended_unseen(db: Database, form: str) -> None:
    async def scenario(connection: WorkerConnection) -> None:
        prepared = echoing()
        assert await echo(prepared, connection, "a") == "a"
        pid = connection.info.backend_pid
        # Waits for its end, and the event loop with it.
        ended = db.connect().execute("SELECT pg_terminate_backend(%s, 20000)", [pid])
        assert ended.fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            await echo(prepared, connection, "b")
        assert watched_socket(connection) is None

    play(db, scenario)


def test_a_session_that_ends_during_a_statement(db: Database, form: str) -> None:
    async def scenario(connection: WorkerConnection) -> None:
        task = asyncio.create_task(sleeping().execute(connection, ["600"]))
        await until_active(db, connection)
        pid = connection.info.backend_pid
        db.connect().execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(psycopg.OperationalError):
            await task
        assert watched_socket(connection) is None

    play(db, scenario)


def test_values_and_nulls_are_read_alike_in_both_forms(db: Database, form: str) -> None:
    query = (
        "SELECT CAST(%(text)s AS jsonb), CAST(NULL AS text), 7, ARRAY['a', NULL], "
        "timestamptz '2030-01-02 03:04:05Z', CAST('(1,2)' AS point)"
    )

    async def scenario(connection: WorkerConnection) -> None:
        prepared = statement.PREPARED("read", query, ["text"])
        rows = await prepared.execute(connection, ['{"a": [1, 2.5, null]}'])
        assert rows.count == 1
        assert rows.raw(0, 1) == b""
        assert rows.raw(0, 2) == (7).to_bytes(4, "big")
        (row,) = rows.read(0, 1)
        assert row[:4] == ({"a": [1, 2.5, None]}, None, 7, ["a", None])
        assert row[4].isoformat().startswith("2030-01-02T03:04:05")
        # psycopg does not know points: it hands them on as they came.
        assert len(row[5]) == 16

    play(db, scenario)


def test_an_error_of_the_server_has_its_code(db: Database, form: str) -> None:
    async def scenario(connection: WorkerConnection) -> None:
        prepared = statement.PREPARED("n", "SELECT CAST(%(text)s AS int)", ["text"])
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            await prepared.execute(connection, ["x"])
        rows = await prepared.execute(connection, ["5"])
        assert rows.read(0, 1) == [(5,)]

    play(db, scenario)


@pytest.mark.parametrize("prepare", [True, False])
def test_a_worker_runs_jobs_with_either_form(
    queue: Queue, start: Start, form: str, prepare: bool
) -> None:
    worker = pulse.Worker(queue.db.dsn, concurrency=5, poll_interval=0.05)
    worker._connectors = [Connector(queue.db.dsn, worker.name, prepare=prepare)]

    @worker.handle("double")
    def double(job: pulse.Job, n: int) -> int:
        return 2 * n

    @worker.handle("fails", max_attempts=1)
    def fails(job: pulse.Job) -> None:
        raise pulse.Fatal("no \u2013 never")

    good = [queue.enqueue("double", {"n": n}) for n in range(50)]
    bad = queue.enqueue("fails")
    start(worker)
    for n, job_id in enumerate(good):
        queue.until_state(job_id, "completed")
        assert queue.job(job_id)["result"] == 2 * n
    queue.until_state(bad, "dead")


def form_used(version: str, **environment: str) -> tuple[str, str]:
    """The form of a new process, and its reason; version "": the installed one."""
    command = [sys.executable, "-c", PRINT_FORM, version]
    name, reason = run(*command, cwd=paths.ROOT, env=environment).strip().split("|")
    return name, reason


def test_an_unknown_psycopg_gets_the_documented_form() -> None:
    path = str(paths.ROOT / "python")
    assert form_used("", PYTHONPATH=path) == ("WatchedStatement", "")
    name, reason = form_used("3.9.1", PYTHONPATH=path)
    assert name == "DocumentedStatement"
    assert "3.9.1 is none of 3.2, 3.3" in reason


def test_a_missing_internal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(watched.differences()) == []
    monkeypatch.setitem(watched.USED, psycopg.adapt.Transformer, ("load_rows", "gone"))
    (difference,) = watched.differences()
    assert "Transformer" in difference
    assert difference.endswith("has no gone")


@pytest.mark.parametrize("wanted", ["==3.2.0", ""], ids=["oldest", "newest"])
def test_the_oldest_and_the_newest_psycopg(tmp_path: Path, wanted: str) -> None:
    """Both forms, so this file without its slow tests."""
    packages = [f"psycopg{wanted}", f"psycopg-binary{wanted}"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
    run(*pip, "--target", tmp_path, *packages, cwd=tmp_path)
    path = os.pathsep.join([str(tmp_path), str(paths.ROOT / "python")])
    show = [sys.executable, "-c", "import psycopg; print(psycopg.__version__)"]
    version = run(*show, cwd=paths.ROOT, env={"PYTHONPATH": path}).strip()
    assert version == "3.2.0" if wanted else version >= psycopg.__version__
    assert form_used("", PYTHONPATH=path) == ("WatchedStatement", "")
    command = [sys.executable, "-m", "pytest", "-m", "not slow", __file__]
    done = subprocess.run(
        command,
        cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
