"""The worker's connections to PostgreSQL.

A worker has three: one for the loop, which reports and claims (protocol.py), one for
the heartbeat's thread (heartbeat.py) and one that waits for notifications (wakeup.py).
A Connector opens them, each with the session settings that a worker needs. The one of
the loop is a ReconnectingConnection: it is opened when it is needed, and again after
an error.

Which class of psycopg's connections it is, and how the loop's one statement is sent,
is decided in statement.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from pulse import connections, errors
from pulse.hooks import AllHooks
from pulse.logs import log_event
from pulse.sql import worker as sql
from pulse.worker import statement
from pulse.worker.statement import WorkerConnection

if TYPE_CHECKING:
    from psycopg import abc

BlockingConnection = psycopg.Connection[tuple[Any, ...]]
"""A connection of a thread."""

# How long a stop waits for something that does not end at once.
UNWIND_WITHIN = 1.0


# -- opening connections --------------------------------------------------------------


@dataclass(frozen=True)
class Connector:
    """Opens connections to one database, for one worker."""

    dsn: str
    worker: str
    prepare: bool | None = None
    durable: bool = True
    label: str = ""
    """Names the database in logs where a worker has several; else it is empty."""

    @property
    def at_label(self) -> str:
        return f" at {self.label}" if self.label else ""

    # Made from open_async by tools/twins.py.
    def open(self, purpose: str) -> BlockingConnection:
        """A connection with the session settings of a worker."""
        connection = self._connect(purpose)
        try:
            cursor = connection.execute(sql.BACKEND_PID)
            row = cursor.fetchone()
            pooled = row is None or row[0] != connection.info.backend_pid
            if not self._prepares(pooled):
                connection.prepare_threshold = None
            for values in self._session_settings(pooled, purpose):
                with contextlib.suppress(psycopg.DatabaseError):
                    connection.execute(sql.SET, values)
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_async(self, purpose: str) -> WorkerConnection:
        """A connection with the session settings of a worker."""
        connection = await self._connect_async(purpose)
        try:
            cursor = await connection.execute(sql.BACKEND_PID)
            row = await cursor.fetchone()
            pooled = row is None or row[0] != connection.info.backend_pid
            if not self._prepares(pooled):
                connection.prepare_threshold = None
            for values in self._session_settings(pooled, purpose):
                with contextlib.suppress(psycopg.DatabaseError):
                    await connection.execute(sql.SET, values)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _connect(self, purpose: str) -> BlockingConnection:
        return psycopg.connect(
            self._conninfo(purpose), autocommit=True, row_factory=tuple_row
        )

    async def _connect_async(self, purpose: str) -> WorkerConnection:
        connection = await statement.CONNECTION.connect(
            self._conninfo(purpose), autocommit=True, row_factory=tuple_row
        )
        connection.adapters.register_loader("jsonb", JsonbLoader)
        return connection

    def _conninfo(self, purpose: str) -> str:
        name = f"pulse {purpose} {self.worker}"
        return connections.conninfo(self.dsn, name, client_encoding="UTF8")

    def _prepares(self, pooled: bool) -> bool:
        return not pooled if self.prepare is None else self.prepare

    def _session_settings(self, pooled: bool, purpose: str) -> Iterator[dict[str, str]]:
        """None behind a pooler: its sessions keep them for other clients."""
        if pooled:
            return
        for name, value in sql.SESSION_SETTINGS.items():
            yield {"name": name, "value": value}
        if not self.durable and purpose == "coordinator":
            yield {"name": "synchronous_commit", "value": "off"}


decode_json = json.JSONDecoder().raw_decode


class JsonbLoader(Loader):
    """Without the checks of json.loads: the server writes UTF-8 and no leading space.

    The first byte is the version of the format.
    """

    format = Format.BINARY

    def load(self, data: abc.Buffer) -> Any:
        return decode_json(str(data, "utf-8"), 1)[0]


async def require_pulse(connection: WorkerConnection) -> None:
    """Raise an error with the fix as hint where this database cannot be worked on."""
    values = {"functions": list(sql.WORKER_FUNCTIONS)}
    row = await (await connection.execute(sql.INSTALLED, values)).fetchone()
    assert row is not None
    installed, missing, forbidden, role, database = row
    if not installed:
        raise errors.NotInstalled(
            f"pulse is not installed in the database {database}",
            hint=errors.INSTALL,
        )
    if missing:
        raise errors.VersionTooOld(
            f"pulse in the database {database} is older than this package",
            detail=f"It lacks {', '.join(missing)}.",
            hint=errors.UPDATE,
        )
    if forbidden:
        raise errors.PermissionDenied(
            f"{role} may not work jobs in the database {database}",
            detail=f"It may not call {', '.join(forbidden)}.",
            hint=f"SELECT pulse.grant_access('{role}', 'worker');",
        )


def shut_down_socket(connection: WorkerConnection | psycopg.Connection[Any]) -> None:
    """Make a statement that waits for its answer fail at once."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)


