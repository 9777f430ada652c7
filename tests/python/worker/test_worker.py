"""What a worker does with jobs: runs them, reports them, never too many at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import pulse
from pulse import Job, Worker, errors
from pulse.worker.runs import LARGE
from tests.conftest import Database
from tests.python.worker.conftest import PATIENCE, Queue, Start


def test_sync_and_async_handlers_return_results(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, concurrency=4)

    @worker.handle("add")
    def add(job: Job, a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    @worker.handle("mul")
    async def mul(job: Job, a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a * b

    @worker.handle("plain")
    def plain(job: Job) -> Any:
        return [job.payload, job.attempt, job.lane, job.kind, job.headers]

    start(worker)
    with pulse.Client(queue.db.dsn) as client:
        assert client.result(client.enqueue("add", {"a": 1, "b": 2}), 20) == {"sum": 3}
        assert client.result(client.enqueue("mul", {"a": 3, "b": 4}), 20) == 12
        plainly = client.enqueue("plain", [1, 2], headers={"a": 1})
        assert client.result(plainly, 20) == [[1, 2], 1, "default", "plain", {"a": 1}]


def test_an_exception_fails_the_run_with_its_traceback(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("boom")
    def boom(job: Job) -> None:
        raise ValueError("no such thing \0 as a free lunch")

    start(worker)
    job = queue.enqueue("boom", max_attempts=1)
    queue.until_state(job, "dead")
    error = queue.job(job)["last_error"]
    assert error.startswith("Traceback")
    assert "test_worker.py" in error
    assert "executors.py" not in error
    assert error.endswith("ValueError: no such thing \ufffd as a free lunch")


def test_endings_snooze_retry_and_kill(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("end")
    async def end(job: Job, how: str) -> None:
        raise {
            "snooze": pulse.Snooze("1 hour"),
            "retry": pulse.RetryIn(3600, "later"),
            "fatal": pulse.Fatal("never"),
            "cancelled": pulse.Cancelled("by itself"),
            "bad": pulse.Snooze("an eternity"),
        }[how]

    start(worker)
    jobs = {
        how: queue.enqueue("end", {"how": how})
        for how in ("snooze", "retry", "fatal", "cancelled", "bad")
    }
    queue.until_state(jobs["snooze"], "scheduled")
    assert queue.job(jobs["snooze"])["failures"] == 0
    queue.until_state(jobs["retry"], "retrying")
    assert queue.job(jobs["retry"])["failures"] == 1
    assert queue.one(
        "SELECT run_at > clock_timestamp() + interval '50 min' FROM pulse.jobs "
        "WHERE job_id = %s",
        jobs["retry"],
    )
    queue.until_state(jobs["fatal"], "dead")
    queue.until_state(jobs["cancelled"], "dead")
    queue.until_state(jobs["bad"], "retrying")
    assert "refused" in queue.job(jobs["bad"])["last_error"]


@pytest.mark.parametrize(
    "result", [object(), float("nan"), "\0", "\ud800", "x" * 2_000_000]
)
def test_a_result_that_cannot_be_kept_fails_its_run_and_no_other(
    queue: Queue, start: Start, result: Any
) -> None:
    worker = Worker(queue.db.dsn, concurrency=2)
    both = threading.Barrier(2)

    @worker.handle("bad")
    def bad(job: Job) -> Any:
        both.wait(PATIENCE)
        return result

    @worker.handle("good")
    def good(job: Job) -> str:
        both.wait(PATIENCE)
        return "fine"

    start(worker)
    bad_job = queue.enqueue("bad", max_attempts=1)
    good_job = queue.enqueue("good")
    queue.until_state(good_job, "completed")
    queue.until_state(bad_job, "dead")
    assert queue.job(good_job)["result"] == "fine"


def test_a_payload_that_does_not_fit_fails_the_run(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("fit")
    def fit(job: Job, a: int) -> None: ...

    start(worker)
    wrong = queue.enqueue("fit", {"b": 1}, max_attempts=1)
    listed = queue.enqueue("fit", [1], max_attempts=1)
    queue.until_state(wrong, "dead")
    queue.until_state(listed, "dead")
    assert "unexpected keyword argument 'b'" in queue.job(wrong)["last_error"]
    assert "has to be an object" in queue.job(listed)["last_error"]


class Gauge:
    """How many handlers run at once, and the most there ever were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.all = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_in_flight_is_never_above_concurrency(
    queue: Queue, start: Start, flavour: str
) -> None:
    worker = Worker(queue.db.dsn, concurrency=5)
    gauge, server_most = Gauge(), []

    if flavour == "sync":

        @worker.handle("one")
        def one(job: Job) -> None:
            with gauge:
                threading.Event().wait(0.002)

    else:

        @worker.handle("one")
        async def one_async(job: Job) -> None:
            with gauge:
                await asyncio.sleep(0.002)

    pulse.enqueue_many(queue.connection, "one", [{}] * 300)
    start(worker)

    def all_done() -> bool:
        server_most.append(queue.one("SELECT count(*) FROM pulse.running"))
        return queue.states() == {"completed": 300}

    queue.until(all_done)
    assert gauge.most == 5
    assert max(server_most) <= 5
    assert gauge.all == 300


