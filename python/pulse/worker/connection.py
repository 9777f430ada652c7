"""The coordinator's connection: opened when needed, and again after trouble."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import psycopg
from psycopg.pq import TransactionStatus

from pulse import connections, errors
from pulse.hooks import AllHooks
from pulse.logs import log_event
from pulse.worker.connector import AsyncConnection, Connector, cut, require_pulse

UNWIND_WITHIN = 1.0

Admit = Callable[[AsyncConnection], Awaitable[None]]
"""Raises an error of pulse for a database that must not be worked on."""


class Connection:
    """Most errors leave it to be closed; a stop ends every wait for the server."""

    def __init__(
        self,
        connector: Connector,
        stopped: asyncio.Event,
        hooks: AllHooks,
        admit: Admit | None = None,
    ) -> None:
        self._connector = connector
        self._stopped = stopped
        self._hooks = hooks
        self._admit = admit
        self._psycopg: AsyncConnection | None = None
        self.failures = 0
        self._told = ""

    @property
    def is_open(self) -> bool:
        return self._psycopg is not None and not self._psycopg.closed

    async def get(self, check: bool = False) -> AsyncConnection:
        """The connection; opens one where there is none."""
        if self._psycopg is None or self._psycopg.closed:
            self._psycopg = await self._connector.open_async("coordinator")
            if check:
                await require_pulse(self._psycopg)
            if self._admit is not None:
                await self._enter(self._psycopg, self._admit)
        return self._psycopg

    async def _enter(self, connection: AsyncConnection, admit: Admit) -> None:
        """Another database may answer now: one that is refused is not worked on."""
        try:
            await admit(connection)
        except BaseException as error:
            self._psycopg = None
            await connection.close()
            if isinstance(error, errors.PulseError):
                raise psycopg.OperationalError(f"{error}") from error
            raise

    async def wait_for_server(self) -> None:
        """The first connection; what is wrong with pulse itself is raised."""
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
        """Close it and pause: longer each time, and only until a stop."""
        if not self._outlives(error):
            await self.close()
        pause = connections.backoff(self.failures)
        self.failures += 1
        self._hooks.call("disconnected", error)
        first = str(errors.translate(error) or error).strip().split("\n")[0]
        at = self._connector.at
        log_event(
            # Beside others that work each reason is logged once.
            logging.DEBUG if at and first == self._told else logging.WARNING,
            f"cannot reach the queue{at}, trying again in {pause:.1f} s: {first}",
            worker=self._connector.worker,
            failures=self.failures,
        )
        self._told = first
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), pause)

    def _outlives(self, error: BaseException) -> bool:
        """Whether to go on with the session.

        One that was cancelled has filled its caches. A new one begins with that, and
        may never get through a small statement_timeout; now and then it is tried
        all the same, as it gets what the setting is by then.
        """
        return (
            isinstance(error, psycopg.errors.QueryCanceled)
            and self.failures % 4 < 3
            and self._psycopg is not None
            and self._psycopg.info.transaction_status == TransactionStatus.IDLE
        )

    def note_answer(self) -> None:
        """It works again."""
        self.failures, self._told = 0, ""
        if place := self._connector.place:
            words = f"the queue at {place} answers again"
            log_event(logging.INFO, words, worker=self._connector.worker)

    async def close(self) -> None:
        connection, self._psycopg = self._psycopg, None
        if connection is not None:
            await connection.close()

    def cut(self) -> None:
        """Make a statement that waits for its answer fail at once."""
        if self._psycopg is not None:
            cut(self._psycopg)
