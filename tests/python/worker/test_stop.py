"""Stopping is bounded, repeatable and possible at any moment; it charges nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pulse
from pulse import Job, Worker
from tests.conftest import Database
from tests.python.worker.conftest import ARMED, CONNECTED, PATIENCE, Own, Queue, Start
from tools import paths


def idle_worker(dsn: str, **options: object) -> Worker:
    worker = Worker(dsn, **options)  # type: ignore[arg-type]

    @worker.handle("nothing")
    def nothing(job: Job) -> None: ...

    return worker


def test_stop_while_idle(queue: Queue, start: Start) -> None:
    running = start(idle_worker(queue.db.dsn, poll_interval=600))
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed")
    assert running.stop() < 3
    queue.until(lambda: queue.one(CONNECTED) == 0, "every connection is closed")


def test_stop_while_busy_waits_for_the_handlers(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, grace=PATIENCE)
    began, end = threading.Semaphore(0), threading.Event()

    @worker.handle("slow")
    def slow(job: Job) -> str:
        began.release()
        assert end.wait(PATIENCE)
        return "done"

    job = queue.enqueue("slow")
    running = start(worker)
    assert began.acquire(timeout=PATIENCE)
    waiting = queue.enqueue("slow")
    # Begun, not only claimed: what a stop finds claimed is given back.
    assert began.acquire(timeout=PATIENCE)
    third = [queue.enqueue("slow")]
    worker.stop()
    worker.stop()
    third.append(queue.enqueue("slow"))
    end.set()
    running.join()
    assert queue.state(job) == queue.state(waiting) == "completed"
    assert queue.state(third[1]) == "ready"


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_what_outlasts_the_grace_is_given_back_without_charge(
    queue: Queue, start: Start, flavour: str
) -> None:
    worker = Worker(queue.db.dsn, grace=0.2)
    began, end = threading.Event(), threading.Event()

    if flavour == "sync":

        @worker.handle("slow")
        def slow(job: Job) -> str:
            began.set()
            end.wait(PATIENCE)
            return "too late"

    else:

        @worker.handle("slow")
        async def slow_async(job: Job) -> str:
            began.set()
            await asyncio.sleep(PATIENCE)
            return "too late"

    job = queue.enqueue("slow")
    running = start(worker)
    assert began.wait(PATIENCE)
    assert running.stop() < 5
    end.set()
    row = queue.job(job)
    assert (row["state"], row["attempts"], row["failures"]) == ("ready", 1, 0)


def test_a_handler_that_sees_the_stop_gives_its_job_back(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, grace=PATIENCE)
    began = threading.Event()

    @worker.handle("polite")
    def polite(job: Job) -> None:
        began.set()
        while job.should_continue():
            threading.Event().wait(0.01)

    job = queue.enqueue("polite")
    running = start(worker)
    assert began.wait(PATIENCE)
    assert running.stop() < 5
    row = queue.job(job)
    assert (row["state"], row["failures"]) == ("ready", 0)


def test_stop_while_claiming_gives_back_what_was_never_started(
    queue: Queue, start: Start
) -> None:
    """A lock holds up the claim, the worker is stopped, the claim comes through."""
    ran = threading.Event()
    worker = Worker(queue.db.dsn, concurrency=5, listen=False, tick=False)

    @worker.handle("job")
    def job(job: Job) -> None:
        ran.set()

    ids = pulse.enqueue_many(queue.connection, "job", [{}] * 5)
    blocker = queue.db.connect(autocommit=False)
    blocker.execute("LOCK TABLE pulse_internal.lease IN ACCESS EXCLUSIVE MODE")
    running = start(worker, ready=False)
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND application_name LIKE 'pulse coordinator%%'"
    )
    queue.until(lambda: queue.one(waits) == 1, "the claim waits")
    worker.stop()
    blocker.rollback()
    running.join()
    assert not ran.is_set()
    rows = queue.connection.execute(
        "SELECT job_id, state, attempts, failures FROM pulse.jobs"
    ).fetchall()
    assert rows == [(job_id, "ready", 1, 0) for job_id in ids]


def test_stop_while_the_claim_never_answers_is_bounded(
    queue: Queue, start: Start
) -> None:
    worker = idle_worker(queue.db.dsn, listen=False, tick=False, grace=0)
    queue.enqueue("nothing")
    blocker = queue.db.connect(autocommit=False)
    blocker.execute("LOCK TABLE pulse_internal.lease IN ACCESS EXCLUSIVE MODE")
    running = start(worker, ready=False)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    queue.until(lambda: queue.one(waits) >= 1, "the claim waits")
    assert running.stop() < 15
    blocker.rollback()


def test_stop_while_reconnecting(own: Own, start: Start) -> None:
    server, db = own.server, own.db
    trouble = threading.Event()

    class Watch(pulse.Hooks):
        def disconnected(self, error: BaseException) -> None:
            trouble.set()

    running = start(idle_worker(db.dsn, hooks=[Watch()]))
    server.stop("SIGQUIT")
    assert trouble.wait(PATIENCE)
    assert running.stop() < 5


def test_stop_before_the_server_was_ever_there(start: Start) -> None:
    worker = idle_worker("host=/nonexistent dbname=nothing")
    running = start(worker, ready=False)
    assert running.stop() < 5


def test_stop_before_run_makes_run_return(db: Database) -> None:
    worker = idle_worker(db.dsn)
    worker.stop()
    worker.stop()
    worker.run()


def test_a_worker_can_run_again_after_it_stopped(queue: Queue, start: Start) -> None:
    worker = idle_worker(queue.db.dsn)
    for _ in range(2):
        running = start(worker)
        queue.until_state(queue.enqueue("nothing"), "completed")
        running.stop()


def test_a_worker_does_not_run_twice_at_once(queue: Queue, start: Start) -> None:
    worker = idle_worker(queue.db.dsn)
    start(worker)
    with pytest.raises(RuntimeError, match="runs already"):
        worker.run()


def test_cancelling_run_async_stops_the_worker(queue: Queue) -> None:
    async def main() -> None:
        worker = Worker(queue.db.dsn, grace=PATIENCE)
        began = asyncio.Event()

        @worker.handle("short")
        async def short(job: Job) -> str:
            began.set()
            await asyncio.sleep(0.05)
            return "finished"

        working = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(began.wait(), PATIENCE)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    job = queue.enqueue("short")
    asyncio.run(main())
    assert queue.job(job)["result"] == "finished"


PROGRAM = """
import logging, sys, threading
import pulse

