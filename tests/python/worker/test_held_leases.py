"""A transaction that stays open with one job in it holds up that job, not its worker.

A producer may cancel its own job, and keep that transaction open.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from pulse import Job, Snooze, Worker
from tests.python.worker.conftest import PATIENCE, Queue, Start

SHORT = "SELECT pulse.set_lane('default', lease_for => '1 second')"


@pytest.mark.parametrize("how", ["completes", "fails", "snoozes"])
def test_a_report_that_has_to_wait_holds_up_no_other(
    queue: Queue, start: Start, how: str
) -> None:
    worker = Worker(queue.db.dsn, concurrency=2)
    began, goes_on = threading.Event(), threading.Event()

    @worker.handle("held")
    def held(job: Job) -> None:
        began.set()
        assert goes_on.wait(PATIENCE)
        if how == "fails":
            raise ValueError(how)
        if how == "snoozes":
            raise Snooze(3600)

    @worker.handle("other")
    def other(job: Job) -> None: ...

    start(worker)
    one = queue.enqueue("held", max_attempts=1)
    assert began.wait(PATIENCE)
    holder = queue.db.connect(autocommit=False)
    holder.execute("SELECT pulse.cancel(%s)", (one,))
    goes_on.set()
    for _ in range(5):
        queue.until_state(queue.enqueue("other"), "completed")
    assert queue.state(one) == "running"

    holder.rollback()
    ended = {"completes": "completed", "fails": "dead", "snoozes": "scheduled"}
    queue.until_state(one, ended[how])
    assert queue.job(one)["attempts"] == 1
    queue.check()


def test_what_a_handler_asks_for_keeps_no_lease_from_being_extended(
    queue: Queue, start: Start
) -> None:
    queue.connection.execute(SHORT)
    worker = Worker(queue.db.dsn, concurrency=2)
    began, goes_on, ends = threading.Event(), threading.Event(), threading.Event()

    @worker.handle("held")
    def held(job: Job) -> None:
        began.set()
        assert goes_on.wait(PATIENCE)
        job.progress(0.5)
        job.step("step", lambda: 1)

    @worker.handle("other")
    def other(job: Job) -> int:
        assert ends.wait(PATIENCE)
        job.step("step", lambda: 1)
        return job.attempt

    start(worker)
    one, two = queue.enqueue("held", max_attempts=1), queue.enqueue("other")
    assert began.wait(PATIENCE)
    queue.until_state(two, "running")
    holder = queue.db.connect(autocommit=False)
    holder.execute("SELECT pulse.cancel(%s)", (one,))
    goes_on.set()
    begun = queue.one("SELECT clock_timestamp()")
    # As long as three leases, of which every one had to be extended.
    queue.until(
        lambda: queue.one(
            "SELECT lease_until > %s + interval '4 seconds' FROM pulse.running "
            "WHERE job_id = %s",
            begun,
            two,
        )
    )
    ends.set()
    queue.until_state(two, "completed")
    assert queue.job(two)["result"] == 1

    holder.rollback()
    queue.until_state(one, "completed")
    queue.check()


def test_a_handler_that_is_gone_takes_its_call_with_it(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, concurrency=2)
    began, goes_on, left = threading.Event(), threading.Event(), threading.Event()

    @worker.handle("held")
    async def held(job: Job) -> None:
        began.set()
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.step_async("step", lambda: 1), 0.5)
        left.set()

    @worker.handle("other")
    async def other(job: Job) -> None:
        await job.step_async("step", lambda: 1)

    start(worker)
    one = queue.enqueue("held", max_attempts=1)
    assert began.wait(PATIENCE)
    holder = queue.db.connect(autocommit=False)
    holder.execute("SELECT pulse.cancel(%s)", (one,))
    goes_on.set()
    assert left.wait(PATIENCE)
    holder.rollback()
    queue.until_state(queue.enqueue("other"), "completed")
    queue.until_state(one, "completed")
    queue.check()
