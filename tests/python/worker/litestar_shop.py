"""A shop on Litestar as docs/fastapi.md has it: test_frameworks.py imports it late."""

from __future__ import annotations

from collections.abc import AsyncIterator

import sqlalchemy
from litestar import Litestar, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import pulse


@post("/orders/{order:int}")
async def take(
    order: FromPath[int], session: NamedDependency[AsyncSession]
) -> dict[str, str]:
    job = await pulse.enqueue(session, "confirm", {"order": order})
    if order < 0:
        raise ValueError("no such order")
    return {"job": str(job)}


def make_app(url: sqlalchemy.URL, worker: pulse.Worker) -> Litestar:
    engine = create_async_engine(url)
    sessions = async_sessionmaker(engine)

    async def open_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session, session.begin():
            yield session

    return Litestar(
        [take],
        dependencies={"session": Provide(open_session)},
        lifespan=[worker.lifespan],
        on_shutdown=[engine.dispose],
    )
