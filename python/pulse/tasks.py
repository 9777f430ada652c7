"""Tasks: a kind and the function that runs it, with enqueue typed by its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    overload,
)

from pulse.adapters import AsyncExecutes
from pulse.job import Job
from pulse.options import Options, given
from pulse.producer import enqueue

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")
Executor = Literal["auto", "thread", "process"]


class Task(Generic[P, R]):
    """A function whose first parameter is the job, and the kind it handles.

    Called, it is the function. The payload is an object; its members are the other
    arguments. A function that takes only the job reads job.payload itself.
    """

    def __init__(
        self,
        kind: str,
        function: Callable[Concatenate[Job, P], R],
        options: Options | None = None,
        executor: Executor = "auto",
    ) -> None:
        given(options or {})
        if executor not in ("auto", "thread", "process"):
            raise ValueError(f"executor is auto, thread or process, not {executor!r}")
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise TypeError(
                f"the handler of {kind!r} must take the job as its first parameter"
            )
        self.kind = kind
        self.function = function
        self.options: Options = options or {}
        self.executor = executor
        self._spreads = len(parameters) > 1
        self.is_async = inspect.iscoroutinefunction(function)
        if self.is_async and executor != "auto":
            raise TypeError(f"the async handler of {kind!r} runs on the event loop")
        if executor == "process" and "<locals>" in function.__qualname__:
            raise TypeError(
                f"the handler of {kind!r} runs in a process, so it must be defined at "
                "the top level of a module"
            )
        functools.update_wrapper(cast(Any, self), function)

    def __call__(self, job: Job, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(job, *args, **kwargs)

    def run(self, job: Job) -> Any:
        """Call the function with the payload of the job."""
        if not self._spreads:
            return self.function(job)  # type: ignore[call-arg]
        if not isinstance(job.payload, dict):
            raise TypeError(
                f"the payload of {self.kind!r} is a {type(job.payload).__name__}; its "
                "handler has parameters, so it has to be an object"
            )
        return self.function(job, **job.payload)  # type: ignore[call-arg]

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The payload that gives the function these arguments."""
        bound = inspect.signature(self.function).bind(None, *args, **kwargs)
        names = list(bound.signature.parameters.values())
        payload: dict[str, Any] = {}
        for parameter in names[1:]:
            if parameter.name not in bound.arguments:
                continue
            value = bound.arguments[parameter.name]
            if parameter.kind is parameter.VAR_KEYWORD:
                payload.update(value)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                raise TypeError("a payload has names, so *args cannot be enqueued")
            else:
                payload[parameter.name] = value
        return payload

    @overload
    def enqueue(
        self, connection: AsyncExecutes, /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[int]: ...
    @overload
    def enqueue(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> int: ...
    def enqueue(
        self, connection: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> int | Awaitable[int]:
        """Enqueue a job of this kind; the arguments are those of the function."""
        payload = self.payload(*args, **kwargs)
        job: int | Awaitable[int] = enqueue(
            connection, self.kind, payload, **self.options
        )
        return job

    def using(self, **options: Unpack[Options]) -> Task[P, R]:
        """The same task with other options: task.using(delay="5m").enqueue(conn, …)."""
        both = cast(Options, {**self.options, **options})
        return Task(self.kind, self.function, both, self.executor)


def task(
    kind: str, *, executor: Executor = "auto", **options: Unpack[Options]
) -> Callable[[Callable[Concatenate[Job, P], R]], Task[P, R]]:
    """Make a function a task for any worker: Worker(…, tasks=[send_email])."""

    def make(function: Callable[Concatenate[Job, P], R]) -> Task[P, R]:
        return Task(kind, function, options, executor)

    return make
