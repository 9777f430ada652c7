"""The streams of the overview and of one job: server-sent events from web/live."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from pulse.sql import operator
from pulse.web import queries
from pulse.web.access.caller import Caller, CurrentCaller, JobId
from pulse.web.database import first
from pulse.web.live.streams import EventStream
from pulse.web.problems import Problem
from pulse.web.routes.jobs import no_such_job

router = APIRouter(tags=["streams"])

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events, until the client leaves",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


async def require_streams(caller: Caller) -> None:
    if not await caller.may_stream():
        raise Problem(
            403,
            "the role of the DSN may not see the queue",
            "It reads the streams for all who follow them.",
            "42501",
            "SELECT pulse.grant_access('its role', 'viewer')",
        )


@router.get("/stream", response_class=EventStream, responses=EVENTS, status_code=200)
async def stream(caller: CurrentCaller) -> EventStream:
    """`overview` events: at once, and whenever it changed, at most once a second."""
    async with caller.reading() as db:
        await db.connection.execute(queries.MAY_SEE_ALL)
    await require_streams(caller)
    return EventStream(caller.hub.overview(caller.identity.follower))


@router.get(
    "/jobs/{job_id}/stream",
    response_class=EventStream,
    responses=EVENTS,
    status_code=200,
)
async def job_stream(caller: CurrentCaller, job_id: JobId) -> EventStream:
    """`job` events: at once, and on every change; `end` when it has ended, or is no
    longer for the caller to see."""
    async with caller.reading() as db:
        seen = await db.one(queries.WATCHED, job_ids=[job_id])
        if seen is None:
            raise no_such_job(job_id)
        role = first(await db.one(queries.ME))["role"]
        all_jobs = operator.sees_all(await db.rights())
    await require_streams(caller)
    # The hub reads with the rights of the DSN, and must not send more than they see:
    # approvers see the job of another role only until it is decided.
    brief = not all_jobs and seen["enqueued_by"] != role
    follower = caller.identity.follower
    return EventStream(caller.hub.job(follower, job_id, seen, brief=brief))
