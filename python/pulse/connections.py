"""Connections of the worker, the command line and the web app to PostgreSQL.

The worker's Connector, the commands and the web app's pool take their connection
strings and session settings from here. listen() proves that notifications arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from typing_extensions import LiteralString

AnyConnection = psycopg.AsyncConnection[Any]

# A cut network is noticed within half a minute, also while a query waits.
KEEPALIVE = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20000,
}
PROBE_WITHIN = 1.0
PID = "SELECT pg_catalog.pg_backend_pid()"
NOTIFY = "SELECT pg_catalog.pg_notify(%(channel)s, %(payload)s)"


def distinct_dsns(dsns: Iterable[str]) -> list[str]:
    """DSNs of several databases, each named once."""
    every = list(dsns)
    if not every:
        raise ValueError("at least one DSN is needed")
    if len(set(every)) < len(every):
        raise ValueError("the same DSN is there twice")
    return every


def conninfo(dsn: str, name: str | None = None, **more: str) -> str:
    """The DSN with an application_name, and with KEEPALIVE where it sets none."""
    chosen = conninfo_to_dict(dsn)
    added: dict[str, Any] = {k: v for k, v in KEEPALIVE.items() if k not in chosen}
    if name is not None:
        # Longer ones are cut by the server, with a NOTICE.
        added["application_name"] = name[:63]
    return make_conninfo(dsn, **added, **more)


def backoff(failures: int, cap: float = 5.0) -> float:
    """Exponential with jitter: 0.1 s, 0.2 s, … each between half and all of it."""
    longest: float = min(cap, 0.1 * 2 ** min(failures, 20))
    return longest * random.uniform(0.5, 1)


async def listen(
    connection: AnyConnection,
    channel: str,
    send: Callable[[LiteralString, dict[str, str]], Awaitable[object]],
) -> bool:
    """LISTEN, and return whether notifications arrive; where they do not, UNLISTEN.

    A pooler in transaction mode accepts LISTEN and delivers nothing. So a probe has to
    arrive within a second. send executes a statement on another connection and commits
    it. Other notifications that arrive meanwhile are dropped: query after this has
    returned.
    """
    name = sql.Identifier(channel)
    await connection.execute(sql.SQL("LISTEN {}").format(name))
    try:
        probe = f"probe {secrets.token_hex(16)}"
        await send(NOTIFY, {"channel": channel, "payload": probe})
        arrived = await _arrives(connection, probe)
    except psycopg.Error:
        await _unlisten(connection, name)
        raise
    if not arrived:
        await _unlisten(connection, name)
    return arrived


async def _arrives(connection: AnyConnection, probe: str) -> bool:
    limit = time.monotonic() + PROBE_WITHIN
    payloads: set[str] = set()
    # Each round ends by itself: a generator left halfway keeps the connection.
    while probe not in payloads and (left := limit - time.monotonic()) > 0:
        async for notify in connection.notifies(timeout=left, stop_after=1):
            payloads.add(notify.payload)
    return probe in payloads


async def _unlisten(connection: AnyConnection, name: sql.Identifier) -> None:
    with contextlib.suppress(psycopg.Error):
        await connection.execute(sql.SQL("UNLISTEN {}").format(name))


async def share_a_backend(one: AnyConnection, other: AnyConnection) -> bool:
    """Whether a pooler runs the statements of both in the same session of the server.

    Then LISTEN cannot work, and would stay behind in that session. The other way round
    it proves nothing: a pooler may have more sessions than one.
    """
    pids = [await (await each.execute(PID)).fetchone() for each in (one, other)]
    return pids[0] == pids[1]


def listen_works(dsn: str) -> bool:
    """Whether LISTEN works over this DSN: listen() for a program without a loop.

    On a channel of its own: a pooler may keep the LISTEN in a session of others.
    """

    async def ask() -> bool:
        async with await _connect(dsn) as listener, await _connect(dsn) as sender:
            if await share_a_backend(listener, sender):
                return False
            channel = f"pulse_probe_{secrets.token_hex(8)}"
            return await listen(listener, channel, sender.execute)

    return asyncio.run(ask())


async def _connect(dsn: str) -> AnyConnection:
    return await psycopg.AsyncConnection.connect(
        conninfo(dsn, "pulse probe"), autocommit=True, prepare_threshold=None
    )
