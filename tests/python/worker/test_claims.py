"""Between the claim and the start of a job."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pulse
from pulse.hooks import AllHooks
from pulse.tasks import Task
from pulse.worker.claims import Claims
from pulse.worker.connection import Connection
from pulse.worker.connector import Connector
from pulse.worker.exchange import Exchange
from pulse.worker.executors import Executors
from pulse.worker.heartbeat import Heartbeat
from pulse.worker.outcomes import COMPLETE, RELEASE, Outcome
from pulse.worker.run import Run
from pulse.worker.slots import LARGE, Slots
from tests.python.worker.conftest import Queue


def test_claimed_jobs_hold_their_slots_before_they_are_read(queue: Queue) -> None:
    """Reports go first; jobs are read, and known to the heartbeat, after that."""
    ran: list[int] = []

    async def note(job: pulse.Job) -> None:
        ran.append(job.id)

    async def scenario() -> None:
        connector, hooks, woken = (
            Connector(queue.db.dsn, "w"),
            AllHooks(()),
            threading.Event(),
        )
        slots = Slots("w", {"default": 4}, hooks, woken.set)
        heartbeat = Heartbeat(connector, slots.runs)
        loop = asyncio.get_running_loop()
        executors = Executors(loop, hooks, slots.finish)
        tasks: dict[str, Task[Any, Any]] = {"note": Task("note", note)}
        claims = Claims(tasks, slots, heartbeat, executors, hooks, lambda: False)
        connection = Connection(connector, asyncio.Event(), hooks)
        exchange = Exchange(connection, "w", ["note"], None)

        claims.accept(await exchange.send([], {"default": 3}), 0.0)
        assert (claims.unread, len(slots.runs)) == (3, 0)
        assert slots.wants() == {"default": 1}

        claims.start_all()
        assert (claims.unread, len(slots.runs)) == (0, 3)
        assert all(run.leased_until > loop.time() for run in slots.runs.values())
        works = [run.work for run in slots.runs.values() if run.work is not None]
        await asyncio.gather(*works)
        assert [outcome for _, outcome in slots.ended] == [COMPLETE] * 3
        reports = slots.collect()
        assert {report.outcome for report in reports} == {Outcome("complete", "null")}

        claims.accept(await exchange.send(reports, {"default": 4}), 0.0)
        slots.confirm(reports)
        assert (claims.unread, len(slots.runs)) == (1, 0)
        claims.forget()
        assert slots.wants() == {"default": 4}
        executors.close()
        await connection.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 4)
    asyncio.run(scenario())
    assert len(ran) == 3
    assert queue.states() == {"completed": 3, "running": 1}


def test_what_is_not_read_yet_is_given_back_by_a_stop(queue: Queue) -> None:
    async def scenario() -> None:
        connector, hooks = Connector(queue.db.dsn, "w"), AllHooks(())
        slots = Slots("w", {"default": 4}, hooks, lambda: None)
        loop = asyncio.get_running_loop()
        executors = Executors(loop, hooks, slots.finish)
        claims = Claims(
            {"note": Task("note", lambda job: None)},
            slots,
            Heartbeat(connector, slots.runs),
            executors,
            hooks,
            lambda: True,
        )
        connection = Connection(connector, asyncio.Event(), hooks)
        exchange = Exchange(connection, "w", ["note"], None)
        claims.accept(await exchange.send([], {"default": 4}), 0.0)
        assert queue.states() == {"running": 3}
        claims.start_all()
        reports = slots.collect()
        await exchange.send(reports, {})
        slots.confirm(reports)
        assert slots.wants() == {"default": 4}
        executors.close()
        await connection.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 3)
    asyncio.run(scenario())
    assert queue.states() == {"ready": 3}


def test_a_run_that_is_released_and_ends_by_itself_is_reported_once() -> None:
    """Its thread may end at any moment of a stop, and again after the report."""

    async def scenario() -> None:
        connector, hooks = Connector("", "w"), AllHooks(())
        slots = Slots("w", {"default": 1}, hooks, lambda: None)
        heartbeat = Heartbeat(connector, slots.runs)
        run = Run(asyncio.get_running_loop(), heartbeat, "default", 7, math.inf)
        run.job = pulse.Job(7, 1, "default", "k", None, control=run)
        slots.take({"default": 1})
        slots.runs[7] = run
        slots.release(run)
        slots.finish(run, RELEASE)
        reports = slots.collect()
        assert reports == [run]
        slots.requeue(reports)
        slots.finish(run, RELEASE)
        reports = slots.collect()
        assert reports == [run]
        slots.confirm(reports)
        slots.finish(run, RELEASE)
        slots.finish(run, COMPLETE)
        assert slots.collect() == []
        assert slots.wants() == {"default": 1}

    asyncio.run(scenario())


def test_of_a_large_lane_half_the_slots_are_asked_for_at_a_time() -> None:
    """So that one half can run while the server claims for the other."""
    lanes = {"large": LARGE, "small": LARGE - 1}
    slots = Slots("w", lanes, AllHooks(()), lambda: None)
    assert slots.wants() == {"large": LARGE // 2, "small": LARGE - 1}
    slots.take({"large": LARGE // 2, "small": LARGE - 1})
    assert slots.wants() == {"large": LARGE // 2}
    slots.take({"large": LARGE // 2})
    assert slots.wants() == {}


def test_no_more_is_asked_for_than_a_claim_of_the_lane_gives() -> None:
    """An answer that is as large as it can be then says that there may be more."""
    slots = Slots("w", {"large": LARGE, "small": 5}, AllHooks(()), lambda: None)
    slots.set_max_batch("large", 7)
    slots.set_max_batch("small", 7)
    assert slots.wants() == {"large": 7, "small": 5}
    slots.set_max_batch("large", 2 * LARGE)
    assert slots.wants() == {"large": LARGE // 2, "small": 5}
