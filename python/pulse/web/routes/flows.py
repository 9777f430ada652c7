"""Flows: their names, the states of their jobs, and the dependencies between them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.problems import Problem
from pulse.web.routes.names import PathName
from pulse.web.schemas import responses

router = APIRouter(tags=["flows"])

MOST_NAMES = 1000


@router.get("/flows/{name}", response_model=responses.Flow)
async def flow(caller: CurrentCaller, name: PathName) -> Any:
    """One row a name, at most 1,000, in the order in which they were enqueued."""
    async with caller.reading() as db:
        nodes = await db.rows(queries.FLOW, flow=name, most=MOST_NAMES + 1)
    if not nodes:
        raise Problem(404, f"there is no flow {name!r} that you may see")
    return {
        "flow": name,
        "nodes": nodes[:MOST_NAMES],
        "more": len(nodes) > MOST_NAMES,
    }
