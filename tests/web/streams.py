"""How the tests follow a stream, and wait for what they expect."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.conftest import Connection
from tests.web.conftest import API, Site

LONG = 60.0


class Events:
    """The events of one stream, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        name, limit = "", time.monotonic() + LONG
        for line in self._lines:
            # Keep-alives come in as well, so a stream that says nothing ends here.
            assert time.monotonic() < limit, "nothing was sent"
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))

    def until(self, wanted: Callable[[str, Any], bool]) -> Any:
        for name, data in self:
            if wanted(name, data):
                return data
        raise AssertionError("the stream ended before")


@contextmanager
def follow(client: httpx.Client, path: str) -> Iterator[Events]:
    with client.stream("GET", f"{API}/{path}", timeout=LONG) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.05)


def has_come(step: float, _: str, data: Any) -> bool:
    return bool(data["progress"] == step)


def has_polled(site: Site, times: int) -> bool:
    return bool(site.app.state.hub.polls >= times)


def listeners(connection: Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'pulse web listener'"
    ).fetchone()
    assert row is not None
    return int(row[0])
