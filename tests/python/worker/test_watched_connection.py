"""The connection whose socket stays registered with the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from pulse.worker.connection import (
    Connector,
    PreparedStatement,
    WatchedConnection,
)
from tests.conftest import Database

ECHO = "SELECT CAST(%(text)s AS text)"
PATIENCE = 20.0


def play(
    db: Database, scenario: Callable[[WatchedConnection], Awaitable[None]]
) -> None:
    async def run() -> None:
        connection = await Connector(db.dsn, "w").open_async("coordinator")
        try:
            await asyncio.wait_for(scenario(connection), PATIENCE)
        finally:
            await connection.close()

    asyncio.run(run())


async def echo(
    statement: PreparedStatement, connection: WatchedConnection, text: str
) -> Any:
    rows = await statement.execute(connection, [text.encode()])
    return rows.read(0, 1)[0][0]


async def until_active(db: Database, connection: WatchedConnection) -> None:
    query = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
    watching, pid = db.connect(), connection.info.backend_pid
    while watching.execute(query, [pid]).fetchone() != (True,):
        await asyncio.sleep(0.01)


def test_other_statements_come_between(db: Database) -> None:
    async def scenario(connection: WatchedConnection) -> None:
        statement = PreparedStatement("echo", ECHO, ["text"])
        for n in range(3):
            assert await echo(statement, connection, f"a{n}") == f"a{n}"
            assert await echo(statement, connection, f"b{n}") == f"b{n}"
            cursor = await connection.execute("SELECT %s", [n])
            assert await cursor.fetchone() == (n,)

    play(db, scenario)


def test_a_statement_that_cannot_be_sent_at_once(db: Database) -> None:
    async def scenario(connection: WatchedConnection) -> None:
        statement = PreparedStatement("echo", ECHO, ["text"])
        text = "x" * (16 << 20)
        assert await echo(statement, connection, text) == text
        assert await echo(statement, connection, "a") == "a"

    play(db, scenario)


def test_a_cancel_ends_the_statement_on_the_server(db: Database) -> None:
    async def scenario(connection: WatchedConnection) -> None:
        sleep = PreparedStatement(
            "sleep", "SELECT pg_sleep(CAST(%(text)s AS float8))", ["text"]
        )
        task = asyncio.create_task(sleep.execute(connection, [b"600"]))
        await until_active(db, connection)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (
            await echo(PreparedStatement("echo", ECHO, ["text"]), connection, "a")
            == "a"
        )

    play(db, scenario)


def test_a_session_that_the_server_ends_is_watched_no_longer(db: Database) -> None:
    async def scenario(connection: WatchedConnection) -> None:
        statement = PreparedStatement("echo", ECHO, ["text"])
        assert await echo(statement, connection, "a") == "a"
        assert connection._watched is not None
        pid = connection.info.backend_pid
        db.connect().execute("SELECT pg_terminate_backend(%s)", [pid])
        while connection._watched is not None:
            await asyncio.sleep(0)
        with pytest.raises(psycopg.OperationalError):
            await echo(statement, connection, "b")
        # The next one has the same number of a file.
        async with await Connector(db.dsn, "w").open_async("coordinator") as other:
            assert await echo(statement, other, "c") == "c"

    play(db, scenario)


def test_a_session_that_has_ended_unseen(db: Database) -> None:
    async def scenario(connection: WatchedConnection) -> None:
        statement = PreparedStatement("echo", ECHO, ["text"])
        assert await echo(statement, connection, "a") == "a"
        pid = connection.info.backend_pid
        # Waits for its end, and the event loop with it.
        ended = db.connect().execute("SELECT pg_terminate_backend(%s, 20000)", [pid])
        assert ended.fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            await echo(statement, connection, "b")
        assert connection._watched is None

    play(db, scenario)


def test_a_session_that_ends_during_a_statement(db: Database) -> None:
    async def scenario(connection: WatchedConnection) -> None:
        sleep = PreparedStatement(
            "sleep", "SELECT pg_sleep(CAST(%(text)s AS float8))", ["text"]
        )
        task = asyncio.create_task(sleep.execute(connection, [b"600"]))
        await until_active(db, connection)
        pid = connection.info.backend_pid
        db.connect().execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(psycopg.OperationalError):
            await task
        assert connection._watched is None

    play(db, scenario)
