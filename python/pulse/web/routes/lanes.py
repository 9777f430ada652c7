"""Lanes: list them, change settings, drain, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from pulse.sql import operator
from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.database import Session, first
from pulse.web.routes.names import PathName
from pulse.web.schemas import requests, responses

router = APIRouter(tags=["lanes"])


async def lane_called(db: Session, name: str) -> Any:
    """As it is shown; a lane without jobs and settings has the defaults."""
    return await db.one(queries.LANES, lane=name) or responses.Lane(name=name)


@router.get("/lanes", response_model=responses.Lanes)
async def lanes(caller: CurrentCaller) -> Any:
    async with caller.reading() as db:
        found = await db.rows(queries.LANES, lane=None)
        return {"lanes": found, **first(await db.one(queries.LANE_DEFAULTS))}


@router.patch("/lanes/{name}", response_model=responses.Lane)
async def set_lane(
    caller: CurrentCaller, name: PathName, settings: requests.LaneSettings
) -> Any:
    """Only what is given changes; it holds from the next claim on."""
    async with caller.writing() as db:
        await db.rows(queries.SET_LANE, lane=name, **requests.values(settings))
        return await lane_called(db, name)


@router.post("/lanes/{name}/drain", response_model=responses.Lane)
async def drain_lane(
    caller: CurrentCaller,
    name: PathName,
    why: Annotated[requests.Drain, Body()] = requests.NO_DRAIN,
) -> Any:
    async with caller.writing() as db:
        await db.rows(operator.DRAIN, lane=name, **why.model_dump())
        return await lane_called(db, name)


@router.post("/lanes/{name}/resume", response_model=responses.Lane)
async def resume_lane(
    caller: CurrentCaller,
    name: PathName,
    why: Annotated[requests.WithReason, Body()] = requests.NO_REASON,
) -> Any:
    async with caller.writing() as db:
        await db.rows(operator.RESUME_LANE, lane=name, reason=why.reason)
        return await lane_called(db, name)


@router.post("/pause", response_model=responses.Held)
async def pause(caller: CurrentCaller, hold: requests.Pause) -> Any:
    """Stop all claims, or those of a lane, in the name of a holder."""
    async with caller.writing() as db:
        done = first(await db.one(operator.PAUSE, **hold.model_dump()))
        return {**done, "paused": await db.rows(operator.HOLDS)}


@router.post("/resume", response_model=responses.Held)
async def resume(caller: CurrentCaller, hold: requests.Resume) -> Any:
    """Undo the pause of a holder."""
    async with caller.writing() as db:
        done = first(await db.one(operator.RESUME, holder=hold.holder, lane=hold.lane))
        return {**done, "paused": await db.rows(operator.HOLDS)}
