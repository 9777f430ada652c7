"""What task.enqueue returns: the job, whether it is new, and its result to wait for."""

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
    """A job that was enqueued. new is False when its unique key found another job."""

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

        Raises JobDead, JobCancelled, NoSuchJob or ResultTimeout.
        """
        source = self._source
        client = source if isinstance(source, Client) else Client(source)
        return decoded(self.id, self._decode, client.result(self.id, timeout))


@dataclass(frozen=True)
class AsyncHandle(Generic[R_co]):
    """A job that was enqueued. new is False when its unique key found another job."""

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

        Raises JobDead, JobCancelled, NoSuchJob or ResultTimeout.
        """
        source = self._source
        client = source if isinstance(source, AsyncClient) else AsyncClient(source)
        return decoded(self.id, self._decode, await client.result(self.id, timeout))


def decoded(job_id: int, decode: Decode | None, result: Any) -> Any:
    if decode is None:
        return result
    try:
        return within("", decode, result)
    except ValueError as error:
        raise errors.InvalidArgument(
            f"the result of job {job_id} is not what its task says it returns",
            detail=f"{error}.",
        ) from error
