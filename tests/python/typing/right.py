"""What users write: type checkers find nothing here. test_typing.py runs them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import psycopg
from typing_extensions import assert_type

import pulse
import pulse.testing
from pulse import Job


@dataclass
class Receipt:
    at: datetime


worker = pulse.Worker("postgresql:///app", concurrency=10)


@worker.handle("with-job", priority=3)
def with_job(job: Job, to: str, subject: str = "hi") -> Receipt:
    return Receipt(datetime.now())


@pulse.task("without-job", expires_in="5 min", headers={"tenant": 7})
def without_job(at: datetime, *notes: str) -> int:
    return len(notes)


@pulse.task("coroutine")
async def coroutine(job: Job, at: datetime) -> Receipt:
    return Receipt(at)


def enqueue(conn: psycopg.Connection[tuple[object, ...]], job: Job) -> None:
    assert_type(with_job.enqueue(conn, "a@b.c").result(), Receipt)
    assert_type(with_job(job, "a@b.c", subject="ho"), Receipt)
    assert_type(without_job.enqueue(conn, datetime.now(), "x").result(5), int)
    assert_type(without_job(datetime.now()), int)
    assert_type(coroutine.enqueue(conn, datetime.now()).result(), Receipt)
    assert_type(with_job.using(delay=5).enqueue(conn, "a").new, bool)
    assert_type(pulse.enqueue(conn, "with-job", {"to": "me"}), int)
    try:
        with pulse.Client() as client:
            assert_type(without_job.enqueue(client, datetime.now()).id, int)
    except pulse.errors.UniqueKeyTaken:
        pass


async def enqueue_async(
    conn: psycopg.AsyncConnection[tuple[object, ...]], client: pulse.AsyncClient
) -> None:
    handle = await with_job.enqueue(conn, "a@b.c")
    assert_type(await handle.result(), Receipt)
    other = await coroutine.enqueue(client, datetime.now())
    assert_type(await other.result(), Receipt)
    assert_type(await pulse.enqueue(conn, "with-job"), int)
    await coroutine(job=pulse.Job(1, 1, "default", "coroutine", {}), at=datetime.now())
