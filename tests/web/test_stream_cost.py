"""A stream is as cheap for 200 clients as for one, and ends when it is asked to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.conftest import Database
from tests.web.conftest import API, Serve
from tests.web.process import pulse_web
from tests.web.streams import LONG, follow, listeners, wait_for
from tools.servers import Server

# Only the look of each second reads the samples of a lane.
OVERVIEW = "pulse.samples AS s"


@pytest.fixture
def logging_server(new_server: Callable[..., Server]) -> Server:
    """A server that writes down every statement and who sent it."""
    return new_server(log_statement="all", log_line_prefix="<%a> ")


def sent(server: Server) -> dict[str, list[str]]:
    """The statements so far, by application."""
    found: dict[str, list[str]] = {}
    for line in server.log.read_text().split("\n<")[1:]:
        who, _, what = line.partition("> LOG:  ")
        if what:
            found.setdefault(who, []).append(" ".join(what.split()))
    return found


async def crowd(url: str, clients: int, meanwhile: Callable[[], None]) -> None:
    """So many clients that have each been told something, while meanwhile runs."""
    host, port = url.removeprefix("http://").split(":")
    lines = []
    for _ in range(clients):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {API}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        lines.append((reader, writer))
    for reader, _ in lines:
        await asyncio.wait_for(reader.readuntil(b"event: overview"), LONG)
    await asyncio.to_thread(meanwhile)
    for _, writer in lines:
        writer.close()


def test_200_clients_cost_one_listener_and_the_statements_of_one(
    logging_server: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With each look, so that every measurement has it.
    monkeypatch.setattr("pulse.web.live.hub.SUMMARY_EVERY", 0.0)
    database = Database(logging_server, logging_server.create(product="extension"))
    watching = database.connect()
    site = serve(database.dsn)
    hub = site.app.state.hub
    costs: dict[int, list[str]] = {}

    def measure(clients: int) -> None:
        assert hub.clients == clients
        wait_for(lambda: hub.listening, "LISTEN was not proved")
        assert listeners(watching) == 1
        before = sent(logging_server)
        start = hub.polls
        wait_for(lambda: hub.polls >= start + 4, "no look")
        after = sent(logging_server)
        # Nobody else sends anything for them.
        assert len(after["pulse web"]) == len(before["pulse web"])
        new = after["pulse web listener"][len(before["pulse web listener"]) :]
        costs[clients] = new

    for clients in (1, 200):
        asyncio.run(crowd(site.url, clients, partial(measure, clients)))
        wait_for(lambda: hub.clients == 0, "clients are counted that have left")
        wait_for(lambda: listeners(watching) == 0, "it listens for nobody")

    looks = {
        clients: sum(OVERVIEW in each for each in new) for clients, new in costs.items()
    }
    assert min(looks.values()) >= 3
    # BEGIN, the settings, the look or the summary, COMMIT: the same for each, whoever
    # follows.
    for clients, new in costs.items():
        assert len(new) <= 8 * (looks[clients] + 1), new
    assert {kind(each) for each in costs[200]} == {kind(each) for each in costs[1]}
    quiet = len(sent(logging_server)["pulse web listener"])
    listens = [x for x in sent(logging_server)["pulse web listener"] if "LISTEN" in x]
    assert len([x for x in listens if "UNLISTEN" not in x]) == 2
    database.close()
    assert len(sent(logging_server)["pulse web listener"]) == quiet


def kind(statement: str) -> str:
    return statement[:60]


def test_ctrl_c_stops_it_with_streams_open(db: Database, tmp_path: Path) -> None:
    with pulse_web(tmp_path, "--dsn", db.dsn) as running:
        assert (running.role, running.database) == ("postgres", db.name)
        with httpx.Client(base_url=running.url) as client:
            with follow(client, "stream") as events:
                events.until(lambda name, _: name == "overview")
                running.process.send_signal(signal.SIGINT)
                # It ends; what was under way may still come.
                assert len(list(events)) <= 2
            assert running.process.wait(LONG) == 0
    assert "Traceback" not in (tmp_path / "stderr").read_text()
