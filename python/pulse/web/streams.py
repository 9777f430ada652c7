"""Server-sent events: the overview, and one job."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractContextManager
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pulse.web import queries
from pulse.web.caller import Asking, Caller, JobId
from pulse.web.jobs import no_such_job
from pulse.web.mailbox import Mailbox
from pulse.web.problems import Problem

router = APIRouter(tags=["streams"])

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


EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events, until the client leaves",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


async def require_streams(asking: Caller) -> None:
    if not await asking.may_stream():
        raise Problem(
            403,
            "the role of the DSN may not see the queue",
            "It reads the streams for all who follow them.",
            "42501",
            "SELECT pulse.grant_access('its role', 'viewer')",
        )


@router.get("/stream", response_class=EventStream, responses=EVENTS, status_code=200)
async def stream(asking: Asking) -> EventStream:
    """`overview` events: at once, and whenever it changed, at most once a second."""
    async with asking.reading() as db:
        await db.connection.execute(queries.MAY_SEE_ALL)
    await require_streams(asking)
    return EventStream(asking.hub.overview())


@router.get(
    "/jobs/{job_id}/stream",
    response_class=EventStream,
    responses=EVENTS,
    status_code=200,
)
async def job_stream(asking: Asking, job_id: JobId) -> EventStream:
    """`job` events: at once, and on every change; `end` when it has ended, or is no
    longer for the caller to see."""
    async with asking.reading() as db:
        seen = await db.one(queries.WATCHED, job_ids=[job_id])
        if seen is None:
            raise no_such_job(job_id)
        on = await db.one(queries.SEES_ON, job_id=job_id)
    await require_streams(asking)
    # The hub reads with the rights of the DSN: it must not tell more than they see.
    brief = on is None or not on["allowed"]
    return EventStream(asking.hub.job(job_id, seen, brief=brief))
