"""A worker whose statements are cancelled by a small statement_timeout."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pulse.hooks import AllHooks
from pulse.worker.connection import Connector, ReconnectingConnection
from tests.conftest import Database


def test_a_statement_that_is_cancelled_is_tried_again_in_the_same_session(
    db: Database,
) -> None:
    """A new one would begin with empty caches, and might be cancelled every time."""
    dsn = make_conninfo(db.dsn, options="-c statement_timeout=2000")

    async def pids() -> list[int]:
        line = ReconnectingConnection(
            Connector(dsn, "w"), asyncio.Event(), AllHooks(())
        )
        seen = []
        for _ in range(5):
            connection = await line.get()
            seen.append(connection.info.backend_pid)
            await connection.execute("SET statement_timeout = 10")
            with pytest.raises(psycopg.errors.QueryCanceled) as cancelled:
                await connection.execute("SELECT pg_sleep(60)")
            await line.recover(cancelled.value)
        await line.close()
        return seen

    first, *others, last = asyncio.run(pids())
    assert others == [first] * 3
    assert last != first, "a setting that was changed meanwhile has to be met"
