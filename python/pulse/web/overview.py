"""The queue at a glance: who asks, what runs, who works, how well it is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from pulse.web import models, queries
from pulse.web.caller import Asking
from pulse.web.database import first

router = APIRouter(tags=["overview"])


@router.get("/me", response_model=models.Me)
async def me(asking: Asking) -> Any:
    """Who is asking, and what the database lets them do."""
    async with asking.reading() as db:
        found = first(await db.one(queries.ME))
        # Who was given nothing may not ask which pulse it is.
        has = await db.one(queries.VERSION) if found["rights"] else {"version": None}
    streams = await asking.may_stream()
    who = asking.identity
    said = {"user": who.user, "signed_in": who.signed_in, "streams": streams}
    return {**found, **first(has), **said}


@router.get("/status", response_model=models.Status)
async def status(asking: Asking) -> Any:
    """How full it is, who holds what, what waits."""
    async with asking.reading() as db:
        now = first(await db.one(queries.OVERVIEW, lane=None))
    limited = [lane for lane in now["lanes"] if lane["max_slots"] is not None]
    slots = sum(lane["max_slots"] for lane in limited)
    filled = sum(lane["used"] for lane in limited)
    return {
        **now,
        # Lanes without a limit have no share of their slots in use.
        "utilisation": filled / slots if slots else None,
        "used": sum(lane["used"] for lane in now["lanes"]),
        "slots": slots or None,
        "depth": sum(lane["depth"] for lane in now["lanes"]),
    }


@router.get("/workers", response_model=models.Workers)
async def workers(asking: Asking) -> Any:
    async with asking.reading() as db:
        return {"workers": await db.rows(queries.WORKERS)}


@router.get("/health", response_model=models.Health)
async def health(asking: Asking) -> Any:
    async with asking.reading() as db:
        return {"checks": await db.rows(queries.HEALTH)}


@router.get("/audit", response_model=models.Audit)
async def audit(
    asking: Asking,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Any:
    """What operators did, newest first."""
    async with asking.reading() as db:
        rows = await db.rows(queries.AUDIT, limit=limit, before=before)
    more = rows[-1]["entry"] if len(rows) == limit else None
    return {"audit": rows, "next": more}
