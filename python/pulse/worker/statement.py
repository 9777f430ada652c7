"""A statement that is sent all the time, without what psycopg does for any other.

Connection.execute looks at the query, adapts every argument and sets up a cursor, each
time: as much work as ten short jobs are. Here the query is prepared once, arguments are
text, and rows are read when they are wanted. How to wait is left to psycopg, and what
a cancel does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from pulse.worker.connector import AsyncConnection

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGresult
    from typing_extensions import LiteralString


class Statement:
    """Prepared on one connection after the other, where that prepares."""

    def __init__(
        self, name: str, query: LiteralString, parameters: Sequence[str]
    ) -> None:
        places = {each: f"${n}" for n, each in enumerate(parameters, 1)}
        self._name = name.encode()
        self._query = (query % places).encode()
        self._connection: AsyncConnection | None = None
        self._transformer = Transformer()

    async def execute(
        self, connection: AsyncConnection, values: Sequence[abc.Buffer | None]
    ) -> Rows:
        """Run it with these texts, in the order of its parameters."""
        async with connection.lock:
            if self._connection is not connection:
                await connection.wait(self._prepare(connection))
            result = await connection.wait_watched(self._run(connection, values))
        return Rows(result, self._transformer)

    def _prepare(self, connection: AsyncConnection) -> abc.PQGen[None]:
        if connection.prepare_threshold is not None:
            connection.pgconn.send_prepare(self._name, self._query)
            only((yield from generators.execute(connection.pgconn)))
        self._connection = connection
        self._transformer = Transformer(connection)

    def _run(
        self, connection: AsyncConnection, values: Sequence[abc.Buffer | None]
    ) -> abc.PQGen[PGresult]:
        server, form = connection.pgconn, Format.BINARY
        if connection.prepare_threshold is not None:
            server.send_query_prepared(self._name, values, result_format=form)
        else:
            server.send_query_params(self._query, values, result_format=form)
        return only((yield from generators.execute(server)))


def only(results: Sequence[PGresult]) -> PGresult:
    """The result of one statement; raises what the server says of it."""
    result = results[-1]
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    return result


class Rows:
    """What a statement gave, as the server sent it."""

    def __init__(self, result: PGresult, transformer: abc.Transformer) -> None:
        self._result = result
        self._transformer = transformer
        self.count = result.ntuples

    def raw(self, row: int, column: int) -> bytes:
        return self._result.get_value(row, column) or b""

    def read(self, first: int, end: int) -> list[tuple[Any, ...]]:
        self._transformer.set_pgresult(self._result)
        return self._transformer.load_rows(first, end, tuple)
