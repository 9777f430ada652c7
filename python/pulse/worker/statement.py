"""The one statement that the loop sends all the time, in one of two forms.

protocol.py makes the statement here and connection.py opens the loop's connection as
CONNECTION. The fast form (watched.py) uses psycopg's internals: a job of ten slots
costs the worker 27 µs instead of 33. Where the installed psycopg is not one that
watched.py knows, the documented form in this module does the same with psycopg's
public API. DOCUMENTED_BECAUSE has the reason, which the worker logs when it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.pq import Format

if TYPE_CHECKING:
    from psycopg.abc import Loader
    from psycopg.pq.abc import PGresult
    from typing_extensions import LiteralString

WorkerConnection = psycopg.AsyncConnection[tuple[Any, ...]]
"""A connection of the event loop."""


class Rows(Protocol):
    """Rows as the server sent them, decoded when they are read."""

    count: int

    def raw(self, row: int, column: int) -> bytes: ...

    def read(self, first: int, end: int) -> list[tuple[Any, ...]]: ...


class Statement(Protocol):
    """A query that is prepared once on each connection."""

    def __init__(
        self, name: str, query: LiteralString, parameters: Sequence[str]
    ) -> None: ...

    def adapt(self, values: Sequence[Any]) -> Sequence[Any]: ...

    async def execute(
        self, connection: WorkerConnection, values: Sequence[Any]
    ) -> Rows: ...


class DocumentedStatement:
    """The statement by psycopg's public API."""

    def __init__(
        self, name: str, query: LiteralString, parameters: Sequence[str]
    ) -> None:
        self._query: LiteralString = query
        self._parameters = parameters

    def adapt(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values as they are: psycopg adapts them in each call."""
        return values

    async def execute(
        self, connection: WorkerConnection, values: Sequence[Any]
    ) -> DocumentedRows:
        """Run it with these values, in the order of its parameters."""
        arguments = dict(zip(self._parameters, values, strict=True))
        cursor = await connection.execute(
            self._query, arguments, prepare=True, binary=True
        )
        assert cursor.pgresult is not None
        return DocumentedRows(cursor.pgresult, connection)


class DocumentedRows:
    """The rows of a result; each value goes through the loader of its type."""

    def __init__(self, result: PGresult, connection: WorkerConnection) -> None:
        self._result = result
        self._connection = connection
        self.count = result.ntuples

    def raw(self, row: int, column: int) -> bytes:
        """The bytes of one value; empty for NULL."""
        return self._result.get_value(row, column) or b""

    def read(self, first: int, end: int) -> list[tuple[Any, ...]]:
        """These rows as Python values."""
        loaders = [self._loader(column) for column in range(self._result.nfields)]
        return [
            tuple(
                None if value is None else loader.load(value)
                for column, loader in enumerate(loaders)
                for value in [self._result.get_value(row, column)]
            )
            for row in range(first, end)
        ]

    def _loader(self, column: int) -> Loader:
        adapters = self._connection.adapters
        oid = self._result.ftype(column)
        # Type 0 has the loader of all types that psycopg does not know.
        known = adapters.get_loader(oid, Format.BINARY) or adapters.get_loader(
            0, Format.BINARY
        )
        assert known is not None
        return known(oid, self._connection)


CONNECTION: type[WorkerConnection] = WorkerConnection
PREPARED: type[Statement] = DocumentedStatement
DOCUMENTED_BECAUSE = ""

try:
    from pulse.worker import watched
except ImportError as error:
    DOCUMENTED_BECAUSE = str(error)
else:
    CONNECTION, PREPARED = watched.WatchedConnection, watched.WatchedStatement
