"""LISTEN, where that works."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid

import psycopg

from pulse.web import queries
from pulse.web.database import Connection, Database

log = logging.getLogger("pulse.web")

PROBE_WITHIN = 1.0


async def listen(connection: Connection, database: Database) -> bool:
    """Whether progress is heard from now on; if not, whoever looks still sees it."""
    try:
        heard = await is_heard(connection, database)
        why = "a pooler in transaction mode?"
    except psycopg.Error as error:
        if connection.closed:
            raise
        # A standby, or a pulse without watch().
        heard, why = False, str(error).strip()
    if not heard:
        with contextlib.suppress(psycopg.Error):
            await connection.execute(queries.UNLISTEN)
        log.warning(
            "LISTEN receives nothing here (%s): progress is looked up once a second. "
            "A DSN straight to the primary mends it.",
            why,
        )
    return heard


async def is_heard(connection: Connection, database: Database) -> bool:
    """LISTEN, and ask to be rung only when a probe has come."""
    probe = f"probe {uuid.uuid4()}"
    await connection.execute(queries.LISTEN)
    async with database.session(None, read_only=False) as other:
        await other.rows(queries.PROBE, probe=probe)
    heard: set[str] = set()
    limit = time.monotonic() + PROBE_WITHIN
    # Each round ends by itself: a generator left halfway keeps the connection.
    while probe not in heard and (left := limit - time.monotonic()) > 0:
        async for notify in connection.notifies(timeout=left, stop_after=1):
            heard.add(notify.payload)
    if probe in heard:
        await connection.execute(queries.WATCH)
    return probe in heard
