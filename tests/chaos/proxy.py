"""A TCP proxy before a server's socket that stalls, delays and cuts on demand.

It lives in a thread with an event loop of its own; every verb may be called from
anywhere. A stalled line stays open and carries nothing, as when a cable is pulled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CHUNK = 65536


class Proxy:
    """127.0.0.1:port leads to the Unix socket at path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = 0
        self._delay = 0.0
        self._flows = asyncio.Event()
        self._lines: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(self._listen())

    # -- faults -----------------------------------------------------------------------

    def stall(self) -> None:
        """Carry nothing, close nothing."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def flow(self) -> None:
        """End a stall: what was held up arrives."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def delay(self, seconds: float) -> None:
        """Hold up every chunk, in both directions, for this long."""
        self._delay = seconds

    def cut(self) -> int:
        """Break every line without a goodbye; returns how many there were."""
        return self._call(self._cut())

    def close(self) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- the loop ---------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        self._flows.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            theirs = await asyncio.open_unix_connection(self.path)
        except OSError:
            # The server is down: refused, as it would be without a proxy.
            writer.transport.abort()
            return
        self._lines |= {writer, theirs[1]}
        try:
            ends = [
                asyncio.create_task(self._carry(reader, theirs[1])),
                asyncio.create_task(self._carry(theirs[0], writer)),
            ]
            await asyncio.wait(ends, return_when="FIRST_COMPLETED")
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)
        finally:
            for line in (writer, theirs[1]):
                self._lines.discard(line)
                line.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                await self._flows.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(chunk)
                await writer.drain()

    async def _cut(self) -> int:
        cut = len(self._lines) // 2
        for line in list(self._lines):
            line.transport.abort()
        return cut

    async def _shut(self) -> None:
        self._server.close()
        self._flows.set()
        await self._cut()
        # Lines end by themselves once cut; their tasks are not left pending.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)
