"""What worker, command line and web share about their connections."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pulse import connections
from tests.conftest import Database

CHANNELS = "SELECT c FROM pg_listening_channels() AS c"


async def probe(dsn: str) -> tuple[bool, list[tuple[Any, ...]]]:
    connect = psycopg.AsyncConnection.connect
    async with (
        await connect(dsn, autocommit=True) as listener,
        await connect(dsn, autocommit=True) as sender,
    ):
        works = await connections.listen(listener, "some channel", sender.execute)
        return works, await (await listener.execute(CHANNELS)).fetchall()


def test_listen_is_proved_by_a_probe_and_goes_on(db: Database) -> None:
    assert asyncio.run(probe(db.dsn)) == (True, [("some channel",)])
    assert connections.listen_works(db.dsn)


def test_listen_behind_a_transaction_pooler_is_found_out(
    bouncer: str, db: Database
) -> None:
    works, _ = asyncio.run(probe(bouncer))
    assert not works
    assert not connections.listen_works(bouncer)


def test_a_pooler_whose_sessions_are_shared_keeps_no_listen(
    bouncer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients were in one session, so nothing had to be tried there."""

    def listen(*_: object) -> None:
        raise AssertionError("LISTEN would stay behind in the pooler's session")

    monkeypatch.setattr(connections, "listen", listen)
    assert not connections.listen_works(bouncer)
    with psycopg.connect(bouncer, autocommit=True, prepare_threshold=None) as client:
        assert client.execute(CHANNELS).fetchall() == []


def test_listen_works_behind_a_session_pooler(session_bouncer: str) -> None:
    """Its sessions belong to one client at a time, whatever pid the pooler tells."""
    with psycopg.connect(session_bouncer) as client:
        server_pid = client.execute("SELECT pg_backend_pid()").fetchone()
        assert server_pid != (client.info.backend_pid,)
    works, channels = asyncio.run(probe(session_bouncer))
    assert (works, channels) == (True, [("some channel",)])
    assert connections.listen_works(session_bouncer)


def test_a_probe_that_cannot_be_sent_leaves_no_listen(db: Database) -> None:
    async def scenario() -> list[tuple[Any, ...]]:
        async def refuse(query: str, values: dict[str, str]) -> None:
            raise psycopg.errors.ReadOnlySqlTransaction

        connect = psycopg.AsyncConnection.connect
        async with await connect(db.dsn, autocommit=True) as listener:
            try:
                await connections.listen(listener, "c", refuse)
            except psycopg.errors.ReadOnlySqlTransaction:
                return await (await listener.execute(CHANNELS)).fetchall()
            raise AssertionError("the error was not passed on")

    assert asyncio.run(scenario()) == []


def test_the_dsn_decides_before_the_defaults() -> None:
    made = connections.conninfo("host=h keepalives_idle=99", "x" * 100)
    assert "keepalives_idle=99" in made
    assert "tcp_user_timeout=20000" in made
    assert f"application_name={'x' * 63}" in made.split()
