"""executor="process": CPU work in children that can be killed."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import pulse
from pulse import Worker
from tests.python.worker import handlers
from tests.python.worker.conftest import Queue, Start
from tools import paths

SHORT = "SELECT pulse.set_lane('default', lease_for => '1 second')"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # Children import the handlers as this module did.
    sys.modules.setdefault("tests.python.worker.handlers", handlers)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'python'}")


def worker_of(queue: Queue, *tasks: pulse.Task[Any, Any]) -> Worker:
    return Worker(queue.db.dsn, concurrency=2, tasks=tasks, grace=0.5)


def test_a_process_returns_results_progress_and_checkpoints(
    queue: Queue, start: Start
) -> None:
    start(worker_of(queue, handlers.crunch, handlers.boom, handlers.snooze))
    jobs = [queue.enqueue("crunch", {"n": n}) for n in (10, 100)]
    boom = queue.enqueue("boom", max_attempts=1)
    snooze = queue.enqueue("snooze")
    for job, total in zip(jobs, (45, 4950), strict=True):
        queue.until_state(job, "completed")
        result = queue.job(job)["result"]
        assert result["sum"] == total
        assert result["pid"] != os.getpid()
    queue.until_state(boom, "dead")
    assert "ValueError: in the child" in queue.job(boom)["last_error"]
    queue.until_state(snooze, "scheduled")


def test_a_process_that_dies_fails_its_run_only(queue: Queue, start: Start) -> None:
    start(worker_of(queue, handlers.crash, handlers.crunch))
    job = queue.enqueue("crash", max_attempts=1)
    queue.until_state(job, "dead")
    assert "died (3)" in queue.job(job)["last_error"]
    queue.until_state(queue.enqueue("crunch", {"n": 3}), "completed")


def test_a_lost_lease_kills_the_process(queue: Queue, start: Start) -> None:
    queue.connection.execute(SHORT)
    start(worker_of(queue, handlers.endless, handlers.crunch))
    jobs = [queue.enqueue("endless") for _ in range(2)]
    queue.until(lambda: queue.states() == {"running": 2})
    for job in jobs:
        queue.connection.execute("SELECT pulse.cancel(%s, force => true)", (job,))
    # Both slots are free again, so both processes are gone.
    queue.until_state(queue.enqueue("crunch", {"n": 3}), "completed")


def test_a_process_sees_a_cancel(queue: Queue, start: Start) -> None:
    queue.connection.execute(SHORT)
    start(worker_of(queue, handlers.careful))
    job = queue.enqueue("careful")
    queue.until_state(job, "running")
    queue.connection.execute("SELECT pulse.cancel(%s)", (job,))
    queue.until_state(job, "cancelled")
    assert queue.job(job)["ended_by"] == "ack_cancel"


def test_stop_kills_processes_and_gives_their_jobs_back(
    queue: Queue, start: Start
) -> None:
    running = start(worker_of(queue, handlers.endless))
    job = queue.enqueue("endless")
    queue.until_state(job, "running")
    assert running.stop() < 5
    row = queue.job(job)
    assert (row["state"], row["failures"]) == ("ready", 0)


def test_a_process_handler_has_to_be_importable() -> None:
    with pytest.raises(TypeError, match="top level"):

        @pulse.task("nested", executor="process")
        def nested(job: pulse.Job) -> None: ...

    with pytest.raises(TypeError, match="event loop"):

        @pulse.task("async", executor="process")
        async def async_one(job: pulse.Job) -> None: ...
