"""A worker whose lane has a rate sleeps until the next start, and no longer."""

from __future__ import annotations

import threading

import pytest

import pulse
from pulse import Job, Worker
from tests.python.worker.conftest import ARMED, Queue, Start

FULLEST = """
    SELECT max(w.n)
    FROM (
        SELECT
            count(*) OVER (
                ORDER BY f.claimed_at
                RANGE BETWEEN CURRENT ROW AND interval '499999 microseconds' FOLLOWING
            ) AS n
        FROM pulse_internal.finished AS f
    ) AS w
"""


class Counting(pulse.Hooks):
    def __init__(self) -> None:
        self.cycles = 0

    def claimed(self, jobs: object, seconds: float) -> None:
        self.cycles += 1


@pytest.mark.parametrize("verb", ["set_lane('default'", "set_kind('call'"])
@pytest.mark.proves("G24")
def test_a_rate_wakes_the_worker_and_is_kept(
    queue: Queue, start: Start, verb: str
) -> None:
    """At ten minutes between polls only next_at can bring it back."""
    queue.one(f"SELECT pulse.{verb}, rate => 3, rate_per => '500 ms')")
    hooks = Counting()
    worker = Worker(queue.db.dsn, concurrency=10, poll_interval=600, hooks=[hooks])
    ran: list[int] = []
    done = threading.Event()

    @worker.handle("call")
    async def call(job: Job) -> None:
        ran.append(job.id)
        if len(ran) == 15:
            done.set()

    start(worker)
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed")
    for _ in range(15):
        queue.enqueue("call")
    assert done.wait(60)
    queue.until(lambda: queue.states() == {"completed": 15}, "all are reported")
    assert queue.one(FULLEST) <= 3


def test_a_rate_of_groups_wakes_it_too(queue: Queue, start: Start) -> None:
    queue.one(
        "SELECT pulse.set_lane('default', group_rate => 1, group_rate_per => '300 ms')"
    )
    worker = Worker(queue.db.dsn, concurrency=10, poll_interval=600)

    @worker.handle("call")
    async def call(job: Job) -> None:
        pass

    start(worker)
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed")
    for n in range(8):
        queue.enqueue("call", group_key=f"tenant {n % 2}")
    queue.until(lambda: queue.states() == {"completed": 8}, "all are done")