logging.basicConfig(level="INFO", stream=sys.stderr)
worker = pulse.Worker(sys.argv[1], concurrency=2, grace=float(sys.argv[2]))

@worker.handle("forever")
def forever(job):
    print("began", flush=True)
    threading.Event().wait()

@worker.handle("quick")
def quick(job): ...

print("starting", flush=True)
worker.run()
print("ended", flush=True)
"""

Program = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def program(tmp_path: Path) -> object:
    started: list[subprocess.Popen[str]] = []

    def run(dsn: str, grace: float = 30.0) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(PROGRAM)
        process = subprocess.Popen(
            [sys.executable, str(path), dsn, str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(paths.ROOT / "python")},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_a_second_one_ends_the_grace(
    queue: Queue, program: Program, number: signal.Signals
) -> None:
    job = queue.enqueue("forever")
    process = program(queue.db.dsn)
    assert [line(process), line(process)] == ["starting", "began"]
    process.send_signal(number)
    queue.until(
        lambda: queue.enqueue("quick") and queue.states().get("ready", 0) > 20,
        "it claims no more",
    )
    assert queue.state(job) == "running"
    started = time.monotonic()
    process.send_signal(number)
    # A handler that never ends does not keep the process alive.
    assert line(process) == "ended"
    assert process.wait(PATIENCE) == 0
    assert time.monotonic() - started < 5
    row = queue.job(job)
    assert (row["state"], row["failures"]) == ("ready", 0)


def test_after_kill_9_the_jobs_run_elsewhere(
    queue: Queue, program: Program, start: Start
) -> None:
    queue.connection.execute(
        "SELECT pulse.set_lane('default', lease_for => '1 second')"
    )
    queue.connection.execute("SELECT pulse.set_kind('forever', backoff => 'none')")
    job = queue.enqueue("forever")
    process = program(queue.db.dsn)
    assert [line(process), line(process)] == ["starting", "began"]
    started = time.monotonic()
    process.kill()
    process.wait()

    worker = Worker(queue.db.dsn)

    @worker.handle("forever")
    def forever(job: Job) -> str:
        return f"attempt {job.attempt}"

    start(worker)
    queue.until_state(job, "completed", within=30)
    assert time.monotonic() - started < 1 + 10 + 3
    row = queue.job(job)
    assert (row["result"], row["failures"]) == ("attempt 2", 1)
    assert row["last_error"] == "worker lease expired"
