"""A connection whose socket stays registered with the event loop.

For each statement psycopg registers it, sets a timer and takes both away again: as much
work as three short jobs are. For one that is sent all the time (statement.py) the
reader stays. Any other wait on the connection, an error or its end takes it away first,
and what psycopg does about a cancel it does here, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import psycopg
from psycopg.waiting import Ready, Wait

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")


class Session(psycopg.AsyncConnection[tuple[Any, ...]]):
    # The socket, while its reader is registered: libpq may close it at any error.
    _watched: int | None = None
    _reading: PQGen[Any]
    _answer: asyncio.Future[Any] | None = None

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        self._unwatch()
        return await super().wait(gen, *args, **kwargs)

    async def close(self) -> None:
        self._unwatch()
        await super().close()

    async def wait_watched(self, gen: PQGen[T]) -> T:
        """As wait does for one statement, but leave the reader registered."""
        try:
            state = next(gen)
        except BaseException:
            self._unwatch()
            raise
        if state != Wait.R:
            # So large that it could not be sent at once.
            return await self.wait(cast("PQGen[T]", Rest(gen, state)))
        loop = asyncio.get_running_loop()
        if self._watched is None:
            self._watched = self.pgconn.socket
            loop.add_reader(self._watched, self._readable)
        self._reading = gen
        self._answer = answer = loop.create_future()
        try:
            return cast("T", await answer)
        except asyncio.CancelledError as error:
            if self.closed:
                raise
            return await self.wait(cast("PQGen[T]", Rest(gen, state, error)))

    def _readable(self) -> None:
        if self._answer is None or self._answer.done():
            # Nobody reads it: the server has ended the session, or is about to.
            self._unwatch()
            return
        try:
            self._reading.send(Ready.R)
        except StopIteration as end:
            self._answer.set_result(end.value)
        except Exception as error:
            self._unwatch()
            self._answer.set_exception(error)

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None


class Rest(Generic[T]):
    """What is left of a generator that waits; it may be interrupted first."""

    def __init__(
        self, gen: PQGen[T], state: Wait, error: BaseException | None = None
    ) -> None:
        self._gen = gen
        self._state = state
        self._error = error

    def __next__(self) -> Wait:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._state

    def send(self, ready: Ready) -> Wait:
        return self._gen.send(ready)
