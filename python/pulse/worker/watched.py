"""Internals of psycopg: the statement of the loop at the least CPU time.

statement.py imports this module. The import fails with the reason when the installed
psycopg differs from what is used here; then statement.py uses psycopg's documented API.
No other module of the worker uses psycopg's internals.

WatchedStatement skips what psycopg does for any statement: look at the query, adapt
each argument, make a cursor. It drives psycopg's generator itself. WatchedConnection
leaves the socket registered with the event loop between two statements. Both use
psycopg to read, to cancel and to raise errors. What they save is in
docs/decisions/worker-speed.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import psycopg
from psycopg import generators, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.waiting import Ready, Wait

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGresult
    from typing_extensions import LiteralString

T = TypeVar("T")

# The minor versions with which tests/python/worker/test_statement.py has passed.
TESTED = ("3.2", "3.3")

# The attributes used here that psycopg does not document for users.
USED: dict[object, tuple[str, ...]] = {
    pq.PGconn: ("send_prepare", "send_query_prepared", "send_query_params", "socket"),
    pq.PGresult: ("get_value", "ntuples", "status"),
    Transformer: ("dump_sequence", "set_pgresult", "load_rows"),
    Ready: ("R",),
    Wait: ("R",),
}


def differences() -> Iterator[str]:
    """How the installed psycopg differs from what this module uses."""
    version = psycopg.__version__
    if ".".join(version.split(".")[:2]) not in TESTED:
        yield f"psycopg {version} is none of {', '.join(TESTED)}"
    for owner, names in USED.items():
        for name in names:
            if not hasattr(owner, name):
                yield f"psycopg {version}: {owner} has no {name}"
    wait = psycopg.AsyncConnection.wait
    if list(inspect.signature(wait).parameters)[:2] != ["self", "gen"]:
        yield f"psycopg {version}: AsyncConnection.wait takes no generator"
    if not all(map(inspect.iscoroutinefunction, (wait, psycopg.AsyncConnection.close))):
        yield f"psycopg {version}: AsyncConnection.wait or close is no coroutine"


if reason := "; ".join(differences()):
    raise ImportError(reason)


class WatchedStatement:
    """A query that is prepared once on each connection; its arguments are text."""

    def __init__(
        self, name: str, query: LiteralString, parameters: Sequence[str]
    ) -> None:
        numbered = {each: f"${n}" for n, each in enumerate(parameters, 1)}
        self._name = name.encode()
        self._query = (query % numbered).encode()
        self._prepared_on: WatchedConnection | None = None
        self._transformer = Transformer()

    def adapt(self, values: Sequence[Any]) -> Sequence[Any]:
        """These values as texts of PostgreSQL."""
        return Transformer().dump_sequence(values, [PyFormat.TEXT] * len(values))

    async def execute(
        self,
        connection: psycopg.AsyncConnection[tuple[Any, ...]],
        values: Sequence[Any],
    ) -> WatchedRows:
        """Run it with these texts, in the order of its parameters."""
        assert isinstance(connection, WatchedConnection)
        async with connection.lock:
            if self._prepared_on is not connection:
                await connection.wait(self._prepare(connection))
            result = await connection.wait_watched(self._run(connection, values))
        return WatchedRows(result, self._transformer)

    def _prepare(self, connection: WatchedConnection) -> abc.PQGen[None]:
        if connection.prepare_threshold is not None:
            connection.pgconn.send_prepare(self._name, self._query)
            only_result((yield from generators.execute(connection.pgconn)))
        self._prepared_on = connection
        self._transformer = Transformer(connection)

    def _run(
        self, connection: WatchedConnection, values: Sequence[Any]
    ) -> abc.PQGen[PGresult]:
        texts = [each.encode() if isinstance(each, str) else each for each in values]
        server, form = connection.pgconn, Format.BINARY
        if connection.prepare_threshold is not None:
            server.send_query_prepared(self._name, texts, result_format=form)
        else:
            server.send_query_params(self._query, texts, result_format=form)
        return only_result((yield from generators.execute(server)))


def only_result(results: Sequence[PGresult]) -> PGresult:
    """The result of one statement; raises the server's error."""
    result = results[-1]
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise error_from_result(result, encoding="utf-8")
    return result


class WatchedRows:
    """Rows as the server sent them, decoded when they are read."""

    def __init__(self, result: PGresult, transformer: abc.Transformer) -> None:
        self._result = result
        self._transformer = transformer
        self.count = result.ntuples

    def raw(self, row: int, column: int) -> bytes:
        """The bytes of one value; empty for NULL."""
        return self._result.get_value(row, column) or b""

    def read(self, first: int, end: int) -> list[tuple[Any, ...]]:
        """These rows as Python values."""
        self._transformer.set_pgresult(self._result)
        return self._transformer.load_rows(first, end, tuple)


class WatchedConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """psycopg's connection, with wait_watched: the socket stays registered.

    For each statement psycopg registers the socket with the event loop, sets a timer
    and removes both. wait_watched leaves the reader there. Any other wait, an error
    and the end of the connection remove it first, and a cancel does what psycopg does.
    """

    # The socket, while its reader is registered: libpq may close it at any error.
    _watched: int | None = None
    _reading: abc.PQGen[Any]
    _answer: asyncio.Future[Any] | None = None

    async def wait(self, gen: abc.PQGen[T], *args: Any, **kwargs: Any) -> T:
        self._unwatch()
        return await super().wait(gen, *args, **kwargs)

    async def close(self) -> None:
        self._unwatch()
        await super().close()

    async def wait_watched(self, gen: abc.PQGen[T]) -> T:
        """As wait does for one statement, but leave the reader registered."""
        try:
            state = next(gen)
        except BaseException:
            self._unwatch()
            raise
        if state != Wait.R:
            # So large that it could not be sent at once.
            return await self.wait(cast("abc.PQGen[T]", ResumedGenerator(gen, state)))
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
            rest = ResumedGenerator(gen, state, error)
            return await self.wait(cast("abc.PQGen[T]", rest))

    def _readable(self) -> None:
        if self._answer is None or self._answer.done():
            # No statement is under way: the server has ended the session.
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


class ResumedGenerator(Generic[T]):
    """The rest of a generator that waits; may begin with an error."""

    def __init__(
        self, gen: abc.PQGen[T], state: Wait, error: BaseException | None = None
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
