"""pulse.testing: everything in the test's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pulse
import pulse.testing
from pulse import Job, Worker
from tests.conftest import Connection, Database

# What pytest_plugins = ["pulse.testing"] does in a conftest.
pulse_work_off = pulse.testing.pulse_work_off


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


def test_the_fixture_is_the_function(
    db: Database, pulse_work_off: Callable[..., list[pulse.testing.Done]]
) -> None:
    connection = db.connect(autocommit=False)
    assert pulse_work_off(connection, build(connection)) == []
    connection.rollback()
