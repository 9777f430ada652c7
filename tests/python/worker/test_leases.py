"""Leases: kept through anything a handler does, lost with all consequences."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

import pulse
from pulse import Job, Worker
from tests.python.worker import handlers
from tests.python.worker.conftest import PATIENCE, Queue, Start

SHORT = "SELECT pulse.set_lane('default', lease_for => '1 second')"
REAP = "SELECT pulse.reap()"


def busy(seconds: float) -> None:
    """Pure Python without a pause: it gives up the interpreter only when it must."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


@pytest.mark.parametrize("how", ["a blocked event loop", "a GIL-bound thread"])
def test_heartbeats_go_on_through(queue: Queue, start: Start, how: str) -> None:
    queue.connection.execute(SHORT)
    worker = Worker(queue.db.dsn)
    began = threading.Event()

    if how == "a blocked event loop":

        @worker.handle("hog")
        async def hog(job: Job) -> str:
            began.set()
            time.sleep(3)
            return f"attempt {job.attempt}"

    else:

        @worker.handle("hog")
        def hog_sync(job: Job) -> str:
            began.set()
            busy(3)
            return f"attempt {job.attempt}"

    job = queue.enqueue("hog")
    start(worker)
    assert began.wait(PATIENCE)
    lapses = 0

    def ended() -> bool:
        nonlocal lapses
        lapses += queue.one(REAP)
        return queue.state(job) == "completed"

    queue.until(ended)
    assert lapses == 0
    assert queue.job(job)["result"] == "attempt 1"


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_a_lost_lease_cancels_the_handler_and_drops_its_result(
    queue: Queue,
    start: Start,
    flavour: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue.connection.execute(SHORT)
    worker = Worker(queue.db.dsn)
    began, ended = threading.Event(), threading.Event()
    statuses: list[str] = []

    if flavour == "sync":

        @worker.handle("long")
        def long(job: Job) -> str:
            began.set()
            while job.should_continue():
                threading.Event().wait(0.01)
            statuses.append(job.control.status)
            ended.set()
            return "must not be stored"

    else:

        @worker.handle("long")
        async def long_async(job: Job) -> str:
            began.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                statuses.append(job.control.status)
                ended.set()
            return "must not be stored"

    job = queue.enqueue("long")
    start(worker)
    assert began.wait(PATIENCE)
    # The lease is taken away by force.
    queue.connection.execute("SELECT pulse.cancel(%s, 'enough', force => true)", (job,))
    assert ended.wait(PATIENCE)
    assert statuses == ["lost"]
    row = queue.job(job)
    assert (row["state"], row["result"], row["last_error"]) == (
        *("cancelled", None, "enough"),
    )
    queue.until(lambda: "its result is dropped" in caplog.text, "it says so")


@pytest.mark.parametrize("flavour", ["sync", "async", "returns"])
def test_a_cancel_reaches_the_handler_and_is_acknowledged(
    queue: Queue, start: Start, flavour: str
) -> None:
    queue.connection.execute(SHORT)
    worker = Worker(queue.db.dsn)
    began = threading.Event()

    if flavour == "async":

        @worker.handle("long")
        async def long_async(job: Job) -> None:
            began.set()
            await asyncio.sleep(PATIENCE)

    else:

        @worker.handle("long")
        def long(job: Job) -> None:
            began.set()
            while not job.cancelled:
                threading.Event().wait(0.01)
            if flavour == "sync":
                raise pulse.Cancelled

    job = queue.enqueue("long")
    start(worker)
    assert began.wait(PATIENCE)
    queue.connection.execute("SELECT pulse.cancel(%s, 'not needed')", (job,))
    queue.until_state(job, "cancelled")
    row = queue.job(job)
    assert (row["ended_by"], row["last_error"]) == ("ack_cancel", "not needed")


def test_a_result_that_comes_after_a_cancel_still_counts(
    queue: Queue, start: Start
) -> None:
    queue.connection.execute(SHORT)
    worker = Worker(queue.db.dsn)
    began = threading.Event()

    @worker.handle("long")
    def long(job: Job) -> str:
        began.set()
        while not job.cancelled:
            threading.Event().wait(0.01)
        return "finished all the same"

    job = queue.enqueue("long")
    start(worker)
    assert began.wait(PATIENCE)
    queue.connection.execute("SELECT pulse.cancel(%s)", (job,))
    queue.until_state(job, "completed")


def test_max_runtime_ends_a_run_that_heartbeats_keep_alive(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn)
    deadlines: list[bool] = []

    @worker.handle("wedged")
    async def wedged(job: Job) -> None:
        deadlines.append(job.deadline is not None)
        await asyncio.sleep(PATIENCE)

    job = queue.enqueue("wedged", max_runtime="1 second", max_attempts=1)
    start(worker)
    queue.until_state(job, "dead")
    assert deadlines == [True]
    assert queue.job(job)["last_error"] in (
        "the run took longer than its max_runtime",
        "max_runtime exceeded",
        "worker lease expired",
    )


def test_one_statement_beats_for_all_running_jobs(queue: Queue, start: Start) -> None:
    queue.connection.execute(SHORT)
    worker = Worker(queue.db.dsn, concurrency=20)
    everyone, end = threading.Barrier(21), threading.Event()

    @worker.handle("wait")
    def wait(job: Job) -> None:
        everyone.wait(PATIENCE)
        end.wait(PATIENCE)

    pulse.enqueue_many(queue.connection, "wait", [{}] * 20)
    start(worker)
    everyone.wait(PATIENCE)
    ready = "SELECT min(lease_until) FROM pulse.running"
    before = queue.one(ready)
    queue.until(lambda: queue.one(ready) > before, "all are extended")
    # One statement, one moment: the leases end together.
    assert queue.one("SELECT count(DISTINCT lease_until) FROM pulse.running") == 1
    end.set()
    queue.until(lambda: queue.states() == {"completed": 20})


def test_a_checkpoint_of_a_lost_lease_is_refused(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)
    began, taken = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @worker.handle("late")
    def late(job: Job) -> None:
        began.set()
        assert taken.wait(PATIENCE)
        try:
            job.checkpoint({"step": 1})
        except pulse.PulseError as error:
            raised.append(error)
            raise

    job = queue.enqueue("late")
    start(worker)
    assert began.wait(PATIENCE)
    queue.connection.execute("SELECT pulse.cancel(%s, force => true)", (job,))
    taken.set()
    queue.until(lambda: raised, "the handler gets an error")
    assert isinstance(raised[0], pulse.errors.LeaseLost)
    assert queue.state(job) == "cancelled"


def test_the_log_has_fields(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue.db.dsn, name="me")

    @worker.handle("boom")
    def boom(job: Job) -> None:
        raise ValueError("why not")

    with caplog.at_level(logging.WARNING, "pulse"):
        start(worker)
        job = queue.enqueue("boom", max_attempts=1)
        queue.until_state(job, "dead")
    record = next(r for r in caplog.records if "failed" in r.getMessage())
    fields = vars(record)["fields"]
    assert fields["job_id"] == job
    assert (fields["worker"], fields["kind"], fields["outcome"]) == (
        "me",
        "boom",
        "fail",
    )
    line = pulse.logs.JsonFormatter().format(record)
    assert f'"job_id": "{job}"' in line
    assert "ValueError: why not" in record.getMessage()


SLOW_CLAIMS = """
CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_sleep(1.1); RETURN NULL; END';
CREATE TRIGGER slow AFTER INSERT ON pulse_internal.lease
EXECUTE FUNCTION public.dawdle();
"""


@pytest.mark.parametrize("how", ["async", "thread", "process"])
def test_a_claim_that_was_answered_too_late_is_given_back_and_not_begun(
    queue: Queue, start: Start, how: str
) -> None:
    queue.connection.execute(SHORT)
    queue.connection.execute(SLOW_CLAIMS)
    worker = Worker(queue.db.dsn)
    if how == "async":

        @worker.handle("tardy")
        async def tardy(job: Job) -> int:
            return job.attempt

    elif how == "thread":

        @worker.handle("tardy")
        def tardy_in_a_thread(job: Job) -> int:
            return job.attempt

    else:
        worker.handle("tardy", executor="process")(handlers.which_attempt)

    job = queue.enqueue("tardy")
    start(worker)
    queue.until(lambda: queue.job(job)["attempts"] >= 2, "it was given back")
    queue.connection.execute("DROP TRIGGER slow ON pulse_internal.lease")
    queue.until_state(job, "completed")
    ended = queue.job(job)
    assert ended["result"] == ended["attempts"]
    assert ended["failures"] == 0
