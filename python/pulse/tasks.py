"""Tasks: a kind and the function that runs it, with enqueue typed by its signature.

pulse.task, worker.handle and worker.schedule make them with a decorator. A worker calls
Task.run for each run; batches.py has the task that takes many jobs at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
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

from pulse import declarations
from pulse.adapters import AsyncExecutes
from pulse.client import AsyncClient, Client
from pulse.declarations import KindSettings
from pulse.handles import AsyncHandle, Handle
from pulse.job import Job
from pulse.options import Options, given
from pulse.producer import enqueue_one
from pulse.signatures import Signature

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from pulse.batches import BatchDecorator

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[Any, Any]")
Executor = Literal["auto", "thread", "process"]


class Task(Generic[P, R]):
    """A function and the kind it handles. Called, it is the function.

    The payload is an object; its members are the arguments, decoded as their
    annotations say (pulse.codecs). A first parameter that is annotated as pulse.Job, or
    has no annotation and the name job, is the job. A function that takes nothing
    else reads job.payload itself. pulse.task and worker.handle make tasks.

    Args:
        kind: The name under which jobs of the function are enqueued.
        function: What runs a job of this kind.
        options: Options of the jobs (pulse.options.Options).
        executor: Where it runs: auto, thread or process.
        settings: Settings of the kind that the worker of an application declares.

    Raises:
        TypeError: The function cannot run with this executor, or an option is unknown.
        ValueError: There is no such executor.

    Example:
        >>> from pulse import Task
        >>> double = Task("double", lambda n: 2 * n)
        >>> double(21)
        42
    """

    def __init__(
        self,
        kind: str,
        function: Callable[..., R],
        options: Options | None = None,
        executor: Executor = "auto",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        given(options or {})
        if executor not in ("auto", "thread", "process"):
            raise ValueError(f"executor is auto, thread or process, not {executor!r}")
        self.kind = kind
        self.function = function
        self.options: Options = options or {}
        self.executor: Executor = executor
        self.settings: Mapping[str, Any] = settings or {}
        """Settings of the kind that the worker of an application declares."""
        self.is_async = inspect.iscoroutinefunction(function)
        if self.is_async and executor != "auto":
            raise TypeError(f"the async handler of {kind!r} runs on the event loop")
        if executor == "process" and "<locals>" in function.__qualname__:
            raise TypeError(
                f"the handler of {kind!r} runs in a process, so it must be defined at "
                "the top level of a module"
            )
        functools.update_wrapper(cast(Any, self), function)

    @functools.cached_property
    def _signature(self) -> Signature:
        """Read when first needed: annotations may name what is defined later."""
        return Signature(self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def run(self, job: Job) -> Any:
        """Call the function with the payload of a job; the worker does this.

        Args:
            job: The job; it is passed on if the function takes it.

        Returns:
            What the function returns; of an async function, its coroutine.

        Raises:
            TypeError: The payload does not fit the parameters of the function.

        Example:
            >>> double.run(pulse.Job(1, 1, "default", "double", {"n": 21}))
            42
        """
        signature, payload = self._signature, job.payload
        args: Sequence[Any] = ()
        kwargs: dict[str, Any] = payload
        if not signature.is_plain or type(payload) is not dict:
            args, kwargs = signature.arguments(self.kind, payload)
        if signature.takes_job:
            return self.function(job, *args, **kwargs)
        return self.function(*args, **kwargs)

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Make the payload that gives the function these arguments.

        Args:
            args: Positional arguments; they are stored by their parameters' names.
            kwargs: Keyword arguments.

        Returns:
            The payload of a job.

        Raises:
            TypeError: The function does not take these arguments.

        Example:
            >>> double.payload(21)
            {'n': 21}
        """
        return self._signature.payload(args, kwargs)

    @overload
    def enqueue(
        self,
        connection: AsyncExecutes | AsyncClient,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, AsyncHandle[R]]: ...
    @overload
    def enqueue(
        self, connection: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...
    def enqueue(
        self, connection: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R] | Coroutine[Any, Any, AsyncHandle[R]]:
        """Enqueue a job of this kind; the arguments are those of the function.

        Args:
            connection: What pulse.enqueue takes, or a Client; with an async one, await
                the call.
            args: Positional arguments of the function, without the job.
            kwargs: Keyword arguments of the function.

        Returns:
            A Handle with the id of the job; it can wait for the result.

        Raises:
            TypeError: The function does not take these arguments.
            InvalidArgument: An option or an argument is not allowed.

        Example:
            >>> handle = double.enqueue(connection, 21)
            >>> handle.new
            True
        """
        payload = self.payload(*args, **kwargs)
        decode = self._signature.decode_result
        if isinstance(connection, Client):
            with connection.connection_for(self.options) as borrowed:
                found = enqueue_one(borrowed, self.kind, payload, self.options)
        elif isinstance(connection, AsyncClient):
            return self._enqueue_by_client(connection, payload)
        else:
            found = enqueue_one(connection, self.kind, payload, self.options)
        if isinstance(found, tuple):
            return Handle(*found, connection, decode)
        return _handle_of(found, connection, decode)

    async def _enqueue_by_client(
        self, client: AsyncClient, payload: Any
    ) -> AsyncHandle[R]:
        async with client.connection_for(self.options) as borrowed:
            found: Any = enqueue_one(borrowed, self.kind, payload, self.options)
            return await _handle_of(found, client, self._signature.decode_result)

    def using(self, **options: Unpack[Options]) -> Self:
        """Make the same task with other options.

        Args:
            options: Options that replace those of the task (pulse.options.Options).

        Returns:
            A new task; this one stays as it is.

        Raises:
            TypeError: An option is unknown.

        Example:
            >>> handle = double.using(delay="5m", priority=10).enqueue(connection, 21)
        """
        both = cast(Options, {**self.options, **options})
        return type(self)(self.kind, self.function, both, self.executor, self.settings)


if TYPE_CHECKING:

    class JobTask(Task[P, R]):
        """A task whose function takes the job first; only type checkers see it."""

        def __call__(  # type: ignore[override]
            self, job: Job, *args: P.args, **kwargs: P.kwargs
        ) -> R: ...

else:
    JobTask = Task


async def _handle_of(found: Any, source: Any, decode: Any) -> AsyncHandle[Any]:
    job_id, new = await found
    return AsyncHandle(job_id, new, source, decode)


class Decorator:
    """The decorator of pulse.task and worker.handle: it makes a function a task."""

    def __init__(
        self,
        kind: str,
        options: Options,
        executor: Executor,
        settings: Mapping[str, Any] | None = None,
        then: Callable[[Task[Any, Any]], None] | None = None,
    ) -> None:
        self._kind = kind
        self._options = options
        self._executor: Executor = executor
        self._settings = settings
        self._then = then

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R]) -> JobTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        made: Task[Any, Any] = Task(
            self._kind, function, self._options, self._executor, self._settings
        )
        if self._then is not None:
            self._then(made)
        return made


