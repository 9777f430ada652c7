"""Hooks: what a worker reports about itself, for metrics and traces.

Subclass Hooks and override what you need. Hooks run on the worker's event loop, apart
from around(), which wraps the handler where it runs; keep them short. What a
hook raises is logged and otherwise ignored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any

from pulse import errors, producer
from pulse.job import Job
from pulse.logs import log_event


class Hooks:
    """What a worker reports about itself; subclass it and override what you need.

    Hooks run on the worker's event loop, apart from around(); keep them short. An
    exception of a hook is logged and otherwise ignored.

    Example:
        >>> class Count(pulse.Hooks):
        ...     ended = 0
        ...     def finished(self, job, outcome, seconds):
        ...         self.ended += 1
        >>> count = Count()
        >>> worker = pulse.Worker(dsn, tasks=[double], hooks=[count])
    """

    def claimed(self, jobs: Sequence[Job], seconds: float) -> None:
        """Called after each exchange.

        Args:
            jobs: The jobs that it brought, or none.
            seconds: How long it took.
        """

    def started(self, job: Job) -> None:
        """Called before the handler.

        Args:
            job: The job that the handler gets.
        """

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        """Called when a run has ended.

        Args:
            job: The job that was run.
            outcome: complete, fail, snooze, release, wait, ack_cancel or drop (the
                lease was lost).
            seconds: How long the handler ran.
        """

    def disconnected(self, error: BaseException) -> None:
        """Called when the loop's connection broke; the worker connects again.

        Args:
            error: The error of the driver.
        """

    def around(self, job: Job) -> AbstractContextManager[Any]:
        """Return a context in which the handler runs, in its thread or asyncio task.

        Args:
            job: The job that the handler gets.

        Returns:
            A context manager. One that is an async context manager as well is
            entered as that around async handlers.

        Example:
            >>> from contextlib import contextmanager
            >>> class Log(pulse.Hooks):
            ...     @contextmanager
            ...     def around(self, job):
            ...         print("before", job.kind)
            ...         yield
            >>> with Log().around(pulse.Job(1, 1, "default", "double", {"n": 21})):
            ...     double(21)
            before double
            42
        """
        return nullcontext()


class AllHooks:
    """Several hooks as one; what one of them raises does not reach the worker."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._hooks = hooks
        self._around = [h for h in hooks if type(h).around is not Hooks.around]
        self.wraps = bool(self._around)

    def claimed(self, jobs: Sequence[Job], seconds: float) -> None:
        self._call_each("claimed", jobs, seconds)

    def started(self, job: Job) -> None:
        self._call_each("started", job)

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        self._call_each("finished", job, outcome, seconds)

    def disconnected(self, error: BaseException) -> None:
        self._call_each("disconnected", error)

    def _call_each(self, name: str, *args: Any) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, name)(*args)
            except Exception as error:
                log_event(logging.ERROR, f"the hook {name} raised {error!r}", hook=name)

    @contextmanager
    def around(self, job: Job) -> Iterator[None]:
        with ExitStack() as stack:
            for hook in self._around:
                stack.enter_context(hook.around(job))
            yield

    @asynccontextmanager
    async def around_async(self, job: Job) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for hook in self._around:
                context: Any = hook.around(job)
                if hasattr(context, "__aenter__"):
                    await stack.enter_async_context(context)
                else:
                    stack.enter_context(context)
            yield

    def __bool__(self) -> bool:
        return bool(self._hooks)


