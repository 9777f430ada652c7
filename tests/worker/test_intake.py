"""Between the claim and the start of a job: its lease is kept from the answer on."""

from __future__ import annotations

import asyncio
import threading

import pulse
from pulse.executors import Executors
from pulse.heartbeat import Heart
from pulse.intake import Intake
from pulse.ledger import Ledger
from pulse.messages import Messenger
from pulse.reports import COMPLETE, Outcome
from pulse.sessions import Source
from pulse.tasks import Task
from pulse.tracing import AllHooks
from tests.worker.conftest import Queue


def test_jobs_that_are_not_read_yet_hold_slots_and_are_kept_alive(queue: Queue) -> None:
    """Reports go first; whatever happens meanwhile, the heart knows the leases."""
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

        await intake.accept(await messenger.exchange([], {"default": 1}), 0.0)
        (first,) = ledger.runs.values()
        assert first.work is not None
        await first.work
        assert [outcome for _, outcome in ledger.ended] == [COMPLETE]

        await intake.accept(await messenger.exchange([], {"default": 3}), 0.0)
        assert (intake.unread, len(ran)) == (3, 1)
        assert len(ledger.runs) == 4
        assert all(run.leased_until > loop.time() for run in ledger.runs.values())
        assert ledger.free() == {}

        await intake.start_all()
        works = [run.work for run in ledger.runs.values() if run.work is not None]
        await asyncio.gather(*works)
        assert len(ran) == 4
        reports = ledger.collect()
        assert {report.outcome for report in reports} == {Outcome("complete", "null")}
        await messenger.exchange(reports, {})
        ledger.settle(reports)
        executors.close()
        await messenger.close()

    pulse.enqueue_many(queue.connection, "note", [{}] * 4)
    asyncio.run(scenario())
    assert queue.states() == {"completed": 4}
