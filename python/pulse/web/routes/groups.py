"""Groups of a lane: their waiting and running jobs, and settings of single groups."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from pulse.sql import operator
from pulse.web.access.caller import CurrentCaller
from pulse.web.schemas import requests, responses

router = APIRouter(tags=["groups"])


@router.get("/groups", response_model=responses.Groups)
async def groups(
    caller: CurrentCaller,
    lane: Annotated[requests.Name, Query()] = "default",
    limit: Annotated[int, requests.span("groups", "max_groups"), Query()] = 100,
) -> Any:
    """Held ones first, then those at a limit, then the longest lines."""
    async with caller.reading() as db:
        wanted = {"lane": lane, "keys": None, "max_groups": limit}
        return {"groups": await db.rows(operator.GROUPS, **wanted)}


@router.patch("/groups", response_model=responses.Group)
async def set_group(caller: CurrentCaller, group: requests.GroupSettings) -> Any:
    """Only what is given changes; it holds from the next claim on."""
    async with caller.writing() as db:
        await db.rows(operator.SET_GROUP, **requests.values(group))
        wanted = {"lane": group.lane, "keys": [group.group_key], "max_groups": 1}
        return await db.one(operator.GROUPS, **wanted)
