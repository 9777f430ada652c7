"""What the tests of the API say to the queue and to the app."""

from __future__ import annotations

from typing import Any

import httpx

from tests.conftest import Connection
from tests.web.conftest import API


def enqueue(connection: Connection, kind: str = "mail", options: str = "") -> str:
    row = connection.execute(
        f"SELECT pulse.enqueue(%s{options and ', ' + options})::text".encode(), (kind,)
    ).fetchone()
    assert row is not None
    return str(row[0])


def claim(connection: Connection, worker: str = "w1", jobs: int = 1) -> list[int]:
    rows = connection.execute(
        "SELECT lease FROM pulse.claim_batch(%s, max_jobs => %s)", (worker, jobs)
    )
    return [row[0] for row in rows]


def die(connection: Connection, kind: str, error: str) -> str:
    job = enqueue(connection, kind)
    rows = connection.execute(
        "SELECT lease FROM pulse.claim_batch('w1', kinds => %s)", ([kind],)
    ).fetchall()
    connection.execute("SELECT pulse.fail(%s, %s, fatal => true)", (rows[0][0], error))
    return job


def get(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(f"{API}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(f"{API}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def patch(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.patch(f"{API}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