def test_one_long_job_does_not_hold_up_the_other_slots(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, concurrency=3)
    release, gauge = threading.Event(), Gauge()

    @worker.handle("long")
    def long(job: Job) -> None:
        assert release.wait(PATIENCE)

    @worker.handle("short")
    def short(job: Job) -> None:
        with gauge:
            threading.Event().wait(0.001)

    first = queue.enqueue("long", priority=10)
    pulse.enqueue_many(queue.connection, "short", [{}] * 100)
    start(worker)
    queue.until(lambda: queue.states().get("completed") == 100)
    assert queue.state(first) == "running"
    assert gauge.most == 2
    release.set()
    queue.until_state(first, "completed")


def test_lanes_have_slots_of_their_own(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, lanes={"interactive": 2, "maintenance": 1})
    gauges = {"interactive": Gauge(), "maintenance": Gauge()}
    everyone = threading.Barrier(3)

    @worker.handle("work")
    def work(job: Job) -> None:
        with gauges[job.lane]:
            everyone.wait(PATIENCE)

    for lane in gauges:
        pulse.enqueue_many(
            queue.connection,
            "work",
            [{}] * (4 if lane == "interactive" else 2),
            lane=lane,
        )
    elsewhere = queue.enqueue("work", lane="nobody")
    start(worker)
    queue.until(lambda: queue.states().get("completed") == 6)
    assert gauges["interactive"].most == 2
    assert gauges["maintenance"].most == 1
    assert queue.state(elsewhere) == "ready"


