"""The end of a worker: what runs gets its grace, what is left is given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psycopg

from pulse import connections
from pulse.logs import say
from pulse.worker.claims import Intake
from pulse.worker.connection import UNWIND_WITHIN, Line
from pulse.worker.exchange import Messenger
from pulse.worker.executors import Executors
from pulse.worker.slots import Ledger

FLUSH_WITHIN = 5.0


class Ending:
    """Bounded: whatever the server does, it comes to an end soon after the grace."""

    def __init__(
        self,
        ledger: Ledger,
        executors: Executors,
        messenger: Messenger,
        line: Line,
        signal: asyncio.Event,
        worker: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ledger = ledger
        self._executors = executors
        self._messenger = messenger
        self._line = line
        self._signal = signal
        self._worker = worker

    async def give_back_unread(self, intake: Intake) -> None:
        """Whatever goes wrong here, what runs is still drained."""
        try:
            await intake.start_all()
        except Exception as error:
            self._say(logging.ERROR, f"claimed jobs are left to lapse: {error}")
            intake.forget()

    async def drain(self, until: Callable[[], float]) -> None:
        """Let runs end until then (a second stop may shorten it), then give back."""
        self._ledger.tell_all_to_stop()
        while self._ledger.unfinished and (left := until() - self._loop.time()) > 0:
            if not await self._flush(left):
                await asyncio.sleep(connections.backoff(self._line.failures, cap=1.0))
                continue
            timer = self._loop.call_at(until(), self._signal.set)
            if not self._ledger.ended and self._ledger.unfinished:
                await self._signal.wait()
            self._signal.clear()
            timer.cancel()
        unfinished = self._ledger.unfinished
        await self._executors.abandon(unfinished, UNWIND_WITHIN)
        self._ledger.give_back(*unfinished)
        end = self._loop.time() + FLUSH_WITHIN
        while self._ledger.ended and (left := end - self._loop.time()) > 0:
            if not await self._flush(left):
                await asyncio.sleep(connections.backoff(self._line.failures, cap=1.0))
        if self._ledger.ended:
            unsent = len(self._ledger.ended)
            self._say(
                logging.ERROR, f"{unsent} reports could not be sent; the leases lapse"
            )

    async def _flush(self, within: float) -> bool:
        """Send what has ended; False when that failed."""
        reports = self._ledger.collect()
        if not reports:
            return True
        try:
            await asyncio.wait_for(self._messenger.exchange(reports, {}), within + 1)
        except (psycopg.Error, OSError, asyncio.TimeoutError) as error:
            self._ledger.take_back(reports)
            self._line.failures += 1
            self._say(logging.WARNING, f"cannot report, trying again: {error}")
            await self._messenger.close()
            return False
        self._ledger.settle(reports)
        return True

    def _say(self, level: int, message: str) -> None:
        say(level, message, worker=self._worker)
