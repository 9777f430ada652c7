"""How the connections of a worker are opened, checked and cut."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row

from pulse import connections, errors
from pulse.sql import worker as sql
from pulse.worker.session import Session

if TYPE_CHECKING:
    from psycopg.abc import Buffer

AsyncConnection = Session
Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Connector:
    """Where to connect to, and for which worker."""

    dsn: str
    worker: str
    prepare: bool | None = None
    durable: bool = True
    place: str = ""
    """One of several databases, for people."""

    @property
    def at(self) -> str:
        return f" at {self.place}" if self.place else ""

    def conninfo(self, purpose: str) -> str:
        name = f"pulse {purpose} {self.worker}"
        return connections.conninfo(self.dsn, name, client_encoding="UTF8")

    async def open_async(self, purpose: str) -> AsyncConnection:
        connection = await Session.connect(
            self.conninfo(purpose), autocommit=True, row_factory=tuple_row
        )
        connection.adapters.register_loader("jsonb", JsonbLoader)
        try:
            row = await (await connection.execute(sql.BACKEND_PID)).fetchone()
            pooled = row is None or row[0] != connection.info.backend_pid
            if not self._prepares(pooled):
                connection.prepare_threshold = None
            for values in self._settings(pooled, purpose):
                with contextlib.suppress(psycopg.DatabaseError):
                    await connection.execute(sql.SET, values)
        except BaseException:
            await connection.close()
            raise
        return connection

    def open(self, purpose: str) -> Connection:
        connection = psycopg.connect(
            self.conninfo(purpose), autocommit=True, row_factory=tuple_row
        )
        try:
            row = connection.execute(sql.BACKEND_PID).fetchone()
            pooled = row is None or row[0] != connection.info.backend_pid
            if not self._prepares(pooled):
                connection.prepare_threshold = None
            for values in self._settings(pooled, purpose):
                with contextlib.suppress(psycopg.DatabaseError):
                    connection.execute(sql.SET, values)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepares(self, pooled: bool) -> bool:
        return not pooled if self.prepare is None else self.prepare

    def _settings(self, pooled: bool, purpose: str) -> Iterator[dict[str, str]]:
        """None in a pooled session: they would stay there for other clients."""
        if pooled:
            return
        for name, value in sql.SESSION_SETTINGS.items():
            yield {"name": name, "value": value}
        if not self.durable and purpose == "coordinator":
            yield {"name": "synchronous_commit", "value": "off"}


decode = json.JSONDecoder().raw_decode


class JsonbLoader(Loader):
    """Without the checks of json.loads: the server writes UTF-8 and no leading space.

    The first byte is the version of the format.
    """

    format = Format.BINARY

    def load(self, data: Buffer) -> Any:
        return decode(str(data, "utf-8"), 1)[0]


async def require_pulse(connection: AsyncConnection) -> None:
    """Raise what is wrong with pulse in this database, with the fix as hint."""
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


def cut(connection: AsyncConnection | Connection) -> None:
    """Shut the socket down: a statement that waits for its answer fails at once."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)
