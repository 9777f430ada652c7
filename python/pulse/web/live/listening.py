"""LISTEN for the progress of jobs, where notifications arrive; the hub calls it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg

from pulse import connections
from pulse.web import queries
from pulse.web.database import Connection, Database

if TYPE_CHECKING:
    from typing_extensions import LiteralString

log = logging.getLogger("pulse.web")


async def listen(connection: Connection, database: Database) -> bool:
    """Whether notifications of progress arrive; if not, polling still shows it."""

    async def send(query: LiteralString, values: dict[str, str]) -> None:
        async with database.session(None, read_only=False) as other:
            await other.rows(query, **values)

    reason = "a pooler in transaction mode?"
    try:
        arrive = await connections.listen(connection, queries.PROGRESS_CHANNEL, send)
        if arrive:
            # Workers notify only while a session watches.
            await connection.execute(queries.WATCH)
            return True
    except psycopg.Error as error:
        if connection.closed:
            raise
        # A standby, or a pulse without watch_progress().
        reason = str(error).strip()
    log.warning(
        "LISTEN receives nothing here (%s): progress is looked up once a second. "
        "Fix: a DSN that leads straight to the primary.",
        reason,
    )
    return False
