"""In the database that PG* lead to: the application as it is, its worker included."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from alembic import command
from alembic.config import Config
from app import app, engine


@pytest.fixture(autouse=True)
def migrated() -> Iterator[None]:
    config = Config(Path(__file__).with_name("alembic.ini"))
    command.upgrade(config, "head")
    yield
    command.downgrade(config, "base")


async def take_and_wait(order: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"status": "waiting"}
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        made = (await client.post("/orders", json=order)).json()
        for _ in range(2000):
            shown = (await client.get(f"/orders/{made['order']}")).json()
            if shown["status"] != "waiting":
                break
            await asyncio.sleep(0.01)
    await engine.dispose()
    return shown


def test_an_order_is_confirmed() -> None:
    shown = asyncio.run(take_and_wait({"email": "a@example.org"}))
    assert shown["status"] == "confirmed"
    assert "confirmed to a@example.org" in shown["result"]
