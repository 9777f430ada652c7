"""pulse work: which database it works for, and what it logs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import PULSE, command, environment
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
        *("work", "an_app", "--json", "--dsn", db.dsn),
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
        "good": ("info", "complete"),
        "bad": ("error", "fail"),
        "last": ("info", "complete"),
    }


def test_every_start_and_end_is_logged_at_info(
    app: Callable[..., Path], db: Database
) -> None:
    for level, logged in (("info", True), ("warning", False)):
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
    warning = f"an_app has a DSN of its own, which is used: database {db.name} "
    assert warning in ran.err
    assert state(db.connect()) == "completed"


def test_lanes_and_limits_are_overridden(
    app: Callable[..., Path], db: Database
) -> None:
    connection = db.connect()
    connection.execute("SELECT pulse.enqueue('good', lane => 'mail')")
    limits = ("--max-jobs", "1", "--max-memory", "4GB")
    process = worker_of(
        *(app(), "--lanes", "mail=1,other=2", *limits, "--dsn", db.dsn, "--json")
    )
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any("1 in mail, 2 in other" in line for line in lines)
    restarted = next(line for line in lines if "restarting: " in line)
    assert json.loads(restarted)["message"] == "restarting: it has run 1 jobs"
    # A worker that was asked to stop does not restart, limit or not.
    connection.execute("SELECT pulse.enqueue('last', lane => 'other')")
    process.communicate(timeout=60)
    assert process.returncode == 0


def worker_of(where: Path, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*PULSE, "work", "an_app", *arguments],
        cwd=where,
        env=environment(PYTHONDONTWRITEBYTECODE=""),
        stderr=subprocess.PIPE,
        text=True,
    )
    # Whoever waits for a line that does not come gets the end of all lines.
    timer = threading.Timer(60, process.terminate)
    timer.daemon = True
    timer.start()
    return process


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lanes", "mail"], "'mail' is not LANE=SLOTS"),
        (["--lanes", "a=1", "--concurrency", "2"], "exclude each other"),
        (["--max-memory", "much"], "'much' is not a size"),
        (["--dsn", "nonsense"], "this is not a DSN"),
    ],
)
def test_what_cannot_be_is_refused(
    app: Callable[..., Path], db: Database, arguments: list[str], words: str
) -> None:
    ran = command("--dsn", db.dsn, "work", "an_app", *arguments, cwd=app())
    assert ran.code == 2
    assert words in ran.err


def test_reload_starts_again_when_a_file_changes(
    app: Callable[..., Path], db: Database
) -> None:
    where = app()
    process = worker_of(where, "--reload", "--dsn", db.dsn)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        assert any("starts: 1 in default" in line for line in lines)
        path = where / "an_app.py"
        written = path.stat().st_mtime_ns
        path.write_text(path.read_text().replace("concurrency=1", "concurrency=3"))
        # Of the same size and in the same second, as by a quick hand.
        os.utime(path, ns=(written, written + 1))
        assert any("starts: 3 in default" in line for line in lines)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_what_is_declared_is_written_by_hand(
    app: Callable[..., Path], db: Database
) -> None:
    where = app()
    refused = command("reconcile", "an_app", "--dsn", db.dsn, cwd=where)
    assert refused.code == 2
    assert "declares nothing" in refused.err
    path = where / "an_app.py"
    path.write_text(
        path.read_text().replace("concurrency=1", "application='shop'")
        + "worker.schedule('nightly', every='1 day')(good)\n"
    )
    ran = command("reconcile", "an_app", "--dsn", db.dsn, cwd=where)
    assert ran.out == "schedule nightly: created\n", ran.err


def test_a_shell_completes_verbs() -> None:
    script = command("completion", "bash")
    assert "_PULSE_COMPLETE=bash_complete" in script.out
    found = command(
        _PULSE_COMPLETE="bash_complete", COMP_WORDS="pulse rec", COMP_CWORD="1"
    )
    assert found.out == "plain,reconcile\n"
