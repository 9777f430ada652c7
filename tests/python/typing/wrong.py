"""Mistakes that type checkers find: one in each marked line. test_typing.py counts."""

from __future__ import annotations

import psycopg

import pulse
from pulse import Job


@pulse.task("with-job")
def with_job(job: Job, to: str) -> int:
    return job.id


@pulse.task("without-job")
def without_job(to: str) -> int:
    return len(to)


def enqueue(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    with_job.enqueue(conn)  # wrong: no argument
    with_job.enqueue(conn, 5)  # wrong: a number
    without_job.enqueue(conn, too="x")  # wrong: a name
    text: str = with_job.enqueue(conn, "x").result()  # wrong: a number
    print(text)


async def enqueue_async(conn: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    with_job.enqueue(conn, "x")  # wrong: no await
    pulse.enqueue(conn, "with-job")  # wrong: no await
