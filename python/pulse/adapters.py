"""Enqueue on the caller's connection, whichever library made it.

psycopg connections get the functions with native arguments. SQLAlchemy, Django and
other DBAPI connections get one text argument, since their drivers disagree about
everything else. Nothing here commits, closes or reconfigures a connection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row

from pulse import errors
from pulse.sql import producer as sql

T = TypeVar("T")
Row = tuple[Any, ...]


class AsyncExecutes(Protocol):
    """An async connection of psycopg or SQLAlchemy, or an AsyncSession."""

    def execute(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...


def fetch(
    connection: Any, query: str, values: dict[str, Any], then: Callable[[list[Row]], T]
) -> T | Awaitable[T]:
    """Run a query on a psycopg connection; async ones give an awaitable."""
    if isinstance(connection, psycopg.AsyncConnection):
        return _fetch_async(connection, query, values, then)
    with errors.mapped():
        # Its own cursor class and row factory: the caller's defaults may differ.
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        try:
            return then(cursor.execute(query, values).fetchall())
        finally:
            cursor.close()


async def _fetch_async(
    connection: psycopg.AsyncConnection[Any],
    query: str,
    values: dict[str, Any],
    then: Callable[[list[Row]], T],
) -> T:
    with errors.mapped():
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(query, values)
            return then(await cursor.fetchall())


def is_psycopg(connection: Any) -> bool:
    return isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection))


def enqueue_list(
    connection: Any, jobs: Sequence[dict[str, Any]], then: Callable[[list[Row]], T]
) -> T | Awaitable[T]:
    """enqueue_many(jobs jsonb) on anything that speaks SQL."""
    document = json.dumps(jobs, allow_nan=False)
    if is_psycopg(connection):
        query = sql.ENQUEUE_LIST.format("%(jobs)s")
        return fetch(connection, query, {"jobs": document}, then)
    if _is_a(connection, "sqlalchemy.ext.asyncio", ASYNC_SQLALCHEMY):
        return _sqlalchemy_async(connection, document, then)
    if _is_a(connection, "sqlalchemy.orm", SQLALCHEMY_ORM) or _is_a(
        connection, "sqlalchemy.engine", ("Connection",)
    ):
        with errors.mapped():
            return then(connection.execute(*_sqlalchemy(document)).fetchall())
    if callable(getattr(connection, "cursor", None)):
        return _dbapi(connection, document, then)
    raise TypeError(
        f"cannot enqueue on a {type(connection).__name__}: pass a connection of "
        "psycopg, SQLAlchemy (or a session) or Django"
    )


SQLALCHEMY_ORM = ("Session", "scoped_session")
ASYNC_SQLALCHEMY = ("AsyncSession", "AsyncConnection", "async_scoped_session")


def _is_a(connection: Any, module: str, names: Sequence[str]) -> bool:
    """isinstance without importing what the caller does not use."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(
        connection, tuple(getattr(loaded, name) for name in names)
    )


def _sqlalchemy(document: str) -> tuple[Any, dict[str, Any]]:
    text: Any = sys.modules["sqlalchemy"].text
    return text(sql.ENQUEUE_LIST.format(":jobs")), {"jobs": document}


async def _sqlalchemy_async(
    connection: Any, document: str, then: Callable[[list[Row]], T]
) -> T:
    with errors.mapped():
        return then((await connection.execute(*_sqlalchemy(document))).fetchall())


def _dbapi(connection: Any, document: str, then: Callable[[list[Row]], T]) -> T:
    """Django's wrapper and every DBAPI driver with the format style."""
    with errors.mapped():
        cursor = connection.cursor()
        try:
            cursor.execute(sql.ENQUEUE_LIST.format("%s"), [document])
            return then(cursor.fetchall())
        finally:
            cursor.close()
