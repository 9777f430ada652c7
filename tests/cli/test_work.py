"""pulse work: which database it works for, and what it logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import command
from tests.conftest import Connection, Database

APP = """
import os, signal, pulse

worker = pulse.Worker({dsn!r}, concurrency=1)


@worker.handle("last")
def last(job):
    os.kill(os.getpid(), signal.SIGTERM)


@worker.handle("bad")
def bad(job):
    raise pulse.Fatal("no such customer")


@worker.handle("good")
def good(job):
    return 1
"""


@pytest.fixture
def app(tmp_path: Path) -> Callable[[str], Path]:
    def write(dsn: str = "") -> Path:
        (tmp_path / "an_app.py").write_text(APP.format(dsn=dsn))
        return tmp_path

    return write


def enqueue(connection: Connection, *kinds: str) -> None:
    for kind in kinds:
        connection.execute("SELECT pulse.enqueue(%s)", [kind])


def state(connection: Connection) -> str:
    row = connection.execute("SELECT state FROM pulse.jobs").fetchone()
    assert row is not None
    return str(row[0])


def test_with_json_each_line_of_the_log_is_an_object(
    app: Callable[..., Path], db: Database
) -> None:
    enqueue(db.connect(), "good", "bad", "last")
    ran = command(
        *("work", "an_app", "--json", "--log-level", "debug", "--dsn", db.dsn),
        cwd=app(),
    )
    assert ran.code == 0, ran.err
    assert ran.out == ""
    lines = [json.loads(line) for line in ran.err.splitlines()]
    outcomes = {
        line["kind"]: (line["level"], line["outcome"])
        for line in lines
        if "outcome" in line
    }
    assert outcomes == {
        "good": ("debug", "complete"),
        "bad": ("warning", "fail"),
        "last": ("debug", "complete"),
    }


def test_completions_are_logged_at_debug_only(
    app: Callable[..., Path], db: Database
) -> None:
    for level, logged in (("debug", True), ("info", False)):
        enqueue(db.connect(), "last")
        ran = command(
            *("work", "an_app", "--log-level", level, "--dsn", db.dsn), cwd=app()
        )
        assert ran.code == 0, ran.err
        assert ("(last, attempt 1) completed" in ran.err) is logged


def test_a_dsn_beside_that_of_the_worker_is_refused(
    app: Callable[..., Path], db: Database, new_db: Callable[..., Database]
) -> None:
    other = new_db()
    enqueue(db.connect(), "last")
    ran = command("work", "an_app", "--dsn", other.dsn, cwd=app(db.dsn))
    assert ran.code == 2
    assert "an_app has a DSN of its own, and --dsn names another database" in ran.err
    assert f"database {db.name} " in ran.err
    assert f"database {other.name} " in ran.err
    assert state(db.connect()) == "ready"
    # The same database by both is no contradiction.
    assert command("work", "an_app", "--dsn", db.dsn, cwd=app(db.dsn)).code == 0
    assert state(db.connect()) == "completed"


def test_a_dsn_of_the_environment_gives_way_and_that_is_logged(
    app: Callable[..., Path], db: Database, new_db: Callable[..., Database]
) -> None:
    enqueue(db.connect(), "last")
    ran = command("work", "an_app", cwd=app(db.dsn), PULSE_DSN=new_db().dsn)
    assert ran.code == 0, ran.err
    said = f"an_app has a DSN of its own, which is used: database {db.name} "
    assert said in ran.err
    assert state(db.connect()) == "completed"
