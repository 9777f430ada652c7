"""Server-sent events: live, and as cheap for 200 clients as for one."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import PULSE, environment
from tests.conftest import Connection, Database
from tests.web.calls import claim, enqueue
from tests.web.conftest import API, Serve, Site
from tools.servers import Server

LONG = 60.0
OVERVIEW = "pulse.stats AS s"


class Events:
    """The events of one stream, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        name, limit = "", time.monotonic() + LONG
        for line in self._lines:
            # Keep-alives come in as well, so a stream that says nothing ends here.
            assert time.monotonic() < limit, "nothing was told"
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


def looked(site: Site, times: int) -> bool:
    return bool(site.app.state.hub.looks >= times)


def listeners(connection: Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'pulse web listener'"
    ).fetchone()
    assert row is not None
    return int(row[0])


# -- what is told -------------------------------------------------------------------


def test_the_overview_comes_at_once_and_with_every_change(
    connection: Connection, site: Site
) -> None:
    with follow(site.client("viewer"), "stream") as events:
        first = events.until(lambda name, _: name == "overview")
        assert first["lanes"][0]["name"] == "default"
        assert "settings" not in first["lanes"][0]
        assert (first["running"], first["paused"]) == ([], [])
        connection.execute("SELECT pulse.drain_lane('default', 'tidy')")
        changed = events.until(lambda _, data: data["lanes"][0]["drained"])
        assert changed["paused"][0]["reason"] == "tidy"
        connection.execute("SELECT pulse.resume_lane('default')")
        job = enqueue(connection)
        claim(connection)
        running = events.until(lambda _, data: data["running"])
        assert running["running"][0]["job_id"] == job


def test_what_did_not_change_is_not_told_again(
    connection: Connection, site: Site
) -> None:
    """Two changes, more than a second apart, are two events and no more."""
    enqueue(connection)
    with follow(site.client("viewer"), "stream") as events:
        depths = []
        for name, data in events:
            assert name == "overview"
            depths.append(data["lanes"][0]["depth"])
            if len(depths) == 3:
                break
            looks = site.app.state.hub.looks
            wait_for(partial(looked, site, looks + 3), "a look")
            enqueue(connection)
    assert depths == [1, 2, 3]


def test_progress_of_a_job_is_followed_to_its_end(
    connection: Connection, site: Site
) -> None:
    job = enqueue(connection)
    with follow(site.client("viewer"), f"jobs/{job}/stream") as events:
        stream = iter(events)
        assert next(stream)[1]["state"] == "ready"
        (lease,) = claim(connection)
        events.until(lambda _, data: data["state"] == "running")
        wait_for(lambda: site.app.state.hub.hears, "LISTEN was not proved")
        for step in (0.25, 0.5, 0.75):
            connection.execute("SELECT pulse.progress(%s, %s, 'on it')", (lease, step))
            told = events.until(partial(has_come, step))
            assert (told["job_id"], told["progress_note"]) == (job, "on it")
        connection.execute("SELECT pulse.complete(%s, '1')", (lease,))
        last = events.until(lambda name, _: name == "end")
        assert last["state"] == "completed"
        # The stream ends with it.
        assert list(events) == []


def test_a_job_that_has_ended_or_is_deleted_ends_its_stream(
    connection: Connection, site: Site
) -> None:
    job = enqueue(connection)
    connection.execute("SELECT pulse.cancel(%s)", (int(job),))
    with follow(site.client("viewer"), f"jobs/{job}/stream") as events:
        assert [name for name, _ in events] == ["job", "end"]
    other = enqueue(connection)
    with follow(site.client("viewer"), f"jobs/{other}/stream") as events:
        connection.execute("SELECT pulse.cancel(%s)", (int(other),))
        connection.execute("SELECT pulse.delete_job(%s)", (int(other),))
        assert list(events)[-1][0] == "end"


def test_a_stream_survives_the_loss_of_the_database(
    connection: Connection, site: Site
) -> None:
    with follow(site.client("viewer"), "stream") as events:
        events.until(lambda name, _: name == "overview")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'pulse web listener'"
        )
        assert events.until(lambda name, _: name == "trouble")["detail"]
        assert events.until(lambda name, _: name == "overview")["lanes"]


def test_rights_are_asked_for_when_the_stream_begins(
    connection: Connection, site: Site
) -> None:
    job = enqueue(connection)
    for access, path, status in (
        ("producer", "stream", 403),
        ("approver", "stream", 403),
        ("nobody", "stream", 403),
        ("producer", f"jobs/{job}/stream", 404),
    ):
        answer = site.client(access).get(f"{API}/{path}")
        assert answer.status_code == status, (access, path)
    assert listeners(connection) == 0


def test_a_login_role_without_rights_streams_nothing(
    db: Database, site: Site, serve: Serve
) -> None:
    """Streams are read by the role of the DSN; it never lends rights it has not."""
    dsn = db.dsn.replace("user=postgres", "user=web_nobody")
    client = serve(dsn).client()
    answer = client.get(f"{API}/stream")
    assert answer.status_code == 403
    assert client.get(f"{API}/me").json()["streams"] is False


# -- what it costs ------------------------------------------------------------------


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
    logging_server: Server, serve: Serve
) -> None:
    database = Database(logging_server, logging_server.create(product="extension"))
    watching = database.connect()
    site = serve(database.dsn)
    hub = site.app.state.hub
    costs: dict[int, list[str]] = {}

    def measure(clients: int) -> None:
        assert hub.clients == clients
        wait_for(lambda: hub.hears, "LISTEN was not proved")
        assert listeners(watching) == 1
        before = sent(logging_server)
        start = hub.looks
        wait_for(lambda: hub.looks >= start + 4, "no look")
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
    # BEGIN, the settings, the look, COMMIT: the same for each look, whoever follows.
    for clients, new in costs.items():
        assert len(new) <= 4 * (looks[clients] + 1), new
    assert {kind(each) for each in costs[200]} == {kind(each) for each in costs[1]}
    quiet = len(sent(logging_server)["pulse web listener"])
    listens = [x for x in sent(logging_server)["pulse web listener"] if "LISTEN" in x]
    assert len([x for x in listens if "UNLISTEN" not in x]) == 2
    database.close()
    assert len(sent(logging_server)["pulse web listener"]) == quiet


def kind(statement: str) -> str:
    return statement[:60]


# -- ending -------------------------------------------------------------------------


def test_ctrl_c_stops_it_with_streams_open(db: Database, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PULSE, "web", "--port", "0", "--json", "--dsn", db.dsn],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while "}" not in said:
            said += process.stdout.readline()
        told = json.loads(said)
        assert (told["role"], told["database"]) == ("postgres", db.name)
        with httpx.Client(base_url=told["url"]) as client:
            with follow(client, "stream") as events:
                events.until(lambda name, _: name == "overview")
                process.send_signal(signal.SIGINT)
                assert list(events) == []
            assert process.wait(LONG) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
