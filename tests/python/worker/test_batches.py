"""Handlers of many jobs: gathered, called once, each job reported on its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import pulse
from pulse import Job, Worker
from pulse.testing import work_off
from tests.conftest import Connect
from tests.python.worker.conftest import PATIENCE, Queue, Start


def test_a_full_chunk_is_handled_at_once_and_each_job_ends_on_its_own(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, concurrency=10)
    sizes: list[int] = []

    @worker.handle("index", batch=4, within=3600)
    def index(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        ends = {"bad": ValueError("no"), "later": pulse.Snooze("1 h")}
        return [ends.get(job.payload["n"], job.payload["n"]) for job in jobs]

    ids = pulse.enqueue_many(
        queue.db.connect(),
        "index",
        [{"n": n} for n in (1, "bad", "later", 4)],
        max_attempts=1,
    )
    start(worker)
    for job, state in zip(
        ids, ("completed", "dead", "scheduled", "completed"), strict=True
    ):
        queue.until_state(job, state)
    assert sizes == [4]
    assert queue.job(ids[3])["result"] == 4
    assert queue.job(ids[1])["last_error"].endswith("ValueError: no")


def test_a_chunk_that_does_not_fill_is_handled_when_its_time_is_over(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, concurrency=10)
    sizes: list[int] = []

    @worker.handle("index", batch=100, within=0.05)
    async def index(jobs: list[Job]) -> None:
        sizes.append(len(jobs))

    start(worker)
    ids = [index.enqueue(queue.db.connect(), n=n).id for n in range(3)]
    for job in ids:
        queue.until_state(job, "completed")
    assert sum(sizes) == 3


@pytest.mark.parametrize("returned", [[1], "text"])
def test_what_does_not_fit_fails_all(queue: Queue, start: Start, returned: Any) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("index", batch=2, within=3600)
    def index(jobs: list[Job]) -> Any:
        return returned

    payloads: list[Any] = [{}, {}]
    ids = pulse.enqueue_many(queue.db.connect(), "index", payloads, max_attempts=1)
    start(worker)
    for job in ids:
        queue.until_state(job, "dead")
        assert "TypeError" in queue.job(job)["last_error"]


def test_a_stop_ends_a_chunk_after_its_grace(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, grace=0.1)
    begun = threading.Event()

    @worker.handle("endless", batch=1)
    async def endless(jobs: list[Job]) -> None:
        begun.set()
        await asyncio.sleep(3600)

    job = queue.enqueue("endless")
    running = start(worker)
    assert begun.wait(PATIENCE)
    running.stop()
    assert queue.state(job) == "ready"


def test_a_stop_gives_back_at_once_what_waits_for_others(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, grace=3600)

    @worker.handle("never", batch=9, within=3600)
    def never(jobs: list[Job]) -> None:
        raise AssertionError("it must not begin")

    job = queue.enqueue("never")
    running = start(worker)
    queue.until_state(job, "running")
    running.stop()
    assert queue.state(job) == "ready"


def test_a_chunk_is_worked_off_in_a_test(connect: Connect) -> None:
    worker = Worker("")

    @worker.handle("index", batch=5)
    def index(jobs: list[Job]) -> list[int]:
        return [job.payload["n"] for job in jobs]

    connection = connect()
    index.enqueue(connection, n=3)
    [done] = work_off(connection, worker)
    assert (done.outcome, done.result) == ("complete", 3)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="pass batch as well"):
        pulse.task("k", within=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="has no process"):
        pulse.task("k", batch=5, executor="process")
    with pytest.raises(ValueError, match="at least 1"):
        pulse.task("k", batch=0)(lambda jobs: None)
