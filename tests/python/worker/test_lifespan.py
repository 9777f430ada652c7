"""A worker inside an application: it starts and stops with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

import pulse
from pulse import Job, Worker, errors
from tests.conftest import Database
from tests.python.worker.conftest import Queue


def build(dsn: str) -> Worker:
    worker = Worker(dsn, concurrency=2)

    @worker.handle("add")
    async def add(job: Job, a: int, b: int) -> int:
        return a + b

    return worker


def serve(app: Any, act: Callable[[], object] = lambda: None) -> Any:
    """What a server does with an application; act runs while it serves."""

    async def main() -> Any:
        async with app.router.lifespan_context(app) as state:
            await asyncio.to_thread(act)
        return state

    return asyncio.run(main())


@pytest.mark.parametrize("make", [FastAPI, Starlette])
def test_it_is_the_lifespan_of_an_application(
    queue: Queue, make: Callable[..., Any]
) -> None:
    worker = build(queue.db.dsn)
    app = make(lifespan=worker.lifespan)

    def act() -> None:
        job = queue.enqueue("add", {"a": 1, "b": 2})
        with pulse.Client(queue.db.dsn) as client:
            assert client.result(job, 20) == 3

    # Twice: tests start an application many times.
    for _ in range(2):
        serve(app, act)
        assert not worker.ready.is_set()
    waiting = queue.enqueue("add", {"a": 1, "b": 2})
    assert queue.state(waiting) == "ready"


def test_it_stands_beside_a_lifespan_of_one_s_own(queue: Queue) -> None:
    worker = build(queue.db.dsn)
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        async with worker.running() as same:
            assert same is worker
            seen.append("up")
            yield {"state": "kept"}
        seen.append("down")

    job = queue.enqueue("add", {"a": 1, "b": 2})
    state = serve(
        FastAPI(lifespan=lifespan), lambda: queue.until_state(job, "completed")
    )
    assert state == {"state": "kept"}
    assert seen == ["up", "down"]


def test_what_keeps_it_from_starting_keeps_the_application_from_it(
    new_db: Callable[..., Database],
) -> None:
    app = FastAPI(lifespan=build(new_db(product=None).dsn).lifespan)
    with pytest.raises(errors.NotInstalled):
        serve(app)


def test_an_error_of_the_block_stops_it(queue: Queue) -> None:
    worker = build(queue.db.dsn)

    async def main() -> None:
        async with worker.running():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert not worker.ready.is_set()


def test_a_server_that_does_not_answer_is_no_reason_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulse.worker.worker.START_WITHIN", 0.05)
    serve(FastAPI(lifespan=build("host=/nowhere").lifespan))
