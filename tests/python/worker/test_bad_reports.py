"""Handlers may return and raise anything: a bad report harms its own run only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import pulse
from pulse import Job, Worker
from pulse.errors import InvalidArgument, TooLarge
from pulse.options import LARGEST_JSON, to_stored_json, to_text
from pulse.worker import protocol
from pulse.worker.runs import LONGEST_REASON, last_line
from tests.python.worker import handlers
from tests.python.worker.conftest import PATIENCE, Queue, Start
from tests.python.worker.test_processes import _importable as _importable

Flavour = Callable[[Worker, Callable[[], Any]], None]


def in_a_thread(worker: Worker, act: Callable[[], Any]) -> None:
    both = threading.Barrier(2)

    @worker.handle("bad")
    def bad(job: Job) -> Any:
        both.wait(PATIENCE)
        return act()

    @worker.handle("good")
    def good(job: Job) -> str:
        both.wait(PATIENCE)
        return "fine"


def on_the_loop(worker: Worker, act: Callable[[], Any]) -> None:
    begun: list[asyncio.Event] = []

    async def together() -> None:
        if not begun:
            begun.append(asyncio.Event())
            await begun[0].wait()
        else:
            begun[0].set()

    @worker.handle("bad")
    async def bad(job: Job) -> Any:
        await together()
        return act()

    @worker.handle("good")
    async def good(job: Job) -> str:
        await together()
        return "fine"


def run_beside_a_good_one(
    queue: Queue, start: Start, act: Callable[[], Any], flavour: Flavour = in_a_thread
) -> str:
    """The error that is kept of the bad one; both end at the same moment."""
    worker = Worker(queue.db.dsn, concurrency=2)
    flavour(worker, act)
    running = start(worker)
    bad = queue.enqueue("bad", max_attempts=1)
    good = queue.enqueue("good")
    queue.until_state(good, "completed")
    queue.until_state(bad, "dead")
    assert queue.job(good)["result"] == "fine"
    # Both slots are free, and the worker has not died.
    assert queue.one("SELECT count(*) FROM pulse.running") == 0
    assert running.thread.is_alive()
    running.stop()
    return str(queue.job(bad)["last_error"])


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    "error",
    [
        pulse.RetryIn(float("inf")),
        pulse.RetryIn(float("nan")),
        pulse.RetryIn(1e15),
        pulse.RetryIn(1e9),
        pulse.RetryIn(-5),
        pulse.RetryIn("soon \0 \ud800"),
        pulse.RetryIn([1]),  # type: ignore[arg-type]
        pulse.RetryIn(Decimal("sNaN")),  # type: ignore[arg-type]
        pulse.Snooze(float("nan")),
        pulse.Snooze(-1),
        pulse.Snooze("an \ud800 eternity"),
    ],
    ids=repr,
)
def test_a_delay_that_is_none_fails_the_run_and_says_so(
    queue: Queue, start: Start, error: BaseException
) -> None:
    kept = run_beside_a_good_one(queue, start, raising(error))
    assert "the delay" in kept or "the snooze of this run was refused" in kept, kept


def test_a_decimal_is_a_number_of_seconds(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("later")
    def later(job: Job) -> None:
        raise pulse.RetryIn(Decimal("3600.5"))  # type: ignore[arg-type]

    start(worker)
    job = queue.enqueue("later")
    queue.until_state(job, "retrying")
    assert "delay" not in queue.job(job)["last_error"]


class NoNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise KeyError("notes")


class NoText(Exception):
    def __str__(self) -> str:
        raise KeyError("text")


class NoCause(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise SystemExit("cause")


class NoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise KeyError("class")


class NoDelay(pulse.RetryIn):
    def __init__(self) -> None:
        Exception.__init__(self)


@pytest.mark.parametrize("made", [NoNotes, NoText, NoCause, NoClass, NoDelay])
@pytest.mark.parametrize("flavour", [in_a_thread, on_the_loop])
def test_an_exception_that_cannot_be_read_fails_its_run_and_frees_the_slot(
    queue: Queue, start: Start, made: Callable[[], BaseException], flavour: Flavour
) -> None:
    kept = run_beside_a_good_one(queue, start, raising(made()), flavour)
    assert made.__name__ in kept, kept


@pytest.mark.parametrize("made", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("flavour", [in_a_thread, on_the_loop])
def test_an_exit_in_a_handler_ends_its_run_and_not_the_worker(
    queue: Queue, start: Start, made: type[BaseException], flavour: Flavour
) -> None:
    kept = run_beside_a_good_one(queue, start, raising(made("bye")), flavour)
    assert f"{made.__name__}: bye" in kept, kept


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Shy(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit("nothing to see")


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (b"bytes", "cannot be written as JSON"),
        (float("nan"), "cannot be written as JSON"),
        ([float("inf")], "cannot be written as JSON"),
        (CYCLE, "Circular reference"),
        (nested(100_000), "cannot be written as JSON"),
        ({"deep": ["a\0b"]}, "NUL"),
        ({"\0": 1}, "NUL"),
        (["\ud800"], "surrogate"),
        (10**5000, "cannot be written as JSON"),
        (Shy(a=1), "cannot be written as JSON"),
        ("x" * 2_000_000, "the result is too large"),
        ("\u20ac" * 400_000, "It has 1200002 bytes as JSON; at most 1048576 are kept."),
        # Short here; the server writes all the digits.
        ([1e300] * 5_000, "too large"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_cannot_be_stored_fails_its_run_and_says_why(
    queue: Queue, start: Start, result: Any, reason: str
) -> None:
    kept = run_beside_a_good_one(queue, start, lambda: result)
    assert reason in kept, kept
    assert len(kept) < 3000


def test_what_is_refused_before_it_is_sent() -> None:
    assert to_stored_json("\\u0000", "x") == '"\\\\u0000"'
    with pytest.raises(InvalidArgument, match="NUL"):
        to_stored_json("\\\0", "x")
    assert len(to_stored_json("x" * (LARGEST_JSON - 2), "x")) == LARGEST_JSON
    with pytest.raises(TooLarge):
        to_stored_json("x" * (LARGEST_JSON - 1), "x")


def test_a_huge_error_keeps_its_ends_and_says_what_is_left_out(
    queue: Queue, start: Start
) -> None:
    error = ValueError("\0begin" + "\u20ac" * 3_000_000 + "end")
    kept = run_beside_a_good_one(queue, start, raising(error))
    assert "ValueError: \ufffdbegin" in kept
    assert "characters left out …" in kept
    assert kept.endswith("\u20acend")
    assert len(kept) <= 100_000
    # Repeated, it stays as it is.
    assert to_text(kept, 100_000) == kept


def test_progress_and_checkpoints_of_any_kind_do_not_stop_the_heartbeat(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue.db.dsn)
    seen: list[str] = []

    @worker.handle("walk")
    def walk(job: Job) -> str:
        job.progress(0.5, "x\0\ud800" + "y" * 50_000)
        for data in ("\0", "\ud800", float("nan"), CYCLE, b"", "x" * 2_000_000):
            with pytest.raises((InvalidArgument, TooLarge)) as refused:
                job.checkpoint(data)
            seen.append(type(refused.value).__name__)
        for fraction in (float("nan"), -1, 2, Decimal("NaN")):
            with pytest.raises((ValueError, ArithmeticError)):
                job.progress(fraction)  # type: ignore[arg-type]
        job.checkpoint({"step": 1})
        return "there"

    start(worker)
    job = queue.enqueue("walk")
    queue.until_state(job, "completed")
    assert seen == ["InvalidArgument"] * 5 + ["TooLarge"]
    assert "heartbeats fail" not in caplog.text


def test_one_refused_report_does_not_cost_the_others_theirs(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this package took for sound what the server refuses (22P05)."""
    monkeypatch.setattr(
        "pulse.worker.outcomes.to_stored_json", lambda value, what: '"\\u0000"'
    )
    kept = run_beside_a_refused_one(queue, start)
    assert "the complete of this run was refused" in kept


