"""A served database, a tab that looks at it, and workers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

import pulse
from tests.conftest import Connection, Database
from tests.python.worker.conftest import Running
from tests.web.browser import chrome
from tests.web.browser.chrome import Beside, Served, Tab
from tests.web.conftest import Serve

Work = Callable[..., pulse.Worker]


# Not for the whole run: while it is there, asyncio.run() of other tests would fail.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chrome.PROGRAM is None:
        pytest.skip(chrome.MISSING)
    with chrome.chromium() as running:
        yield running


@pytest.fixture
def site(db: Database, serve: Serve) -> Served:
    return Beside(serve(db.dsn).url + "/")


@pytest.fixture
def tab(browser: Browser, site: Served) -> Iterator[Tab]:
    opened = Tab(browser, site)
    yield opened
    opened.close()
    assert opened.complaints == []


@pytest.fixture
def sql(db: Database) -> Connection:
    return db.connect()


@pytest.fixture
def work(db: Database) -> Iterator[Work]:
    """work({"kind": handler}) starts a worker that ends with the test."""
    started: list[Running] = []

    def start(handlers: dict[str, Callable[..., Any]], **options: Any) -> pulse.Worker:
        worker = pulse.Worker(db.dsn, lease_for="3 seconds", **options)
        for kind, handler in handlers.items():
            worker.handle(kind)(handler)
        running = Running(worker)
        started.append(running)
        running.wait_ready()
        return worker

    yield start
    for running in started:
        running.worker.stop(0)
    for running in started:
        running.join()
