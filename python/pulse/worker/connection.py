"""The line to the server: how it is opened at first, and again after trouble."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import psycopg

from pulse import connections, errors
from pulse.hooks import AllHooks
from pulse.logs import say
from pulse.worker.exchange import Messenger

UNWIND_WITHIN = 1.0


class Line:
    """Whatever it waits for, a stop ends the wait."""

    def __init__(
        self,
        messenger: Messenger,
        stopped: asyncio.Event,
        hooks: AllHooks,
        worker: str,
    ) -> None:
        self._messenger = messenger
        self._stopped = stopped
        self._hooks = hooks
        self._worker = worker
        self.failures = 0

    async def open(self) -> None:
        """Wait for the server; what is wrong with pulse itself is raised."""
        while not self._stopped.is_set():
            try:
                await self.connect(check=True)
                return
            except (psycopg.OperationalError, OSError) as error:
                await self.recover(error)
            except errors.PulseError:
                await self._messenger.close()
                raise

    async def connect(self, check: bool = False) -> None:
        """Connect; a stop does not wait for a server that does not answer."""
        if self._messenger.connected:
            return
        trying = asyncio.create_task(self._messenger.connect(check))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({trying, stopped}, return_when="FIRST_COMPLETED")
            if not trying.done():
                await asyncio.wait({trying}, timeout=UNWIND_WITHIN)
            if not trying.done():
                trying.cancel()
                raise psycopg.OperationalError("stopped while connecting")
            await trying
        finally:
            stopped.cancel()

    async def recover(self, error: BaseException) -> None:
        """Hang up and wait: longer each time, and only until a stop."""
        await self._messenger.close()
        pause = connections.backoff(self.failures)
        self.failures += 1
        self._hooks.call("disconnected", error)
        first = str(errors.translate(error) or error).strip().split("\n")[0]
        say(
            logging.WARNING,
            f"cannot reach the queue, trying again in {pause:.1f} s: {first}",
            worker=self._worker,
            failures=self.failures,
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), pause)
