"""Between the claim and the start of a job."""

from __future__ import annotations

import asyncio
import math
import threading

import pulse
from pulse.hooks import AllHooks
from pulse.tasks import Task
from pulse.worker.claims import Intake
from pulse.worker.connector import Source
from pulse.worker.exchange import Messenger
from pulse.worker.executors import Executors, Run
from pulse.worker.heartbeat import Heart
from pulse.worker.outcomes import COMPLETE, RELEASE, Outcome
from pulse.worker.slots import LARGE, Ledger
from tests.worker.conftest import Queue


def test_claimed_jobs_hold_their_slots_before_they_are_read(queue: Queue) -> None:
    """Reports go first; jobs are read, and known to the heart, after that."""
    ran: list[int] = []

    async def note(job: pulse.Job) -> None:
        ran.append(job.id)

    async def scenario() -> None:
        source, hooks, woken = (
            Source(queue.db.dsn, "w"),
            AllHooks(()),
            threading.Event(),
        )
        ledger = Ledger("w", {"default": 4}, hooks, woken.set)
        heart = Heart(source, ledger.runs)
        loop = asyncio.get_running_loop()
        executors = Executors(loop, hooks, ledger.done)
        tasks = {"note": Task("note", note)}
        intake = Intake(tasks, ledger, heart, executors, hooks, lambda: False)
        messenger = Messenger(source, ["note"], None)

        await intake.accept(await messenger.exchange([], {"default": 3}), 0.0)
        assert (intake.unread, len(ledger.runs)) == (3, 0)
        assert ledger.wants() == {"default": 1}

        await intake.start_all()
        assert (intake.unread, len(ledger.runs)) == (0, 3)
        assert all(run.leased_until > loop.time() for run in ledger.runs.values())
        works = [run.work for run in ledger.runs.values() if run.work is not None]
        await asyncio.gather(*works)
        assert [outcome for _, outcome in ledger.ended] == [COMPLETE] * 3
        reports = ledger.collect()
        assert {report.outcome for report in reports} == {Outcome("complete", "null")}

        await intake.accept(await messenger.exchange(reports, {"default": 4}), 0.0)
        ledger.settle(reports)
        assert (intake.unread, len(ledger.runs)) == (1, 0)
        intake.forget()
        assert ledger.wants() == {"default": 4}
        executors.close()
        await messenger.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 4)
    asyncio.run(scenario())
    assert len(ran) == 3
    assert queue.states() == {"completed": 3, "running": 1}


def test_what_is_not_read_yet_is_given_back_by_a_stop(queue: Queue) -> None:
    async def scenario() -> None:
        source, hooks = Source(queue.db.dsn, "w"), AllHooks(())
        ledger = Ledger("w", {"default": 4}, hooks, lambda: None)
        loop = asyncio.get_running_loop()
        executors = Executors(loop, hooks, ledger.done)
        intake = Intake(
            {"note": Task("note", lambda job: None)},
            ledger,
            Heart(source, ledger.runs),
            executors,
            hooks,
            lambda: True,
        )
        messenger = Messenger(source, ["note"], None)
        await intake.accept(await messenger.exchange([], {"default": 4}), 0.0)
        assert queue.states() == {"running": 3}
        await intake.start_all()
        reports = ledger.collect()
        await messenger.exchange(reports, {})
        ledger.settle(reports)
        assert ledger.wants() == {"default": 4}
        executors.close()
        await messenger.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 3)
    asyncio.run(scenario())
    assert queue.states() == {"ready": 3}


def test_a_run_that_is_given_back_and_ends_by_itself_is_told_once() -> None:
    """Its thread may end at any moment of a stop, and once more after it was told."""

    async def scenario() -> None:
        source, hooks = Source("", "w"), AllHooks(())
        ledger = Ledger("w", {"default": 1}, hooks, lambda: None)
        heart = Heart(source, ledger.runs)
        run = Run(asyncio.get_running_loop(), heart, "default", 7, math.inf)
        run.job = pulse.Job(7, 1, "default", "k", None, control=run)
        ledger.hold({"default": 1})
        ledger.runs[7] = run
        ledger.give_back(run)
        ledger.done(run, RELEASE)
        reports = ledger.collect()
        assert reports == [run]
        ledger.take_back(reports)
        ledger.done(run, RELEASE)
        reports = ledger.collect()
        assert reports == [run]
        ledger.settle(reports)
        ledger.done(run, RELEASE)
        ledger.done(run, COMPLETE)
        assert ledger.collect() == []
        assert ledger.wants() == {"default": 1}

    asyncio.run(scenario())


def test_of_a_large_lane_half_the_slots_are_asked_for_at_a_time() -> None:
    """So that one half can run while the server claims for the other."""
    lanes = {"large": LARGE, "small": LARGE - 1}
    ledger = Ledger("w", lanes, AllHooks(()), lambda: None)
    assert ledger.wants() == {"large": LARGE // 2, "small": LARGE - 1}
    ledger.hold({"large": LARGE // 2, "small": LARGE - 1})
    assert ledger.wants() == {"large": LARGE // 2}
    ledger.hold({"large": LARGE // 2})
    assert ledger.wants() == {}


def test_no_more_is_asked_for_than_a_claim_of_the_lane_gives() -> None:
    """An answer that is as large as it can be then says that there may be more."""
    ledger = Ledger("w", {"large": LARGE, "small": 5}, AllHooks(()), lambda: None)
    ledger.limit("large", 7)
    ledger.limit("small", 7)
    assert ledger.wants() == {"large": 7, "small": 5}
    ledger.limit("large", 2 * LARGE)
    assert ledger.wants() == {"large": LARGE // 2, "small": 5}