def run_beside_a_refused_one(queue: Queue, start: Start) -> str:
    worker = Worker(queue.db.dsn, concurrency=3)
    together = threading.Barrier(3)

    @worker.handle("bad")
    def bad(job: Job) -> str:
        together.wait(PATIENCE)
        return "?"

    @worker.handle("good")
    def good(job: Job) -> None:
        together.wait(PATIENCE)

    @worker.handle("failing")
    def failing(job: Job) -> None:
        together.wait(PATIENCE)
        raise pulse.RetryIn(3600)

    bad_job = queue.enqueue("bad", max_attempts=1)
    good_job, failing_job = queue.enqueue("good"), queue.enqueue("failing")
    start(worker)
    queue.until_state(good_job, "completed")
    queue.until_state(failing_job, "retrying")
    queue.until_state(bad_job, "dead")
    return str(queue.job(bad_job)["last_error"])


def test_many_large_results_are_reported_in_parts(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once they would make a statement that PostgreSQL does not take."""
    monkeypatch.setattr(protocol, "LARGEST_PART", 1 << 20)
    worker = Worker(queue.db.dsn, concurrency=20)
    together = threading.Barrier(20)
    sizes: list[int] = []
    values = protocol.Exchange._values

    def measured(self: Any, *args: Any) -> Any:
        made = values(self, *args)
        sizes.append(len(made[protocol.PARAMETERS.index("done")] or b""))
        return made

    monkeypatch.setattr(protocol.Exchange, "_values", measured)

    @worker.handle("large")
    def large(job: Job) -> str:
        together.wait(PATIENCE)
        return "x" * 500_000

    pulse.enqueue_many(queue.connection, "large", [{}] * 20)
    start(worker)
    queue.until(lambda: queue.states() == {"completed": 20})
    assert 1_000_000 < max(sizes) < 2_000_000


def test_a_lost_connection_while_a_result_is_refused_loses_no_claimed_job(
    queue: Queue, start: Start
) -> None:
    """The answer that refuses a result also holds the next jobs."""
    worker = Worker(queue.db.dsn, concurrency=1, poll_interval=600, listen=False)
    ran: list[int] = []

    @worker.handle("large")
    def large(job: Job) -> list[float]:
        return [1e300] * 5_000

    @worker.handle("next")
    def following(job: Job) -> None:
        ran.append(job.attempt)

    # Whoever reports it once more, by itself, loses the connection.
    queue.connection.execute(
        """
        CREATE OR REPLACE FUNCTION pulse.complete(
            lease bigint, result jsonb DEFAULT NULL
        )
        RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
        AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); END'
        """
    )
    large_job = queue.enqueue("large", max_attempts=1, priority=1)
    next_job = queue.enqueue("next")
    running = start(worker)
    queue.until_state(next_job, "completed")
    queue.until_state(large_job, "dead")
    running.stop()
    assert ran == [1]


def test_processes_end_like_threads(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, concurrency=2, tasks=[handlers.odd])
    start(worker)
    reasons = {
        "exit": "SystemExit: bye",
        "interrupt": "KeyboardInterrupt",
        "nan": "the result cannot be written as JSON",
        "nul": "NUL",
        "large": "the result is too large",
        "retry": "the delay of RetryIn cannot be nan",
        "notes": "NoNotes",
        "class": "NoClass: it has no text, since reading it raised KeyError",
        "value": "ValueError: in the child",
        "killed": "the process of the handler died (SIGKILL)",
    }
    jobs = {how: queue.enqueue("odd", {"how": how}, max_attempts=1) for how in reasons}
    for how, job in jobs.items():
        queue.until_state(job, "dead")
        error = queue.job(job)["last_error"]
        assert reasons[how] in error, error
        assert "RemoteError" not in error
        assert "executors.py" not in error
    queue.until_state(queue.enqueue("odd", {"how": "fine"}), "completed")


@pytest.mark.parametrize(
    ("how", "state"), [("decline", "dead"), ("put off", "retrying")]
)
def test_what_a_process_chooses_reads_as_in_a_thread(
    queue: Queue, start: Start, how: str, state: str
) -> None:
    tasks = [handlers.leave_process, handlers.leave_thread]
    start(Worker(queue.db.dsn, concurrency=2, tasks=tasks))
    errors = []
    for task in tasks:
        job = queue.enqueue(task.kind, {"how": how})
        queue.until_state(job, state)
        row = queue.job(job)
        assert row["attempts"] == 1
        errors.append(row["last_error"])
    assert errors[0] == errors[1]
    assert "in put_off" in errors[0] or "KeyError: 'CARD'" in errors[0]


def test_a_long_error_does_not_fill_the_log() -> None:
    assert len(last_line("first\n" + "x" * 90_000)) <= LONGEST_REASON
    assert last_line("first\nValueError: why") == "ValueError: why"
