"""The connections of the web app: a pool, and transactions that act as a role.

Routes, metrics and the hub open a Session for each request or poll. Database opens and
closes the pool with the app.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool

from pulse import connections
from pulse.sql import idle, operator
from pulse.web import queries

if TYPE_CHECKING:
    from typing_extensions import LiteralString

Connection = psycopg.AsyncConnection[DictRow]

# Bulk verbs and pauses that wait for open claims take seconds, nothing takes longer.
STATEMENT_TIMEOUT = "60s"
WAIT_FOR_CONNECTION = 5.0

# Readers of JSON give up at a few hundred levels; a browser counts exactly up to 2**53.
DEEPEST = 100
LARGEST_INT = 2**53


class NoSuchRole(Exception):
    """The role that a token or a user was given does not exist, or is not granted."""


@dataclass(frozen=True)
class Session:
    """One transaction with the rights of one role."""

    connection: Connection

    async def rows(self, query: LiteralString, **values: object) -> list[DictRow]:
        cursor = await self.connection.execute(query, values)
        return await cursor.fetchall()

    async def one(self, query: LiteralString, **values: object) -> DictRow | None:
        return next(iter(await self.rows(query, **values)), None)

    async def rights(self) -> list[str]:
        """Ask for the rights of the role; a role without access may not even ask."""
        try:
            async with self.connection.transaction():
                return [row["access"] for row in await self.rows(operator.MY_ACCESS)]
        except psycopg.errors.InsufficientPrivilege:
            return []


class Database:
    """Opened when first used: a mounted app does not learn when its site starts."""

    def __init__(self, dsn: str, *, max_connections: int = 8) -> None:
        self.dsn = dsn
        self._max = max_connections
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._opening = asyncio.Lock()
        self._verbs: tuple[object, list[dict[str, Any]]] = (None, [])

    async def _opened(self) -> AsyncConnectionPool[Connection]:
        async with self._opening:
            if self._pool is None:
                pool = AsyncConnectionPool(
                    connections.conninfo(self.dsn, "pulse web"),
                    connection_class=Connection,
                    min_size=1,
                    max_size=self._max,
                    timeout=WAIT_FOR_CONNECTION,
                    max_waiting=200,
                    open=False,
                    name="pulse web",
                    configure=prepare,
                    check=AsyncConnectionPool[Connection].check_connection,
                    kwargs={
                        "autocommit": True,
                        "row_factory": dict_row,
                        # Behind a transaction pooler nothing may stay in a session.
                        "prepare_threshold": None,
                    },
                )
                await pool.open()
                self._pool = pool
            return self._pool

    @contextlib.asynccontextmanager
    async def session(
        self, role: str | None, *, read_only: bool
    ) -> AsyncIterator[Session]:
        """A transaction as the role, or as the role of the DSN."""
        pool = await self._opened()
        async with pool.connection() as connection, connection.transaction():
            yield await begin(connection, role, read_only)

    async def verbs(self, session: Session) -> list[dict[str, Any]]:
        """Return the answer of pulse.verbs(), read once for each build of the SQL."""
        build = first(await session.one(queries.BUILD))
        if self._verbs[0] != build:
            self._verbs = build, await session.rows(queries.VERBS)
        return self._verbs[1]

    @contextlib.asynccontextmanager
    async def listener(self) -> AsyncIterator[Connection]:
        """The connection that LISTENs, beside the pool."""
        connection = await Connection.connect(
            connections.conninfo(self.dsn, "pulse web listener"),
            autocommit=True,
            row_factory=dict_row,
            prepare_threshold=None,
        )
        try:
            await prepare(connection)
            yield connection
        finally:
            await connection.close()

    async def close(self) -> None:
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


async def begin(connection: Connection, role: str | None, read_only: bool) -> Session:
    values = {
        "role": role,
        "read_only": read_only,
        "timeout": STATEMENT_TIMEOUT,
        "idle": idle.IDLE_LIMIT,
    }
    try:
        await connection.execute(queries.BEGIN, values)
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.InsufficientPrivilege,
    ) as error:
        raise NoSuchRole(str(error.diag.message_primary)) from error
    return Session(connection)


async def prepare(connection: Connection) -> None:
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    connection.adapters.register_loader("timestamptz", IsoTime)
    set_json_loads(loads, connection)


class IsoTime(Loader):
    """A moment as ISO 8601 text; NULL for infinity, which no calendar can show."""

    def load(self, data: Buffer) -> str | None:
        text = bytes(data).decode()
        if text.endswith("infinity"):
            return None
        # The session is in UTC and writes dates as ISO does, but for the T.
        return text.replace(" ", "T", 1).replace("+00", "+00:00")


def loads(text: str | bytes) -> Any:
    """JSON of any depth and any number: what a reader may not hold is its text."""
    text = text if isinstance(text, str) else bytes(text).decode()
    if depth(text) > DEEPEST:
        return text
    return json.loads(text, parse_float=as_float, parse_int=as_int)


STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def depth(text: str) -> int:
    """How deep JSON is nested, at most; found without recursion."""
    brackets = text.count("[") + text.count("{")
    if brackets <= DEEPEST:
        return brackets
    steps = map(STEPS.__getitem__, re.findall(r"[][{}]", STRING.sub("", text)))
    return max(accumulate(steps), default=0)


def as_float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def as_int(text: str) -> int | str:
    if len(text) <= 17 and abs(int(text)) <= LARGEST_INT:
        return int(text)
    return text


def first(row: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The row of a statement that always answers one."""
    assert row is not None
    return row