class Scheduled:
    """The decorator of worker.schedule: it takes a task, or makes a function one."""

    def __init__(self, make: Decorator, then: Callable[[Task[Any, Any]], None]) -> None:
        self._make = make
        self._then = then

    @overload
    def __call__(self, function: T) -> T: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R]) -> JobTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Any) -> Any:
        made = function if isinstance(function, Task) else self._make(function)
        self._then(made)
        return made


class TaskOptions(Options, KindSettings, total=False):
    """The options of task and handle, besides the kind."""

    executor: Executor
    declare: bool


def decorator(
    kind: str,
    options: TaskOptions,
    then: Callable[[Task[Any, Any]], None] | None = None,
    batch: int | None = None,
    within: float | None = None,
) -> Any:
    """Make the decorator of task and handle.

    With declare, options that a kind can have are its settings, not sent with each job.
    """
    if not isinstance(kind, str):
        # Without it a decorator would take the function for the kind, and say nothing.
        raise TypeError(
            'the kind comes first: @pulse.task("send-email"), or '
            '@worker.handle("send-email")'
        )
    rest: dict[str, Any] = dict(options)
    executor: Executor = rest.pop("executor", "auto")
    declared = rest.pop("declare", False)
    alone = KindSettings.__annotations__
    own = {name: rest.pop(name) for name in alone if name in rest}
    if declared:
        own |= {name: rest.pop(name) for name in declarations.SETTINGS if name in rest}
    elif own:
        raise TypeError(
            f"{', '.join(own)} of {kind!r} belongs to the kind, not to a job: pass "
            "declare=True, and Worker(application=…), or call pulse.set_kind"
        )
    only = cast(Options, rest)
    if batch is None:
        if within is not None:
            raise TypeError("within is for handlers of many jobs: pass batch as well")
        return Decorator(kind, only, executor, own, then)
    if executor != "auto":
        raise TypeError(
            f"the handler of {kind!r} takes many jobs, so it has no process"
        )
    from pulse.batches import BatchDecorator, BatchTask

    most, pause = batch, 0.1 if within is None else within
    return BatchDecorator(lambda f: BatchTask(kind, f, most, pause, only, own), then)


@overload
def task(
    kind: str,
    *,
    batch: int,
    within: float = ...,
    **options: Unpack[TaskOptions],
) -> BatchDecorator: ...
@overload
def task(kind: str, **options: Unpack[TaskOptions]) -> Decorator: ...
def task(
    kind: str,
    *,
    batch: int | None = None,
    within: float | None = None,
    **options: Unpack[TaskOptions],
) -> Any:
    """Make a function a task for any worker: Worker(…, tasks=[send_email]).

    With declare=True the worker of an application writes lane, priority, max_attempts,
    max_runtime, requires_approval, lease_for and the backoff as settings of the kind.
    The jobs do not carry these, so later changes by operators hold.

    Args:
        kind: The name under which jobs of the function are enqueued.
        batch: How many jobs one call takes at most; the function then takes a list
            of jobs (pulse.batches).
        within: How many seconds a batch waits to fill.
        options: Options of the jobs, executor and declare.

    Returns:
        A decorator. It makes a Task, which has enqueue, typed by the function.

    Raises:
        TypeError: The function cannot run with this executor, or an option is unknown.

    Example:
        >>> @pulse.task("double", priority=5)
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> double(21)
        42
        >>> double.payload(21)
        {'n': 21}
        >>> double.enqueue(connection, 21).new
        True
    """
    return decorator(kind, options, None, batch, within)