def test_a_kind_without_a_handler_is_never_claimed(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("old")
    def old(job: Job) -> None: ...

    unknown = queue.enqueue("new", priority=100)
    known = queue.enqueue("old")
    start(worker)
    queue.until_state(known, "completed")
    row = queue.job(unknown)
    assert (row["state"], row["attempts"]) == ("ready", 0)
    queue.until(lambda: queue.one("SELECT count(*) FROM pulse.workers") == 1)
    # Health waits two minutes before it worries.
    queue.connection.execute(
        "UPDATE pulse_internal.ready SET ready_at = ready_at - '3 min'::interval"
    )
    named = "SELECT figure FROM pulse.health() WHERE check_name = 'unhandled_kinds'"
    assert queue.one(named) == "new in lane default"


def test_progress_and_checkpoints_reach_the_server(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)
    stored, go_on = threading.Event(), threading.Event()

    @worker.handle("walk")
    def walk(job: Job) -> Any:
        if job.attempt == 1:
            job.progress(0.5, "half way")
            job.checkpoint({"step": 3})
            stored.set()
            assert go_on.wait(PATIENCE)
            raise pulse.RetryIn(0)
        return job.last_checkpoint

    @worker.handle("stroll")
    async def stroll(job: Job) -> Any:
        await job.checkpoint_async([1])
        with pytest.raises(errors.TooLarge):
            await job.checkpoint_async("x" * 2_000_000)

    start(worker)
    job = queue.enqueue("walk")
    assert stored.wait(PATIENCE)
    queue.until(lambda: queue.job(job)["progress"] == 0.5)
    assert queue.job(job)["progress_note"] == "half way"
    go_on.set()
    queue.until_state(job, "completed")
    assert queue.job(job)["result"] == {"step": 3}
    queue.until_state(queue.enqueue("stroll"), "completed")


def test_progress_is_sent_at_most_once_a_second(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("count")
    def count(job: Job) -> None:
        for n in range(10_000):
            job.progress(n / 10_000)

    start(worker)
    queue.until_state(queue.enqueue("count"), "completed")
    calls = queue.one(
        "SELECT coalesce(sum(n_tup_ins + n_tup_upd), 0) FROM pg_stat_user_tables "
        "WHERE relname = 'job_progress'"
    )
    assert calls <= 3


def test_a_worker_takes_tasks_and_refuses_two_handlers_of_a_kind(db: Database) -> None:
    task = pulse.task("greet")(lambda job, name: f"hello {name}")
    worker = Worker(db.dsn, tasks=[task])
    with pytest.raises(ValueError, match="already"):
        worker.add(task)
    with pytest.raises(ValueError, match="slot"):
        Worker(db.dsn, concurrency=0)
    with pytest.raises(TypeError, match="not both"):
        Worker(db.dsn, concurrency=1, lanes={"a": 1})
    with pytest.raises(RuntimeError, match="no handlers"):
        Worker(db.dsn).run()


@pytest.mark.parametrize("place", [0, 10, 30, 39])
def test_a_payload_that_python_cannot_read_fails_and_the_worker_goes_on(
    queue: Queue, start: Start, place: int
) -> None:
    """Wherever in its batch it stands."""
    worker = Worker(queue.db.dsn, concurrency=40)

    @worker.handle("read")
    async def read(job: Job, n: int = 0) -> None: ...

    for n in range(40):
        payload = "9" * 5000 if n == place else str(n)
        queue.connection.execute(
            "SELECT pulse.enqueue('read', %s::jsonb, max_attempts => 1)",
            (f'{{"n": {payload}}}',),
        )
    start(worker)
    queue.until(lambda: queue.states() == {"completed": 39, "dead": 1})
    error = queue.one("SELECT last_error FROM pulse.dead")
    assert error.startswith("the job cannot be read: ValueError")


def test_names_are_read_whatever_the_encoding_of_the_dsn(
    queue: Queue, start: Start
) -> None:
    worker = Worker(f"{queue.db.dsn} client_encoding=LATIN1", lanes={"caf\u00e9": 2})

    @worker.handle("th\u00e9")
    async def tea(job: Job, to: str) -> str:
        return to

    job = queue.enqueue("th\u00e9", {"to": "\u20ac"}, lane="caf\u00e9")
    start(worker)
    queue.until_state(job, "completed")
    assert queue.job(job)["result"] == "\u20ac"


def test_a_large_lane_is_filled_at_once_though_it_is_asked_for_by_halves(
    queue: Queue, start: Start
) -> None:
    """Nothing but the answer that came full says that there may be more."""
    worker = Worker(queue.db.dsn, concurrency=LARGE, poll_interval=600, listen=False)
    over = asyncio.Event()

    @worker.handle("long")
    async def long(job: Job) -> None:
        await over.wait()

    pulse.enqueue_many(queue.connection, "long", [{}] * (LARGE + 50))
    running = start(worker)
    queue.until(lambda: queue.states() == {"running": LARGE, "ready": 50})
    running.stop(0)
    assert queue.states() == {"ready": LARGE + 50}
