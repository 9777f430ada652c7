"""executor="process": CPU work in children that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
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


APP = """
import sys, pulse
from tests.python.worker import handlers
pulse.Worker(
    sys.argv[1], tasks=[handlers.patient, handlers.crunch], concurrency=2, grace=20
).run()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["while it starts", "while it runs"])
def test_a_signal_to_the_group_leaves_the_end_of_processes_to_the_worker(
    queue: Queue, tmp_path: Path, number: signal.Signals, when: str
) -> None:
    """As Ctrl-C in a terminal does it, and most supervisors."""
    go = tmp_path / "go"
    job = queue.enqueue("patient", {"released_by": str(go)}, max_attempts=1)
    # Idle children are no reason to wait at the end, either.
    done = queue.enqueue("crunch", {"n": 3})
    program = subprocess.Popen(
        [sys.executable, "-c", APP, queue.db.dsn],
        cwd=paths.ROOT,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if when == "while it runs":
            queue.until_state(done, "completed")
            checkpoints = (
                "SELECT count(*) FROM pulse_internal.job_checkpoint WHERE job = %s"
            )
            queue.until(lambda: queue.one(checkpoints, job) == 1)
        else:
            queue.until_state(job, "running")
            children = Path(f"/proc/{program.pid}/task")
            queue.until(
                lambda: any(
                    name.read_text().split() for name in children.glob("*/children")
                )
            )
        os.killpg(program.pid, number)
        go.touch()
        _, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    assert "Traceback" not in errors
    row = queue.job(job)
    if when == "while it runs":
        assert (row["state"], row["result"]) == ("completed", {"code": -15})
    else:
        # Begun or not when it had to stop: nobody was charged.
        assert row["state"] in ("completed", "ready"), row["last_error"]
        assert row["failures"] == 0


def test_a_worker_that_is_killed_takes_its_processes_with_it(
    queue: Queue, tmp_path: Path
) -> None:
    job = queue.enqueue("patient", {"released_by": str(tmp_path / "never")})
    program = subprocess.Popen(
        [sys.executable, "-c", APP, queue.db.dsn], cwd=paths.ROOT
    )
    checkpoints = "SELECT count(*) FROM pulse_internal.job_checkpoint WHERE job = %s"
    try:
        queue.until(lambda: queue.one(checkpoints, job) == 1)
        found = Path(f"/proc/{program.pid}/task").glob("*/children")
        children = {int(pid) for file in found for pid in file.read_text().split()}
        assert len(children) >= 2, "the handler, and multiprocessing's own"
    finally:
        program.kill()
        program.wait()
    queue.until(
        lambda: not any(is_alive(pid) for pid in children), "its processes are gone"
    )


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def test_an_initializer_runs_once_in_each_process(queue: Queue, start: Start) -> None:
    worker = Worker(
        queue.db.dsn,
        concurrency=1,
        tasks=[handlers.initialized],
        process_initializer=handlers.initialize,
    )
    start(worker)
    jobs = [queue.enqueue("initialized") for _ in range(2)]
    for job in jobs:
        queue.until_state(job, "completed")
    pid, *initialized = queue.job(jobs[0])["result"]
    assert initialized == [pid]
    assert queue.job(jobs[1])["result"] == [pid, pid]


def test_an_initializer_that_raises_fails_the_run(queue: Queue, start: Start) -> None:
    worker = Worker(
        queue.db.dsn,
        tasks=[handlers.initialized],
        process_initializer=handlers.fail_to_initialize,
    )
    start(worker)
    job = queue.enqueue("initialized", max_attempts=1)
    queue.until_state(job, "dead")
    assert queue.job(job)["last_error"].endswith("LookupError: no model here")


def test_an_initializer_has_to_be_importable() -> None:
    with pytest.raises(TypeError, match="top level"):
        Worker(process_initializer=lambda: None)


def test_a_program_that_forgets_its_worker_still_ends(queue: Queue) -> None:
    """A worker in a daemon thread, and nobody stops it."""
    forgetful = """
import sys, threading, pulse
from tests.python.worker import handlers
worker = pulse.Worker(sys.argv[1], tasks=[handlers.endless])
threading.Thread(target=worker.run, daemon=True).start()
sys.stdin.read()
"""
    job = queue.enqueue("endless")
    program = subprocess.Popen(
        [sys.executable, "-c", forgetful, queue.db.dsn],
        cwd=paths.ROOT,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        queue.until_state(job, "running")
        program.communicate(timeout=20)
    finally:
        program.kill()
    assert program.returncode == 0
