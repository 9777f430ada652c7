"""The end of a worker: runs get their grace, what is left is released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psycopg

from pulse import connections
from pulse.logs import log_event
from pulse.worker.claims import Claims
from pulse.worker.connection import UNWIND_WITHIN, Connection
from pulse.worker.exchange import Exchange
from pulse.worker.executors import Executors
from pulse.worker.slots import Slots

FLUSH_WITHIN = 5.0


class Shutdown:
    """Bounded: whatever the server does, it ends soon after the grace."""

    def __init__(
        self,
        slots: Slots,
        executors: Executors,
        connection: Connection,
        exchange: Exchange,
        wake: asyncio.Event,
        worker: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots = slots
        self._executors = executors
        self._connection = connection
        self._exchange = exchange
        self._wake = wake
        self._worker = worker

    async def release_unread(self, claims: Claims) -> None:
        """Whatever goes wrong here, the running jobs are still drained."""
        try:
            claims.start_all()
        except Exception as error:
            self._log(logging.ERROR, f"claimed jobs are left to lapse: {error}")
            claims.forget()

    async def drain(self, until: Callable[[], float]) -> None:
        """Let runs end until then (a second stop may shorten it), then release."""
        self._slots.stop_runs()
        self._slots.retry_held()
        while self._slots.unfinished and (left := until() - self._loop.time()) > 0:
            if not await self._flush(left):
                await self._pause()
                continue
            timer = self._loop.call_at(until(), self._wake.set)
            if not self._slots.ended and self._slots.unfinished:
                await self._wake.wait()
            self._wake.clear()
            timer.cancel()
        unfinished = self._slots.unfinished
        await self._executors.abandon(unfinished, UNWIND_WITHIN)
        self._slots.release(*unfinished)
        end = self._loop.time() + FLUSH_WITHIN
        while self._slots.ended and (left := end - self._loop.time()) > 0:
            if not await self._flush(left):
                await self._pause()
        if self._slots.ended:
            unsent = len(self._slots.ended)
            self._log(
                logging.ERROR, f"{unsent} reports could not be sent; the leases lapse"
            )

    async def _flush(self, within: float) -> bool:
        """Report what has ended; False when that failed."""
        reports = self._slots.collect()
        if not reports:
            return True
        try:
            sending = self._exchange.send(reports, {})
            answer = await asyncio.wait_for(sending, within + 1)
        except (psycopg.Error, OSError, asyncio.TimeoutError) as error:
            self._slots.requeue(reports)
            self._connection.failures += 1
            self._log(logging.WARNING, f"cannot report, trying again: {error}")
            await self._connection.close()
            return False
        self._slots.confirm(reports, answer.refused, answer.held)
        self._slots.retry_held()
        return True

    async def _pause(self) -> None:
        await asyncio.sleep(connections.backoff(self._connection.failures, cap=1.0))

    def _log(self, level: int, message: str) -> None:
        log_event(level, message, worker=self._worker)
