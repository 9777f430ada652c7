"""pulse.testing: everything in the test's own transaction."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import pulse
import pulse.testing
from pulse import Job, Worker
from pulse.testing import assert_enqueued, forget_jobs, refute_enqueued
from tests.conftest import Connection, Database


def build(connection: Connection) -> Worker:
    worker = Worker("host=/nowhere", lanes={"default": 1, "other": 1})

    @worker.handle("parent")
    def parent(job: Job, children: int) -> str:
        job.progress(0.5)
        job.checkpoint({"children": children})
        for n in range(children):
            pulse.enqueue(connection, "child", {"n": n}, lane="other")
        return "spawned"

    @worker.handle("child")
    async def child(job: Job, n: int) -> int:
        if n == 1:
            raise ValueError("the middle one")
        if n == 2:
            raise pulse.Snooze("1 minute")
        return n

    return worker


def test_work_off_runs_all_in_this_transaction(db: Database) -> None:
    connection = db.connect(autocommit=False)
    worker = build(connection)
    pulse.enqueue(connection, "parent", {"children": 3})
    pulse.enqueue(connection, "unknown")
    done = pulse.testing.work_off(connection, worker)
    assert [(d.job.kind, d.outcome, d.result) for d in done] == [
        ("parent", "complete", "spawned"),
        ("child", "complete", 0),
        ("child", "fail", None),
        ("child", "snooze", None),
    ]
    assert "the middle one" in (done[2].error or "")
    rows = connection.execute("SELECT kind, state FROM pulse.jobs").fetchall()
    assert rows == [
        ("parent", "completed"),
        ("unknown", "ready"),
        ("child", "completed"),
        ("child", "retrying"),
        ("child", "scheduled"),
    ]
    connection.rollback()
    row = db.connect().execute("SELECT count(*) FROM pulse.jobs").fetchone()
    assert row == (0,)


def test_work_off_works_inside_an_event_loop(db: Database) -> None:
    connection = db.connect(autocommit=False)
    pulse.enqueue(connection, "child", {"n": 0})

    async def main() -> None:
        done = pulse.testing.work_off(connection, build(connection))
        assert [d.result for d in done] == [0]

    asyncio.run(main())
    connection.rollback()


def test_perform_runs_one_job_whatever_is_before_it(db: Database) -> None:
    connection = db.connect(autocommit=False)
    worker = build(connection)
    pulse.enqueue(connection, "child", {"n": 0}, priority=9)
    job = pulse.enqueue(connection, "child", {"n": 7}, delay="1 hour", priority=3)
    done = pulse.testing.perform(connection, worker, job)
    assert (done.job.id, done.job.priority, done.result) == (job, 3, 7)
    with pytest.raises(pulse.errors.WrongState):
        pulse.testing.perform(connection, worker, job)
    connection.rollback()


def test_time_passes_without_waiting(db: Database) -> None:
    connection = db.connect(autocommit=False)
    worker = build(connection)
    soon = pulse.enqueue(connection, "child", {"n": 5}, delay="1 hour")
    pulse.enqueue(connection, "child", {"n": 6}, delay="3 hours")
    assert pulse.testing.work_off(connection, worker) == []
    assert pulse.testing.pass_time(connection, timedelta(hours=2)) == 1
    assert [d.job.id for d in pulse.testing.work_off(connection, worker)] == [soon]
    assert pulse.testing.pass_time(connection, "1 hour") == 1
    [done] = pulse.testing.work_off(connection, worker)
    assert done.result == 6
    # A retry waits for its backoff, until time passes.
    pulse.enqueue(connection, "child", {"n": 1})
    pulse.testing.work_off(connection, worker)
    assert pulse.testing.pass_time(connection, 60) == 1
    connection.rollback()


def test_tests_that_commit_leave_nothing_behind(db: Database) -> None:
    with db.connect() as connection:
        first = pulse.enqueue(connection, "k")
        pulse.enqueue(connection, "k", delay="1 day", unique_key="u")
        pulse.enqueue(connection, "k", after=[first])
        connection.execute("SELECT FROM pulse.claim_batch('w')")
        assert forget_jobs(connection) == 3
        assert connection.execute("SELECT FROM pulse.jobs").fetchall() == []
        assert forget_jobs(connection) == 0
        assert pulse.enqueue(connection, "k", unique_key="u") > first


def test_what_is_enqueued_is_asserted(db: Database) -> None:
    connection = db.connect(autocommit=False)
    at = datetime(2030, 1, 1, tzinfo=timezone.utc)
    for n in range(2):
        pulse.enqueue(connection, "mail", {"to": "a", "n": n, "at": at}, lane="mail")
    found = assert_enqueued(connection, "mail", {"to": "a", "at": at}, lane="mail")
    assert [job["payload"]["n"] for job in found] == [0, 1]
    assert_enqueued(connection, "mail", {"n": 1}, count=1, state="ready")
    refute_enqueued(connection, "mail", {"n": 2})
    with pytest.raises(AssertionError) as wrong:
        assert_enqueued(connection, "mail", {"n": 3}, priority=2)
    assert str(wrong.value).startswith(
        "expected at least one job with kind='mail', payload={'n': 3}, priority=2, "
        "found 0. Of mail there are:"
    )
    with pytest.raises(AssertionError, match=r"found 0\. None is"):
        assert_enqueued(connection, "other")
    connection.rollback()


def test_a_session_of_sqlalchemy_is_worked_off(db: Database) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: db.connect(autocommit=False)
    )
    with Session(engine) as session:
        worker = build(db.connect())
        pulse.enqueue(session, "child", {"n": 0})
        assert_enqueued(session, "child", {"n": 0})
        [done] = pulse.testing.work_off(session, worker)
        assert done.result == 0
        session.rollback()
    with engine.connect() as connection:
        pulse.enqueue(connection, "child", {"n": 4})
        assert [d.result for d in pulse.testing.work_off(connection, worker)] == [4]
        connection.rollback()
    engine.dispose()
    with pytest.raises(TypeError, match="on a connection of psycopg"):
        pulse.testing.work_off(object(), worker)


def test_the_plugin_installs_pulse_into_the_test_database(
    tmp_path: Path, new_db: Callable[..., Database]
) -> None:
    empty = new_db(product=None)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pulse.testing.plugin"]')
    (tmp_path / "test_app.py").write_text(
        textwrap.dedent("""
        import pulse
        from pulse.testing import assert_enqueued

        worker = pulse.Worker("")

        @worker.handle("greet")
        def greet(name: str) -> str:
            return f"hello {name}"

        def test_one(pulse_connection, pulse_work_off):
            greet.enqueue(pulse_connection, "Ada")
            assert_enqueued(pulse_connection, greet, {"name": "Ada"})
            [done] = pulse_work_off(pulse_connection, worker)
            assert done.result == "hello Ada"

        def test_nothing_is_left(pulse_connection, pulse_work_off):
            assert pulse_work_off(pulse_connection, worker) == []
        """)
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PULSE_TEST_DSN": empty.dsn},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr
