"""The recipes of docs/fastapi.md for Litestar and Flask, in their own test clients."""

from __future__ import annotations

import threading
from typing import Any

import flask
import sqlalchemy
from flask_sqlalchemy import SQLAlchemy

import pulse
from pulse import Job, Worker
from tests.python.worker.conftest import Queue


def build(dsn: str) -> Worker:
    worker = Worker(dsn, concurrency=2)

    @worker.handle("confirm")
    async def confirm(job: Job, order: int) -> str:
        return f"order {order} is confirmed"

    return worker


def url(queue: Queue) -> sqlalchemy.URL:
    return sqlalchemy.URL.create(
        "postgresql+psycopg",
        query={
            "host": str(queue.db.server.socket),
            "port": queue.db.server.port,
            "user": "postgres",
            "dbname": queue.db.name,
        },
    )


def test_litestar(queue: Queue) -> None:
    # Here: it takes a second to import, in each process of a parallel run.
    from litestar.testing import TestClient

    from tests.python.worker.litestar_shop import make_app

    worker = build(queue.db.dsn)
    app = make_app(url(queue), worker)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert worker.ready.is_set()
        job = client.post("/orders/7").json()["job"]
        with pulse.Client(queue.db.dsn) as waiting:
            assert waiting.result(job, 20) == "order 7 is confirmed"
        assert client.post("/orders/-7").status_code == 500
    assert not worker.ready.is_set()
    # The request that failed took its job back.
    assert queue.states() == {"completed": 1}


def test_flask(queue: Queue) -> None:
    site = flask.Flask("shop")
    site.config["SQLALCHEMY_DATABASE_URI"] = url(queue)
    db = SQLAlchemy(site)
    worker = build(queue.db.dsn)

    @site.post("/orders/<int:order>")
    def take(order: int) -> dict[str, Any]:
        job = pulse.enqueue(db.session, "confirm", {"order": order})
        if order == 0:
            flask.abort(400)
        db.session.commit()
        return {"job": str(job)}

    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    client = site.test_client()
    answer = client.post("/orders/7").json
    assert answer is not None
    with pulse.Client(queue.db.dsn) as waiting:
        assert waiting.result(answer["job"], 20) == "order 7 is confirmed"
    assert client.post("/orders/0").status_code == 400
    with site.app_context():
        db.engine.dispose()
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert queue.states() == {"completed": 1}
