"""Statements on the caller's connection, whichever library made it.

On connections of SQLAlchemy, Django and other DBAPI drivers arguments are text and
numbers, and so are results, since the drivers disagree about everything else. Nothing
here commits, closes or reconfigures a connection.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row

from pulse import errors

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")
Row = tuple[Any, ...]
NAMED = re.compile(r"%\((\w+)\)s")


class AsyncExecutes(Protocol):
    """An async connection of psycopg or SQLAlchemy, or an AsyncSession."""

    def execute(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...


def fetch(
    connection: Any,
    query: LiteralString,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T | Coroutine[Any, Any, T]:
    """Run a query with %(name)s in it on any connection; async ones are awaited."""
    if isinstance(connection, psycopg.AsyncConnection):
        return _psycopg_async(connection, query, values, then)
    if isinstance(connection, psycopg.Connection):
        return _psycopg(connection, query, values, then)
    if _is_a(connection, "sqlalchemy.ext.asyncio", ASYNC_SQLALCHEMY):
        return _sqlalchemy_async(connection, query, values, then)
    if _is_a(connection, "sqlalchemy.orm", SQLALCHEMY_ORM) or _is_a(
        connection, "sqlalchemy.engine", ("Connection",)
    ):
        return _sqlalchemy(connection, query, values, then)
    if is_dbapi(connection):
        return _dbapi(connection, query, values, then)
    raise unusable(connection)


def is_psycopg(connection: Any) -> bool:
    return isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection))


def is_async(source: Any) -> bool:
    """Whether what it gives has to be awaited; a pool of psycopg, too."""
    return (
        isinstance(source, psycopg.AsyncConnection)
        or _is_a(source, "sqlalchemy.ext.asyncio", ASYNC_SQLALCHEMY)
        or inspect.iscoroutinefunction(getattr(source, "getconn", None))
    )


def is_dbapi(connection: Any) -> bool:
    """A connection of asyncpg has a cursor() too, which is another thing."""
    return callable(getattr(connection, "cursor", None)) and not is_asyncpg(connection)


def unusable(connection: Any) -> TypeError:
    name = type(connection).__name__
    if is_asyncpg(connection):
        return TypeError(
            f"this {name} is one of asyncpg, which pulse does not call itself: "
            "await connection.fetchval('SELECT pulse.enqueue($1, $2)', kind, "
            "json.dumps(payload)), or pass an AsyncSession of SQLAlchemy, or a "
            "psycopg.AsyncConnection"
        )
    return TypeError(
        f"cannot enqueue on a {name}: pass a connection of psycopg, SQLAlchemy (or a "
        "session) or Django"
    )


def is_asyncpg(connection: Any) -> bool:
    """Its connections, pools, and the proxies that pools give out."""
    return type(connection).__module__.partition(".")[0] == "asyncpg"


SQLALCHEMY_ORM = ("Session", "scoped_session")
ASYNC_SQLALCHEMY = ("AsyncSession", "AsyncConnection", "async_scoped_session")


def _is_a(connection: Any, module: str, names: Sequence[str]) -> bool:
    """isinstance without importing what the caller does not use."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(
        connection, tuple(getattr(loaded, name) for name in names)
    )


# Made from _psycopg_async by tools/twins.py.
def _psycopg(
    connection: psycopg.Connection[Any],
    query: LiteralString,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T:
    with errors.mapped():
        # Its own cursor class and row factory: the caller's defaults may differ.
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        try:
            cursor.execute(query, values)
            return then(cursor.fetchall())
        finally:
            cursor.close()


async def _psycopg_async(
    connection: psycopg.AsyncConnection[Any],
    query: LiteralString,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T:
    with errors.mapped():
        # Its own cursor class and row factory: the caller's defaults may differ.
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        try:
            await cursor.execute(query, values)
            return then(await cursor.fetchall())
        finally:
            await cursor.close()


def _sqlalchemy_text(query: str) -> Any:
    text: Any = sys.modules["sqlalchemy"].text
    return text(NAMED.sub(r":\1", query))


# Made from _sqlalchemy_async by tools/twins.py.
def _sqlalchemy(
    connection: Any,
    query: str,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T:
    with errors.mapped():
        found = connection.execute(_sqlalchemy_text(query), values)
        return then(found.fetchall())


async def _sqlalchemy_async(
    connection: Any,
    query: str,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T:
    with errors.mapped():
        found = await connection.execute(_sqlalchemy_text(query), values)
        return then(found.fetchall())


def _dbapi(
    connection: Any,
    query: str,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T:
    """Django's wrapper and every DBAPI driver with the format style."""
    in_order = [values[name] for name in NAMED.findall(query)]
    with errors.mapped():
        cursor = connection.cursor()
        try:
            cursor.execute(NAMED.sub("%s", query), in_order)
            return then(cursor.fetchall())
        finally:
            cursor.close()
