"""Flows through the worker: upstream, spawn, steps, sleeps and signals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pulse
import pulse.testing
from pulse import Job, Worker, errors
from tests.conftest import Connection, Database
from tests.python.worker import handlers
from tests.python.worker.conftest import Queue, Start


def build() -> tuple[Worker, list[Any]]:
    worker = Worker("host=/nowhere", lanes={"default": 1})
    seen: list[Any] = []

    @worker.handle("fetch")
    def fetch(job: Job, pages: int) -> int:
        parts = [{"kind": "part", "payload": {"n": n}} for n in range(pages)]
        seen.append(job.spawn("parts", parts))
        return pages

    @worker.handle("part")
    async def part(job: Job, n: int) -> int:
        return n * 10

    @worker.handle("merge")
    def merge(job: Job) -> int:
        seen.append((job.flow, job.name, [u.kind for u in job.upstream()]))
        return sum(u.result for u in job.upstream() if u.kind == "part")

    @worker.handle("order")
    def order(job: Job) -> Any:
        charge = job.step("charge", charged, seen)
        job.sleep("cool off", "1 day")
        return [charge, job.wait_for("approved", timeout="3 days")]

    @worker.handle("async order")
    async def async_order(job: Job) -> Any:
        charge = await job.step_async("charge", charged_async, seen)
        await job.sleep_async("cool off", 3600)
        seen.append(await job.upstream_async())
        spawned = await job.spawn_async("more", [{"kind": "part", "payload": {"n": 1}}])
        return [charge, len(spawned), await job.wait_for_async("go", timeout="1 h")]

    @worker.handle("careless")
    def careless(job: Job) -> str:
        try:
            job.sleep("nap", "1 day")
        except Exception:
            return "a handler's except Exception swallowed the wait"
        return "rested"

    @worker.handle("twice")
    def twice(job: Job) -> None:
        job.step("one", int)
        job.step("one", int)

    return worker, seen


def charged(seen: list[Any]) -> dict[str, int]:
    seen.append("charged")
    return {"charge": seen.count("charged")}


async def charged_async(seen: list[Any]) -> dict[str, int]:
    await asyncio.sleep(0)
    return charged(seen)


@pytest.fixture
def connection(db: Database) -> Connection:
    return db.connect(autocommit=False)


def pass_time(connection: Connection) -> None:
    connection.execute("UPDATE pulse_internal.waiting SET run_at = clock_timestamp()")
    connection.execute("UPDATE pulse_internal.job_step SET until = clock_timestamp()")
    connection.execute("DELETE FROM pulse_internal.due_mark")


def test_a_flow_of_names_with_spawned_parts(connection: Connection) -> None:
    worker, seen = build()
    pulse.enqueue_many(
        connection,
        [
            {"kind": "fetch", "name": "fetch", "payload": {"pages": 3}, "flow": "f"},
            {"kind": "merge", "name": "merge", "after": ["fetch"], "flow": "f"},
        ],
    )
    done = pulse.testing.work_off(connection, worker)
    assert [d.job.kind for d in done] == ["fetch", "part", "part", "part", "merge"]
    assert done[-1].result == 30
    assert seen[-1] == ("f", "merge", ["fetch", "part", "part", "part"])


def test_after_takes_ids(connection: Connection) -> None:
    worker, _ = build()
    first = pulse.enqueue(connection, "part", {"n": 1}, flow="f", name="one")
    pulse.enqueue(connection, "merge", after=[first], after_failed="run", flow="f")
    done = pulse.testing.work_off(connection, worker)
    assert [(d.job.kind, d.result) for d in done] == [("part", 10), ("merge", 10)]


@pytest.mark.parametrize(
    ("kind", "signal", "result"),
    [
        ("order", "approved", [{"charge": 1}, {"by": "ann"}]),
        ("async order", "go", [{"charge": 1}, 1, {"by": "ann"}]),
    ],
)
def test_steps_are_done_once_and_waits_hold_no_slot(
    connection: Connection, kind: str, signal: str, result: Any
) -> None:
    worker, seen = build()
    pulse.enqueue(connection, kind)
    [done] = pulse.testing.work_off(connection, worker)
    assert (done.outcome, done.result) == ("wait", None)
    assert pulse.testing.work_off(connection, worker) == []
    pass_time(connection)
    outcomes = [d.outcome for d in pulse.testing.work_off(connection, worker)]
    assert outcomes[0] == "wait"
    assert pulse.signal(connection, signal, {"by": "ann"}) == 1
    [done] = pulse.testing.work_off(connection, worker)
    assert (done.outcome, done.result) == ("complete", result)
    assert seen.count("charged") == 1
    assert done.job.failures == 0


def test_a_signal_that_never_comes_is_a_timeout(connection: Connection) -> None:
    worker, _ = build()
    pulse.enqueue(connection, "order", max_attempts=1)
    for _ in range(2):
        [done] = pulse.testing.work_off(connection, worker)
        assert done.outcome == "wait"
        pass_time(connection)
    [done] = pulse.testing.work_off(connection, worker)
    assert done.outcome == "fail"
    assert "TimedOut: no signal 'approved' came in time" in (done.error or "")


def test_except_exception_does_not_swallow_a_wait(connection: Connection) -> None:
    worker, _ = build()
    pulse.enqueue(connection, "careless")
    [done] = pulse.testing.work_off(connection, worker)
    assert done.outcome == "wait"
    assert not issubclass(pulse.Suspended, Exception)
    assert issubclass(pulse.TimedOut, TimeoutError)


def test_a_step_name_used_twice_in_one_run_is_an_error(connection: Connection) -> None:
    worker, _ = build()
    pulse.enqueue(connection, "twice")
    [done] = pulse.testing.work_off(connection, worker)
    assert "step 'one' was used before in this run" in (done.error or "")


def test_what_after_cannot_be(connection: Connection) -> None:
    with pytest.raises(errors.NoSuchJob):
        pulse.enqueue(connection, "k", after=[987654321])
    connection.rollback()
    with pytest.raises(errors.InvalidArgument):
        pulse.enqueue_many(connection, [{"kind": "k", "after": ["nobody"]}])


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_real_worker_waits_and_goes_on(
    queue: Queue, start: Start, executor: str
) -> None:
    worker = Worker(queue.db.dsn, concurrency=2)
    worker.handle("order", executor=executor)(handlers.order)  # type: ignore[call-overload]
    start(worker)
    job = queue.enqueue("order")
    queue.until_state(job, "scheduled")
    queue.connection.execute("SELECT pulse.signal('approved', '7')")
    queue.until_state(job, "completed")
    row = queue.connection.execute(
        "SELECT result, attempts, failures FROM pulse.jobs WHERE job_id = %s", [job]
    ).fetchone()
    assert row == ([[1, 2], 7], 2, 0)


def test_the_slot_of_a_job_that_waits_is_used_at_once(
    queue: Queue, start: Start
) -> None:
    """Nothing is reported of such a run; the next claim does not wait for the poll."""
    worker = Worker(queue.db.dsn, concurrency=1, poll_interval=3600, listen=False)
    worker.handle("order")(handlers.order)
    jobs = [queue.enqueue("order") for _ in range(3)]
    start(worker)
    for job in jobs:
        queue.until_state(job, "scheduled")
