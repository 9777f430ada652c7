"""Orders: a request, a job in its transaction, a worker beside it."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import DateTime
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import pulse

# libpq reads PGHOST, PGDATABASE and the like where nothing is said.
URL = os.environ.get("DATABASE_URL", "postgresql+psycopg://")
engine = create_async_engine(URL, pool_pre_ping=True)
sessions = async_sessionmaker(engine, expire_on_commit=False)
worker = pulse.Worker(concurrency=10)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    confirmed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    job_id: Mapped[int | None]


@worker.handle("confirm")
async def confirm(job: pulse.Job, order_id: int, seconds: float = 0) -> str:
    """Confirm an order; it may run twice for one order, and writes the same."""
    await asyncio.sleep(seconds)  # A mail server would take its time.
    async with sessions.begin() as session:
        order = await session.get_one(Order, order_id)
        order.confirmed_at = datetime.now(timezone.utc)
        return f"order {order.id} is confirmed to {order.email}"


app = FastAPI(lifespan=worker.lifespan)


async def open_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]


class NewOrder(BaseModel):
    email: str
    seconds: float = 0


@app.post("/orders", status_code=201)
async def take_order(new: NewOrder, session: Session) -> dict[str, Any]:
    async with session.begin():
        order = Order(email=new.email)
        session.add(order)
        await session.flush()
        # Committed with the order, or not at all.
        payload = {"order_id": order.id, "seconds": new.seconds}
        order.job_id = await pulse.enqueue(session, "confirm", payload, max_attempts=5)
    return {"order": order.id, "job": str(order.job_id)}


@app.get("/orders/{number}")
async def show_order(number: int, session: Session) -> dict[str, Any]:
    order = await session.get(Order, number)
    if order is None or order.job_id is None:
        raise HTTPException(404)
    client = pulse.AsyncClient(session)
    try:
        result = await client.result(order.job_id, timeout=0)
    except pulse.errors.ResultTimeout:
        return {"status": "waiting", "why": await client.why(order.job_id)}
    except pulse.errors.NoResult as error:
        return {"status": "failed", "why": [str(error)]}
    return {"status": "confirmed", "result": result}
