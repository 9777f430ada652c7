"""Hooks: what a worker reports about itself, for metrics and traces.

Subclass Hooks and override what you need. Hooks run on the worker's event loop, apart
from around(), which wraps the handler where it runs; keep them short. What a
hook raises is logged and otherwise ignored.
"""

from __future__ import annotations

import logging
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

from pulse.job import Job
from pulse.logs import log_event


class Hooks:
    def claimed(self, jobs: Sequence[Job], seconds: float) -> None:
        """An exchange took this long and brought these jobs, or none."""

    def started(self, job: Job) -> None:
        """The handler is about to be called."""

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        """outcome: complete, fail, snooze, release, ack_cancel or drop (lease lost)."""

    def disconnected(self, error: BaseException) -> None:
        """The coordinator's connection broke; the worker connects again."""

    def around(self, job: Job) -> AbstractContextManager[Any]:
        """A context in which the handler runs, in its thread or task.

        One that is an async context as well is entered as that around async handlers.
        """
        return nullcontext()


class AllHooks:
    """Several hooks as one; what one of them raises does not reach the worker."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._hooks = hooks
        self._around = [h for h in hooks if type(h).around is not Hooks.around]

    def call(self, name: str, *facts: Any) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, name)(*facts)
            except Exception as error:
                log_event(logging.ERROR, f"the hook {name} raised {error!r}", hook=name)

    @property
    def wraps(self) -> bool:
        return bool(self._around)

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
    """A span for each run and a few instruments; needs pgpulse[otel]."""

    def __init__(self, tracer: Any = None, meter: Any = None) -> None:
        if tracer is None or meter is None:
            from opentelemetry import metrics, trace

            tracer = tracer or trace.get_tracer("pulse")
            meter = meter or metrics.get_meter("pulse")
        self._tracer = tracer
        self._runs = meter.create_counter("pulse.runs", description="runs that ended")
        self._seconds = meter.create_histogram(
            "pulse.run.duration", unit="s", description="how long handlers ran"
        )

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
        with self._tracer.start_as_current_span(f"{job.kind} run", attributes=facts):
            yield

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        facts = {"pulse.kind": job.kind, "pulse.lane": job.lane, "outcome": outcome}
        self._runs.add(1, facts)
        self._seconds.record(seconds, facts)
