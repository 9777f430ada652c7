"""The hub: who comes later misses nothing, and where it is deaf it looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from pulse.web import Identity, Tokens, database, queries
from pulse.web.live.hub import Hub
from pulse.web.live.mailbox import Mailbox
from pulse.web.problems import Problem
from tests.conftest import Connection, Database
from tests.web.calls import claim, enqueue
from tests.web.conftest import API, ROLES, Serve, Site
from tests.web.streams import LONG, Events, follow, has_come, has_polled, wait_for


@asynccontextmanager
async def hub_on(db: Database) -> AsyncIterator[tuple[Hub, database.Database]]:
    source = database.Database(db.dsn)
    hub = Hub(source)
    try:
        yield hub, source
    finally:
        await hub.close()
        await source.close()


async def received(mailbox: Mailbox, name: str) -> Any:
    """The data of the next event of that name."""

    async def wait() -> Any:
        while True:
            for message in (await mailbox.take(1)).decode().split("\n\n"):
                if message.startswith(f"event: {name}\n"):
                    return json.loads(message.partition("data: ")[2])

    return await asyncio.wait_for(wait(), LONG)


def test_who_saw_a_job_before_it_ended_and_follows_it_after_gets_the_end(
    db: Database, connection: Connection
) -> None:
    job = int(enqueue(connection))

    async def late() -> Any:
        async with hub_on(db) as (hub, source):

            async def look() -> Any:
                async with source.session(None, read_only=True) as session:
                    return await session.one(queries.WATCHED, job_ids=[job])

            with hub.job("one", job, await look()) as early:
                seen = await look()
                connection.execute("SELECT pulse.cancel(%s)", (job,))
                await received(early, "end")
                with hub.job("one", job, seen) as mailbox:
                    return await received(mailbox, "end")

    assert asyncio.run(late())["state"] == "cancelled"


def test_a_new_follower_gets_the_picture_of_now(db: Database) -> None:
    """Nothing changes meanwhile but the time."""

    async def come_late() -> tuple[str, str]:
        async with hub_on(db) as (hub, _):
            with hub.overview("one") as early:
                first = await received(early, "overview")
                looks = hub.polls
                while hub.polls < looks + 2:
                    assert b"event: overview" not in await early.take(0.1)
                with hub.overview("one") as late:
                    return first["at"], (await received(late, "overview"))["at"]

    first, second = asyncio.run(come_late())
    assert second > first


def test_what_came_last_is_sent_last() -> None:
    async def order() -> bytes:
        mailbox = Mailbox()
        for name, message in (
            ("overview", b"1"),
            ("trouble", b"T"),
            ("overview", b"2"),
        ):
            mailbox.put(name, message)
        return await mailbox.take(1)

    assert asyncio.run(order()) == b"T2"


def test_a_job_is_sent_again_after_trouble(connection: Connection, site: Site) -> None:
    job = enqueue(connection)
    with follow(site.client("viewer"), f"jobs/{job}/stream") as events:
        events.until(lambda name, _: name == "job")
        wait_for(lambda: site.app.state.hub.listening, "LISTEN was not proved")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'pulse web listener'"
        )
        events.until(lambda name, _: name == "trouble")
        assert events.until(lambda name, _: name == "job")["state"] == "ready"


def test_what_a_stranger_sends_on_the_channel_disturbs_nobody(
    connection: Connection, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    job = enqueue(connection)
    [lease] = claim(connection)
    with follow(site.client("viewer"), f"jobs/{job}/stream") as events:
        events.until(lambda name, _: name == "job")
        wait_for(lambda: site.app.state.hub.listening, "LISTEN was not proved")
        for payload in ("", "x", "-1", "9" * 5000):
            connection.execute("SELECT pg_notify('pulse_progress', %s)", (payload,))
        connection.execute("SELECT pulse.progress(%s, 0.5)", (lease,))
        events.until(lambda name, data: name == "job" and data["progress"] == 0.5)
    assert "a bug" not in caplog.text


def heard_until(wanted: Callable[[str, Any], bool], events: Events) -> set[str]:
    """The names of all events up to the one that is wanted."""
    names = set()
    for name, data in events:
        names.add(name)
        if wanted(name, data):
            return names
    raise AssertionError("the stream ended before")


def test_without_the_right_to_watch_the_look_of_each_second_serves(
    db: Database,
    connection: Connection,
    site: Site,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a standby, or where watch_progress() is missing: no error is shown."""
    connection.execute(
        "REVOKE EXECUTE ON FUNCTION pulse.watch_progress()"
        f" FROM {ROLES['viewer']}".encode()
    )
    deaf = serve(db.dsn.replace("user=postgres", f"user={ROLES['viewer']}"))
    job = enqueue(connection)
    (lease,) = claim(connection)
    with follow(deaf.client(), f"jobs/{job}/stream") as events:
        wait_for(partial(has_polled, deaf, 3), "a poll")
        connection.execute("SELECT pulse.progress(%s, 0.5)", (lease,))
        assert heard_until(partial(has_come, 0.5), events) == {"job"}
    assert not deaf.app.state.hub.listening
    assert caplog.text.count("LISTEN receives nothing here (permission denied") == 1


def is_drained(name: str, data: Any) -> bool:
    return name == "overview" and data["lanes"][0]["drained"]


def test_a_dsn_that_only_reads_streams_and_refuses_changes(
    db: Database, connection: Connection, serve: Serve
) -> None:
    only = serve(f"{db.dsn} options='-c default_transaction_read_only=on'")
    client = only.client(**{"X-Pulse": "1"})
    with follow(client, "stream") as events:
        events.until(lambda name, _: name == "overview")
        wait_for(partial(has_polled, only, 3), "a poll")
        connection.execute("SELECT pulse.drain_lane('default')")
        drained = heard_until(is_drained, events)
        assert drained <= {"overview", "summary"}
    refused = client.post(f"{API}/lanes/default/resume")
    assert (refused.status_code, refused.json()["sqlstate"]) == (503, "25006")


def test_one_token_takes_a_quarter_of_the_streams(db: Database) -> None:
    async def fill() -> list[tuple[int, str]]:
        refused = []
        async with hub_on(db) as (hub, _):
            with ExitStack() as streams:
                for follower, wanted in (("a", 251), ("b", 250), ("c", 250)):
                    for _ in range(wanted):
                        try:
                            streams.enter_context(hub.overview(follower))
                        except Problem as problem:
                            refused.append((problem.status, follower))
                for _ in range(251):
                    try:
                        streams.enter_context(hub.job("d", 1, {"state": "ready"}))
                    except Problem as problem:
                        refused.append((problem.status, "d"))
            # All have left, so there is room again.
            with hub.overview("a"):
                assert hub.clients == 1
        return refused

    assert asyncio.run(fill()) == [(429, "a"), (503, "d")]


def test_tokens_of_one_role_have_streams_of_their_own(db: Database) -> None:
    tokens = Tokens({"first-token-of-it": "viewer", "other-token-of-it": "viewer"})

    def identity(token: str) -> Identity:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "headers": headers}
        found = asyncio.run(tokens(HTTPConnection(scope)))
        assert found is not None
        return found

    first, other = identity("first-token-of-it"), identity("other-token-of-it")
    assert first == other
    assert first.follower != other.follower
    assert "first" not in first.follower
    assert Identity("ann").follower == "ann"