# -- the connection of the loop -------------------------------------------------------


class ReconnectingConnection:
    """Opened when needed; closed after most errors. A stop ends every wait for it."""

    def __init__(
        self, connector: Connector, stopped: asyncio.Event, hooks: AllHooks
    ) -> None:
        self.failures = 0
        """Since the last answer."""
        self._connector = connector
        self._stopped = stopped
        self._hooks = hooks
        self._connection: WorkerConnection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    async def get(self, check: bool = False) -> WorkerConnection:
        """The connection; opens one where there is none."""
        if self._connection is None or self._connection.closed:
            self._connection = await self._connector.open_async("coordinator")
            if check:
                await require_pulse(self._connection)
        return self._connection

    async def wait_for_server(self) -> None:
        """Open the first connection; an error of pulse itself is raised."""
        while not self._stopped.is_set():
            try:
                await self.open(check=True)
                return
            except (psycopg.OperationalError, OSError) as error:
                await self.recover(error)
            except errors.PulseError:
                await self.close()
                raise

    async def open(self, check: bool = False) -> None:
        """Connect; a stop does not wait for a server that does not answer."""
        if self.is_open:
            return
        opening = asyncio.create_task(self.get(check))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({opening, stopped}, return_when="FIRST_COMPLETED")
            if not opening.done():
                await asyncio.wait({opening}, timeout=UNWIND_WITHIN)
            if not opening.done():
                opening.cancel()
                raise psycopg.OperationalError("stopped while connecting")
            await opening
        finally:
            stopped.cancel()

    async def recover(self, error: BaseException) -> None:
        """Close the connection and pause: longer each time, and only until a stop."""
        if not self._can_go_on_after(error):
            await self.close()
        pause = connections.backoff(self.failures)
        self.failures += 1
        self._hooks.disconnected(error)
        reason = str(errors.translate(error) or error).strip().split("\n")[0]
        self._log_failure(reason, pause)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), pause)

    def _can_go_on_after(self, error: BaseException) -> bool:
        """Whether to keep the session: after a statement that was cancelled.

        Its caches are filled. A new session begins without, and may never get through
        a small statement_timeout. Every fourth time a new one is opened all the same:
        the setting may have been changed meanwhile.
        """
        return (
            isinstance(error, psycopg.errors.QueryCanceled)
            and self.failures % 4 < 3
            and self._connection is not None
            and self._connection.info.transaction_status == TransactionStatus.IDLE
        )

    def _log_failure(
        self, reason: str, pause: float, level: int = logging.WARNING
    ) -> None:
        at = self._connector.at_label
        log_event(
            level,
            f"cannot reach the queue{at}, trying again in {pause:.1f} s: {reason}",
            worker=self._connector.worker,
            failures=self.failures,
        )

    def note_answer(self) -> None:
        """The server has answered after a failure."""
        self.failures = 0

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def abort(self) -> None:
        """Make a statement that waits for its answer fail at once."""
        if self._connection is not None:
            shut_down_socket(self._connection)
