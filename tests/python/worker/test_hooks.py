"""Hooks for metrics and traces: called for everything, unable to harm the worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import pulse
from pulse import Job, Worker, producer
from pulse.hooks import OpenTelemetry, Sentry
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
    with caplog.at_level("INFO", "pulse.worker"):
        running = start(worker)
        queue.until_state(jobs[2], "scheduled")
        running.stop()
    records = [r for r in caplog.records if getattr(r, "kind", None) == "end"]
    assert [(r.levelname, r.getMessage().partition(") ")[2]) for r in records] == [
        ("INFO", "starts"),
        ("INFO", "completed"),
        ("INFO", "starts"),
        ("ERROR", "failed and is dead: pulse.errors.Fatal: no"),
        ("INFO", "starts"),
        ("INFO", "snoozes for 1 hour"),
    ]
    for record, job in zip(
        records, [job for job in jobs for _ in range(2)], strict=True
    ):
        facts = vars(record)["fields"]
        assert (facts["job_id"], facts["worker"], facts["attempt"]) == (job, "w", 1)
    assert vars(records[1])["fields"]["outcome"] == "complete"


@pytest.fixture
def stamps() -> Iterator[None]:
    """What hooks add to the headers of this process ends with the test."""
    yield
    producer.stamps.clear()


@pytest.mark.usefixtures("stamps")
def test_spans_follow_a_job_from_its_enqueue(queue: Queue, start: Start) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    metrics = InMemoryMetricReader()
    meter = MeterProvider([metrics]).get_meter("test")
    tracer = provider.get_tracer("test")
    worker = Worker(queue.db.dsn, hooks=[OpenTelemetry(tracer, meter)])
    threads: list[str] = []

    @worker.handle("twice")
    def twice(job: Job) -> None:
        threads.append(threading.current_thread().name)
        if job.attempt == 1:
            raise pulse.RetryIn(0)

    @worker.handle("async")
    async def async_(job: Job) -> None: ...

    running = start(worker)
    connection = queue.db.connect()
    with tracer.start_as_current_span("request"):
        first = twice.enqueue(connection).id
        many = pulse.enqueue_many(connection, [{"kind": "async"}])
    queue.until_state(first, "completed")
    queue.until_state(many[0], "completed")
    running.stop()
    found = {(s.name, (s.attributes or {}).get("pulse.attempt")): s
             for s in spans.get_finished_spans()}  # fmt: skip
    request, enqueued = found["request", None], found["twice enqueue", None]
    run, again = found["twice run", 1], found["twice run", 2]
    assert enqueued.parent == request.context
    assert enqueued.kind is SpanKind.PRODUCER
    assert run.kind is SpanKind.CONSUMER
    assert run.parent is not None
    assert run.parent.span_id == enqueued.context.span_id
    assert (run.attributes or {})["messaging.message.id"] == str(first)
    assert again.parent is None
    assert again.context.trace_id != run.context.trace_id
    assert [link.context.span_id for link in again.links] == [enqueued.context.span_id]
    assert found["async run", 1].context.trace_id == request.context.trace_id
    assert threads[0].startswith("pulse handler")
    exported = str(metrics.get_metrics_data())
    for name in ("runs", "run.duration", "claims", "runs.active", "exchange.duration"):
        assert f"pulse.{name}" in exported


@pytest.mark.usefixtures("stamps")
def test_what_a_handler_raises_goes_to_sentry(queue: Queue, start: Start) -> None:
    events: list[Any] = []
    sentry_sdk.init(
        "http://key@localhost/1",
        before_send=lambda event, hint: events.append(event),
        before_send_transaction=lambda event, hint: None,
        traces_sample_rate=1.0,
        default_integrations=False,
    )
    worker = Worker(queue.db.dsn, hooks=[Sentry()])

    @worker.handle("boom")
    def boom(job: Job, how: str) -> None:
        raise {"error": ValueError("no"), "snooze": pulse.Snooze("1 h")}[how]

    try:
        running = start(worker)
        connection = queue.db.connect()
        with sentry_sdk.start_transaction(name="request") as request:
            failed = pulse.enqueue(connection, "boom", {"how": "error"}, max_attempts=1)
        snoozed = pulse.enqueue(connection, "boom", {"how": "snooze"})
        queue.until_state(failed, "dead")
        queue.until_state(snoozed, "scheduled")
        running.stop()
    finally:
        sentry_sdk.get_client().close()
    [event] = events
    assert event["tags"]["pulse.kind"] == "boom"
    assert event["contexts"]["pulse"]["job_id"] == str(failed)
    assert event["contexts"]["trace"]["trace_id"] == request.trace_id


@pytest.mark.usefixtures("stamps")
def test_a_stamp_that_raises_harms_no_job(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(kind: str, headers: dict[str, Any]) -> None:
        raise ValueError("a broken stamp")

    producer.stamps["broken"] = broken
    producer.stamps["tenant"] = lambda kind, headers: headers.update(tenant=kind)
    connection = queue.db.connect()
    job = pulse.enqueue(connection, "k", headers={"a": 1})
    assert queue.job(job)["headers"] == {"a": 1, "tenant": "k"}
    assert "a broken stamp" in caplog.text
