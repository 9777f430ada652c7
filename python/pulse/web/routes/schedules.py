"""Schedules: make, change, remove, pause and resume them, and list their runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from psycopg.types.json import Jsonb

from pulse.sql import operator
from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.database import Session, first
from pulse.web.problems import Problem
from pulse.web.routes.names import PathName
from pulse.web.schemas import requests, responses
from pulse.web.schemas.schedules import Schedule, ScheduleRuns, Schedules

router = APIRouter(tags=["schedules"])


@router.get("/schedules", response_model=Schedules)
async def schedules(caller: CurrentCaller) -> Any:
    async with caller.reading() as db:
        return {"schedules": await db.rows(queries.SCHEDULES, name=None)}


@router.get("/schedules/{name}/runs", response_model=ScheduleRuns)
async def runs(
    caller: CurrentCaller,
    name: PathName,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Any:
    """Its occurrences, newest first: fired with a job, or skipped and why."""
    async with caller.reading() as db:
        runs = await db.rows(operator.SCHEDULE_RUNS, name=name, limit=limit)
        # One that was removed has left its runs behind.
        if not runs and not await is_known(db, name):
            raise Problem(404, f"there is no schedule {name}")
        return {"runs": runs}


@router.put("/schedules/{name}", response_model=Schedule)
async def schedule(
    caller: CurrentCaller, name: PathName, wanted: requests.NewSchedule
) -> Any:
    """Make a schedule, or put this one in the place of that of the same name."""
    values = {**requests.values(wanted), "payload": Jsonb(wanted.payload)}
    if wanted.headers is not None:
        values["headers"] = Jsonb(wanted.headers)
    async with caller.writing() as db:
        await db.rows(queries.SCHEDULE, name=name, **values)
        return await db.one(queries.SCHEDULES, name=name)


@router.delete("/schedules/{name}", status_code=204, response_model=None)
async def unschedule(caller: CurrentCaller, name: PathName) -> None:
    """Remove a schedule. Its run history stays for 90 days; its jobs still run."""
    async with caller.writing() as db:
        await db.rows(operator.UNSCHEDULE, name=name)


async def is_known(db: Session, name: str) -> bool:
    return bool(first(await db.one(operator.SCHEDULE_IS_KNOWN, name=name))["known"])


@router.post("/schedules/{name}/pause", response_model=Schedule)
async def pause(
    caller: CurrentCaller,
    name: PathName,
    why: Annotated[requests.WithReason, Body()] = requests.NO_REASON,
) -> Any:
    async with caller.writing() as db:
        await db.rows(operator.PAUSE_SCHEDULE, name=name, reason=why.reason)
        return await db.one(queries.SCHEDULES, name=name)


@router.post("/schedules/{name}/run", response_model=responses.NewJob)
async def run(
    caller: CurrentCaller,
    name: PathName,
    why: Annotated[requests.WithReason, Body()] = requests.NO_REASON,
) -> Any:
    """Enqueue its job now; its next occurrence stays the same."""
    async with caller.writing() as db:
        return await db.one(operator.RUN_SCHEDULE_NOW, name=name, reason=why.reason)


@router.post("/schedules/{name}/resume", response_model=Schedule)
async def resume(caller: CurrentCaller, name: PathName) -> Any:
    async with caller.writing() as db:
        await db.rows(operator.RESUME_SCHEDULE, name=name)
        return await db.one(queries.SCHEDULES, name=name)
