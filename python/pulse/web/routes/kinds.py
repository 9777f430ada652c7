"""Kinds: their counts and settings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.routes.names import PathName
from pulse.web.schemas import requests, responses

router = APIRouter(tags=["kinds"])


@router.get("/kinds", response_model=responses.Kinds)
async def kinds(caller: CurrentCaller) -> Any:
    """Kinds that are set, in line, running, scheduled or taken by a live worker."""
    async with caller.reading() as db:
        return {"kinds": await db.rows(queries.KINDS, kind=None)}


@router.get("/kinds/{name}", response_model=responses.Kind)
async def kind(caller: CurrentCaller, name: PathName) -> Any:
    """One of them; a kind of which nothing is known has the defaults."""
    async with caller.reading() as db:
        return await db.one(queries.KINDS, kind=name) or responses.Kind(name=name)


@router.patch("/kinds/{name}", response_model=responses.Kind)
async def set_kind(
    caller: CurrentCaller, name: PathName, settings: requests.KindSettings
) -> Any:
    """Only what is given changes."""
    async with caller.writing() as db:
        await db.rows(queries.SET_KIND, kind=name, **requests.values(settings))
        return await db.one(queries.KINDS, kind=name)
