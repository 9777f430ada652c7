"""The queue at a glance: the user, running jobs, workers, health, audit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from pulse.sql import operator
from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.database import first
from pulse.web.schemas import requests, responses

router = APIRouter(tags=["overview"])


@router.get("/me", response_model=responses.Me)
async def me(caller: CurrentCaller) -> Any:
    """The user, the role and what the database allows it."""
    async with caller.reading() as db:
        found = first(await db.one(queries.ME))
        rights = await db.rights()
        # A role without any access may not read the version.
        has = await db.one(queries.VERSION) if rights else {"version": None}
    streams = await caller.may_stream()
    identity = caller.identity
    user = {"user": identity.user, "signed_in": identity.signed_in}
    return {**found, **first(has), **user, "streams": streams, "rights": rights}


@router.get("/verbs", response_model=responses.Verbs)
async def verbs(caller: CurrentCaller) -> Any:
    """Every function of schema pulse: what it takes, which levels may call it, and on
    which states of jobs it acts."""
    async with caller.reading() as db:
        return {"verbs": await caller.database.verbs(db)}


@router.get("/status", response_model=responses.Status)
async def status(caller: CurrentCaller) -> Any:
    """Slots in use, running jobs, pauses, ready jobs."""
    async with caller.reading() as db:
        now = first(await db.one(queries.OVERVIEW, lane=None))
    limited = [lane for lane in now["lanes"] if lane["max_slots"] is not None]
    slots = sum(lane["max_slots"] for lane in limited)
    filled = sum(lane["used"] for lane in limited)
    return {
        **now,
        # Of the lanes with a limit: the others have no share to speak of.
        "utilisation": filled / slots if slots else None,
        "used": sum(lane["used"] for lane in now["lanes"]),
        "slots": slots or None,
        "depth": sum(lane["depth"] for lane in now["lanes"]),
    }


@router.get("/workers", response_model=responses.Workers)
async def workers(caller: CurrentCaller) -> Any:
    async with caller.reading() as db:
        return {"workers": await db.rows(queries.WORKERS)}


@router.get("/health", response_model=responses.Health)
async def health(caller: CurrentCaller) -> Any:
    async with caller.reading() as db:
        return {"checks": await db.rows(operator.HEALTH)}


@router.get("/summary", response_model=responses.Summary)
async def summary(caller: CurrentCaller) -> Any:
    """What is wrong, and how many jobs are in each state."""
    async with caller.reading() as db:
        return await db.one(queries.SUMMARY, **queries.SUMMARY_VALUES)


# How far back, and how much of it is one point: 60, 144 and 168 of them.
RANGES = {"1h": ("1 hour", 60), "24h": ("24 hours", 600), "7d": ("7 days", 3600)}


@router.get("/history", response_model=responses.History)
async def history(
    caller: CurrentCaller,
    range: Literal["1h", "24h", "7d"] = "1h",
    lane: Annotated[requests.Name | None, Query()] = None,
    kind: Annotated[requests.Name | None, Query()] = None,
) -> Any:
    """What happened over time, of everything or of a lane, a kind or both."""
    since, seconds = RANGES[range]
    values = {"since": since, "step": f"{seconds} seconds", "lane": lane, "kind": kind}
    async with caller.reading() as db:
        rows = await db.rows(queries.HISTORY, **values)
    return {"step_seconds": seconds, "rows": rows}


@router.get("/audit", response_model=responses.Audit)
async def audit(
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Any:
    """What operators did, newest first."""
    async with caller.reading() as db:
        rows = await db.rows(queries.AUDIT, limit=limit, before=before)
    more = rows[-1]["entry"] if len(rows) == limit else None
    return {"audit": rows, "next": more}
