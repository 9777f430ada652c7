"""Hooks for metrics and traces: called for everything, unable to harm the worker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import pulse
from pulse import Job, Worker
from pulse.hooks import OpenTelemetry
from tests.python.worker.conftest import Queue, Start


def test_hooks_are_called_and_cannot_harm_the_worker(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[tuple[str, str]] = []

    class Recording(pulse.Hooks):
        def started(self, job: Job) -> None:
            calls.append(("started", job.kind))
            raise ValueError("a broken hook")

        def finished(self, job: Job, outcome: str, seconds: float) -> None:
            assert 0 <= seconds < 20
            calls.append((outcome, job.kind))

    worker = Worker(queue.db.dsn, hooks=[Recording()])

    @worker.handle("x")
    def x(job: Job) -> None: ...

    running = start(worker)
    queue.until_state(queue.enqueue("x"), "completed")
    running.stop()
    assert calls == [("started", "x"), ("complete", "x")]
    assert "a broken hook" in caplog.text


def test_every_start_and_end_is_logged_with_its_facts(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue.db.dsn, concurrency=1, name="w")

    @worker.handle("end")
    def end(job: Job, how: str) -> None:
        if how == "fail":
            raise pulse.Fatal("no")
        if how == "snooze":
            raise pulse.Snooze("1 hour")

    jobs = [queue.enqueue("end", {"how": how}) for how in ("be", "fail", "snooze")]
    with caplog.at_level("DEBUG", "pulse.worker"):
        running = start(worker)
        queue.until_state(jobs[2], "scheduled")
        running.stop()
    told = [r for r in caplog.records if getattr(r, "kind", None) == "end"]
    assert [(r.levelname, r.getMessage().partition(") ")[2]) for r in told] == [
        ("DEBUG", "starts"),
        ("DEBUG", "completed"),
        ("DEBUG", "starts"),
        ("WARNING", "failed: pulse.errors.Fatal: no"),
        ("DEBUG", "starts"),
        ("INFO", "snoozes for 1 hour"),
    ]
    for record, job in zip(told, [job for job in jobs for _ in range(2)], strict=True):
        facts = vars(record)["fields"]
        assert (facts["job_id"], facts["worker"], facts["attempt"]) == (job, "w", 1)
    assert vars(told[1])["fields"]["outcome"] == "complete"


class Telemetry:
    """As much of a tracer and a meter as the hooks use."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, dict[str, Any]]] = []
        self.counted: list[tuple[str, float, dict[str, Any]]] = []

    @contextlib.contextmanager
    def start_as_current_span(
        self, name: str, attributes: dict[str, Any]
    ) -> Iterator[None]:
        where = threading.current_thread().name
        yield
        self.spans.append((name, where, attributes))

    def create_counter(self, name: str, **_: Any) -> Instrument:
        return Instrument(name, self.counted)

    create_histogram = create_up_down_counter = create_counter

    def sum(self, name: str) -> float:
        return sum(n for found, n, _ in self.counted if found == name)


@dataclass
class Instrument:
    name: str
    counted: list[tuple[str, float, dict[str, Any]]]

    def add(self, n: float, facts: dict[str, Any]) -> None:
        self.counted.append((self.name, n, facts))

    record = add


def test_a_span_surrounds_the_handler_where_it_runs(queue: Queue, start: Start) -> None:
    seen = Telemetry()
    hooks = [OpenTelemetry(tracer=seen, meter=seen)]
    worker = Worker(queue.db.dsn, hooks=hooks)

    @worker.handle("sync")
    def sync(job: Job) -> None: ...

    @worker.handle("async")
    async def async_(job: Job) -> None: ...

    running = start(worker)
    first = queue.enqueue("sync")
    queue.until_state(first, "completed")
    queue.until_state(queue.enqueue("async"), "completed")
    running.stop()
    assert [name for name, _, _ in seen.spans] == ["sync run", "async run"]
    assert seen.spans[0][1].startswith("pulse handler")
    assert seen.spans[0][2]["messaging.message.id"] == str(first)
    ended = [facts for name, _, facts in seen.counted if name == "pulse.runs"]
    assert [facts["outcome"] for facts in ended] == ["complete", "complete"]
    assert seen.sum("pulse.claims") == 2
    assert seen.sum("pulse.runs.active") == 0
    assert 0 <= seen.sum("pulse.run.duration") < 20
    assert "pulse.exchange.duration" in {name for name, _, _ in seen.counted}
