"""Handle and AsyncHandle: what task.enqueue returns.

A handle has the id of the job, whether it is new, and waits for its result. It uses
the connection or client on which the job was enqueued, and decodes the result by the
annotation of the function (pulse.codecs).
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from pulse import errors
from pulse.client import AsyncClient, Client
from pulse.codecs import Decode, within

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


# Made from AsyncHandle by tools/twins.py.
@dataclass(frozen=True)
class Handle(Generic[R_co]):
    """A job that task.enqueue has enqueued, on an async connection or client.

    id is the id of the job. new is False when its unique key found another job.

    Example:
        >>> handle = double.using(unique_key="21").enqueue(client, 21)
        >>> handle.new
        True
        >>> again = double.using(unique_key="21").enqueue(client, 21)
        >>> again.new, again.id == handle.id
        (False, True)
    """

    id: int
    new: bool
    _source: Any = field(repr=False, compare=False)
    _decode: Decode | None = field(repr=False, compare=False)

    @overload
    def result(
        self: Handle[Coroutine[Any, Any, T]], timeout: float | None = None
    ) -> T: ...
    @overload
    def result(self, timeout: float | None = None) -> R_co: ...
    def result(self, timeout: float | None = None) -> Any:
        """Wait for what the function returned; commit before you wait.

        Args:
            timeout: How many seconds to wait; None waits without end.

        Returns:
            The result, decoded by the annotation of the function's return value.

        Raises:
            JobDead: The job failed for good.
            JobCancelled: The job was cancelled.
            NoSuchJob: The job does not exist, was pruned, or belongs to another role.
            ResultTimeout: The job has not ended within timeout.
            InvalidArgument: The result does not fit the annotation.

        Example:
            >>> handle = double.enqueue(client, 21)
            >>> run_worker()
            >>> handle.result(timeout=10)
            42
        """
        source = self._source
        client = source if isinstance(source, Client) else Client(source)
        return decoded(self.id, self._decode, client.result(self.id, timeout))


@dataclass(frozen=True)
class AsyncHandle(Generic[R_co]):
    """A job that task.enqueue has enqueued, on an async connection or client.

    id is the id of the job. new is False when its unique key found another job.

    Example:
        >>> handle = await double.using(unique_key="21").enqueue(client, 21)
        >>> handle.new
        True
        >>> again = await double.using(unique_key="21").enqueue(client, 21)
        >>> again.new, again.id == handle.id
        (False, True)
    """

    id: int
    new: bool
    _source: Any = field(repr=False, compare=False)
    _decode: Decode | None = field(repr=False, compare=False)

    @overload
    async def result(
        self: AsyncHandle[Coroutine[Any, Any, T]], timeout: float | None = None
    ) -> T: ...
    @overload
    async def result(self, timeout: float | None = None) -> R_co: ...
    async def result(self, timeout: float | None = None) -> Any:
        """Wait for what the function returned; commit before you wait.

        Args:
            timeout: How many seconds to wait; None waits without end.

        Returns:
            The result, decoded by the annotation of the function's return value.

        Raises:
            JobDead: The job failed for good.
            JobCancelled: The job was cancelled.
            NoSuchJob: The job does not exist, was pruned, or belongs to another role.
            ResultTimeout: The job has not ended within timeout.
            InvalidArgument: The result does not fit the annotation.

        Example:
            >>> handle = await double.enqueue(client, 21)
            >>> run_worker()
            >>> await handle.result(timeout=10)
            42
        """
        source = self._source
        client = source if isinstance(source, AsyncClient) else AsyncClient(source)
        return decoded(self.id, self._decode, await client.result(self.id, timeout))


def decoded(job_id: int, decode: Decode | None, result: Any) -> Any:
    """Decode the result of a job; raise InvalidArgument where it does not fit."""
    if decode is None:
        return result
    try:
        return within("", decode, result)
    except ValueError as error:
        raise errors.InvalidArgument(
            f"the result of job {job_id} is not what its task says it returns",
            detail=f"{error}.",
        ) from error
