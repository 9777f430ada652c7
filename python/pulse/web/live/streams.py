"""The response that sends server-sent events; routes/streams.py returns it."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pulse.web.live.mailbox import Mailbox

KEEP_ALIVE_EVERY = 15.0


class EventStream(Response):
    """Sends what comes into a mailbox until the client leaves or the job has ended."""

    media_type = "text/event-stream"

    def __init__(self, following: AbstractContextManager[Mailbox]) -> None:
        super().__init__()
        self._following = following
        del self.headers["content-length"]
        # A proxy that collects answers would hold the events back.
        self.headers["X-Accel-Buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._following as mailbox:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            sending = asyncio.create_task(pump(mailbox, send))
            leaving = asyncio.create_task(left(receive))
            try:
                await asyncio.wait(
                    {sending, leaving}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for task in (sending, leaving):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OSError):
                        await task
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def pump(mailbox: Mailbox, send: Send) -> None:
    while not mailbox.closed:
        messages = await mailbox.take(KEEP_ALIVE_EVERY)
        body = messages or b": keep-alive\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if b"event: end\n" in messages:
            return


async def left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
