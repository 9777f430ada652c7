"""Between the claim and the start of a job."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pulse
from pulse.hooks import AllHooks
from pulse.job import Control
from pulse.tasks import Task
from pulse.worker.connection import Connector
from pulse.worker.executors import Pools
from pulse.worker.heartbeat import Heartbeat
from pulse.worker.loop import LoopSettings, WorkerLoop
from pulse.worker.outcomes import COMPLETE, RELEASE, Outcome
from pulse.worker.runs import LARGE, Run, Runs, Slots
from pulse.worker.wakeup import Wakeup
from tests.python.worker.conftest import Queue


def loop_of(queue: Queue, task: Task[Any, Any], slots: int) -> WorkerLoop:
    connector = Connector(queue.db.dsn, "w")
    settings = LoopSettings(connector, {"default": slots}, {task.kind: task})
    return WorkerLoop(settings, Pools(), threading.Event())


def test_claimed_jobs_hold_their_slots_before_they_are_read(queue: Queue) -> None:
    """Reports go first; jobs are read, and known to the heartbeat, after that."""
    ran: list[int] = []

    async def note(job: pulse.Job) -> None:
        ran.append(job.id)

    async def scenario() -> None:
        loop = loop_of(queue, Task("note", note), 4)
        exchange, runs, slots = loop._exchange, loop._runs, loop._slots

        runs.accept((await exchange.send([], {"default": 3})).claimed)
        assert (runs.unread, len(runs)) == (3, 0)
        assert slots.to_claim() == {"default": 1}

        loop._start_claimed()
        assert (runs.unread, len(runs)) == (0, 3)
        started = runs.unfinished
        now = asyncio.get_running_loop().time()
        assert all(run.job.control.leased_until > now for run in started)
        await asyncio.gather(*(run.work for run in started if run.work is not None))
        assert [outcome for _, outcome in runs._ended] == [COMPLETE] * 3
        reports = runs.collect()
        assert {report.outcome for report in reports} == {Outcome("complete", "null")}

        runs.accept((await exchange.send(reports, {"default": 4})).claimed)
        runs.confirm(reports)
        assert (runs.unread, len(runs)) == (1, 0)
        runs.forget_unread()
        assert slots.to_claim() == {"default": 4}
        await loop._connection.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 4)
    asyncio.run(scenario())
    assert len(ran) == 3
    assert queue.states() == {"completed": 3, "running": 1}


def test_what_is_not_read_yet_is_given_back_by_a_stop(queue: Queue) -> None:
    async def scenario() -> None:
        loop = loop_of(queue, Task("note", lambda job: None), 4)
        runs = loop._runs
        runs.accept((await loop._exchange.send([], {"default": 4})).claimed)
        assert queue.states() == {"running": 3}
        loop.stop()
        loop._start_claimed()
        assert await loop._report_ended(1.0)
        assert loop._slots.to_claim() == {"default": 4}
        await loop._connection.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 3)
    asyncio.run(scenario())
    assert queue.states() == {"ready": 3}


def test_a_run_that_is_released_and_ends_by_itself_is_reported_once() -> None:
    """Its thread may end at any moment of a stop, and again after the report."""

    async def scenario() -> None:
        slots = Slots({"default": 1})
        task: Task[Any, Any] = Task("k", lambda job: None)
        heartbeat = Heartbeat(Connector("", "w"))
        runs = Runs("w", slots, {"k": task}, heartbeat, Wakeup(), AllHooks(()))
        run = Run(pulse.Job(7, 1, "default", "k", None, control=Control()), task)
        slots.take({"default": 1})
        runs._by_lease[7] = run
        runs.release(run)
        runs.finish(run, RELEASE)
        reports = runs.collect()
        assert reports == [run]
        runs.requeue(reports)
        runs.finish(run, RELEASE)
        reports = runs.collect()
        assert reports == [run]
        runs.confirm(reports)
        runs.finish(run, RELEASE)
        runs.finish(run, COMPLETE)
        assert runs.collect() == []
        assert slots.to_claim() == {"default": 1}

    asyncio.run(scenario())


def test_a_reported_run_leaves_nothing_to_the_garbage_collector(queue: Queue) -> None:
    """Job, control and run must not refer to each other in a circle."""
    seen: list[weakref.ref[Any]] = []

    async def note(job: pulse.Job) -> None:
        seen.append(weakref.ref(job))

    async def scenario() -> None:
        loop = loop_of(queue, Task("note", note), 1)
        loop._runs.accept((await loop._exchange.send([], {"default": 1})).claimed)
        loop._start_claimed()
        while not loop._runs.ended:
            await asyncio.sleep(0)
        assert await loop._report_ended(1.0)
        await loop._connection.close()

    queue.enqueue("note")
    gc.disable()
    try:
        asyncio.run(scenario())
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()


def test_of_a_large_lane_half_the_slots_are_asked_for_at_a_time() -> None:
    """So that one half can run while the server claims for the other."""
    slots = Slots({"large": LARGE, "small": LARGE - 1})
    assert slots.to_claim() == {"large": LARGE // 2, "small": LARGE - 1}
    slots.take({"large": LARGE // 2, "small": LARGE - 1})
    assert slots.to_claim() == {"large": LARGE // 2}
    slots.take({"large": LARGE // 2})
    assert slots.to_claim() == {}


def test_no_more_is_asked_for_than_a_claim_of_the_lane_gives() -> None:
    """An answer that is as large as it can be then says that there may be more."""
    slots = Slots({"large": LARGE, "small": 5})
    slots.set_max_batch("large", 7)
    slots.set_max_batch("small", 7)
    assert slots.to_claim() == {"large": 7, "small": 5}
    slots.set_max_batch("large", 2 * LARGE)
    assert slots.to_claim() == {"large": LARGE // 2, "small": 5}
