"""The connection whose socket stays registered with the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from pulse.worker.connector import Connector
from pulse.worker.session import Session
from pulse.worker.statement import Statement
from tests.conftest import Database

ECHO = "SELECT CAST(%(text)s AS text)"
PATIENCE = 20.0


def play(db: Database, scenario: Callable[[Session], Awaitable[None]]) -> None:
    async def run() -> None:
        session = await Connector(db.dsn, "w").open_async("coordinator")
        try:
            await asyncio.wait_for(scenario(session), PATIENCE)
        finally:
            await session.close()

    asyncio.run(run())


async def echo(statement: Statement, session: Session, text: str) -> Any:
    rows = await statement.execute(session, [text.encode()])
    return rows.read(0, 1)[0][0]


async def until_active(db: Database, session: Session) -> None:
    query = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
    watching, pid = db.connect(), session.info.backend_pid
    while watching.execute(query, [pid]).fetchone() != (True,):
        await asyncio.sleep(0.01)


def test_other_statements_come_between(db: Database) -> None:
    async def scenario(session: Session) -> None:
        statement = Statement("echo", ECHO, ["text"])
        for n in range(3):
            assert await echo(statement, session, f"a{n}") == f"a{n}"
            assert await echo(statement, session, f"b{n}") == f"b{n}"
            cursor = await session.execute("SELECT %s", [n])
            assert await cursor.fetchone() == (n,)

    play(db, scenario)


def test_a_statement_that_cannot_be_sent_at_once(db: Database) -> None:
    async def scenario(session: Session) -> None:
        statement = Statement("echo", ECHO, ["text"])
        text = "x" * (16 << 20)
        assert await echo(statement, session, text) == text
        assert await echo(statement, session, "a") == "a"

    play(db, scenario)


def test_a_cancel_ends_the_statement_on_the_server(db: Database) -> None:
    async def scenario(session: Session) -> None:
        sleep = Statement(
            "sleep", "SELECT pg_sleep(CAST(%(text)s AS float8))", ["text"]
        )
        task = asyncio.create_task(sleep.execute(session, [b"600"]))
        await until_active(db, session)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await echo(Statement("echo", ECHO, ["text"]), session, "a") == "a"

    play(db, scenario)


def test_a_session_that_the_server_ends_is_watched_no_longer(db: Database) -> None:
    async def scenario(session: Session) -> None:
        statement = Statement("echo", ECHO, ["text"])
        assert await echo(statement, session, "a") == "a"
        assert session._watched is not None
        pid = session.info.backend_pid
        db.connect().execute("SELECT pg_terminate_backend(%s)", [pid])
        while session._watched is not None:
            await asyncio.sleep(0)
        with pytest.raises(psycopg.OperationalError):
            await echo(statement, session, "b")
        # The next one has the same number of a file.
        async with await Connector(db.dsn, "w").open_async("coordinator") as other:
            assert await echo(statement, other, "c") == "c"

    play(db, scenario)


def test_a_session_that_has_ended_unseen(db: Database) -> None:
    async def scenario(session: Session) -> None:
        statement = Statement("echo", ECHO, ["text"])
        assert await echo(statement, session, "a") == "a"
        pid = session.info.backend_pid
        # Waits for its end, and the event loop with it.
        ended = db.connect().execute("SELECT pg_terminate_backend(%s, 20000)", [pid])
        assert ended.fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            await echo(statement, session, "b")
        assert session._watched is None

    play(db, scenario)


def test_a_session_that_ends_during_a_statement(db: Database) -> None:
    async def scenario(session: Session) -> None:
        sleep = Statement(
            "sleep", "SELECT pg_sleep(CAST(%(text)s AS float8))", ["text"]
        )
        task = asyncio.create_task(sleep.execute(session, [b"600"]))
        await until_active(db, session)
        pid = session.info.backend_pid
        db.connect().execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(psycopg.OperationalError):
            await task
        assert session._watched is None

    play(db, scenario)