class OpenTelemetry(Hooks):
    """Spans that follow a job, and a few instruments; needs pgpulse[otel].

    Made anywhere in a process, it also gives each enqueue there a producer span. The
    context of that span goes along in the headers of the job. The span of the first
    attempt is its child. Each further attempt begins a trace and links to it.

    Args:
        tracer: A tracer of OpenTelemetry; None, the global one of the name pulse.
        meter: A meter of OpenTelemetry; None, the global one of the name pulse.
        producers: Whether an enqueue gets a span.
    """

    def __init__(
        self, tracer: Any = None, meter: Any = None, *, producers: bool = True
    ) -> None:
        from opentelemetry import context, metrics, propagate, trace

        self._trace, self._propagate, self._context = trace, propagate, context
        self._tracer = tracer or trace.get_tracer("pulse")
        meter = meter or metrics.get_meter("pulse")
        self._running: set[int] = set()
        self._runs = meter.create_counter("pulse.runs", description="runs that ended")
        self._seconds = meter.create_histogram(
            "pulse.run.duration", unit="s", description="how long handlers ran"
        )
        self._active = meter.create_up_down_counter(
            "pulse.runs.active", description="handlers that run"
        )
        self._claims = meter.create_counter(
            "pulse.claims", description="jobs that exchanges brought"
        )
        self._exchanges = meter.create_histogram(
            "pulse.exchange.duration", unit="s", description="how long exchanges took"
        )
        self._disconnects = meter.create_counter(
            "pulse.disconnects", description="connections that broke"
        )
        if producers:
            producer.stamps["opentelemetry"] = self.stamp

    def stamp(self, kind: str, headers: dict[str, Any]) -> None:
        """Start a span for the enqueue, and write its context into the headers."""
        facts = {"messaging.system": "pulse", "messaging.operation.type": "create"}
        with self._tracer.start_as_current_span(
            f"{kind} enqueue",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={**facts, "pulse.kind": kind},
        ):
            self._propagate.inject(headers)

    @contextmanager
    def around(self, job: Job) -> Iterator[None]:
        facts: dict[str, Any] = {
            "messaging.system": "pulse",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.lane,
            "messaging.message.id": str(job.id),
            "pulse.kind": job.kind,
            "pulse.attempt": job.attempt,
        }
        nowhere = self._context.Context()
        came = self._propagate.extract(job.headers or {}, context=nowhere)
        links = []
        if job.attempt > 1:
            enqueued = self._trace.get_current_span(came).get_span_context()
            links = [self._trace.Link(enqueued)] if enqueued.is_valid else []
            came = nowhere
        with self._tracer.start_as_current_span(
            f"{job.kind} run",
            context=came,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=facts,
            links=links,
        ):
            yield

    def claimed(self, jobs: Sequence[Job], seconds: float) -> None:
        self._exchanges.record(seconds, {})
        for (kind, lane), n in Counter((job.kind, job.lane) for job in jobs).items():
            self._claims.add(n, {"pulse.kind": kind, "pulse.lane": lane})

    def started(self, job: Job) -> None:
        self._running.add(job.lease)
        self._active.add(1, {"pulse.kind": job.kind, "pulse.lane": job.lane})

    def disconnected(self, error: BaseException) -> None:
        self._disconnects.add(1, {"error.type": type(error).__qualname__})

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        facts = {"pulse.kind": job.kind, "pulse.lane": job.lane, "outcome": outcome}
        # A run that was released at once has not started.
        if job.lease in self._running:
            self._running.remove(job.lease)
            self._active.add(-1, {"pulse.kind": job.kind, "pulse.lane": job.lane})
        self._runs.add(1, facts)
        self._seconds.record(seconds, facts)


class Sentry(Hooks):
    """Sends errors of handlers to Sentry, with the job; needs pgpulse[sentry].

    A run continues the trace of the code that enqueued its job. Of the exceptions that
    end a run on purpose (Snooze, RetryIn and others) only Fatal is an error.
    """

    def __init__(self, *, producers: bool = True) -> None:
        import sentry_sdk

        self._sdk = sentry_sdk
        if producers:
            producer.stamps["sentry"] = self.stamp

    def stamp(self, kind: str, headers: dict[str, Any]) -> None:
        """Write the trace of the caller into the headers."""
        headers.update(self._sdk.get_current_scope().iter_trace_propagation_headers())

    @contextmanager
    def around(self, job: Job) -> Iterator[None]:
        sdk = self._sdk
        with sdk.isolation_scope() as scope:
            scope.set_tag("pulse.kind", job.kind)
            scope.set_tag("pulse.lane", job.lane)
            scope.set_context("pulse", {"job_id": str(job.id), "attempt": job.attempt})
            run = sdk.continue_trace(
                job.headers or {}, op="queue.process", name=job.kind, source="task"
            )
            with sdk.start_transaction(run):
                try:
                    yield
                except (errors.HandlerExit, errors.LeaseLost) as error:
                    if isinstance(error, errors.Fatal):
                        sdk.capture_exception(error)
                    raise
                except Exception as error:
                    sdk.capture_exception(error)
                    raise
