"""Server-sent events: what is sent, to whom, and when it ends."""

from __future__ import annotations

from functools import partial

import pytest

from tests.chaos.bouncer import Bouncer
from tests.conftest import Connection, Database
from tests.web.calls import claim, enqueue
from tests.web.conftest import API, Serve, Site
from tests.web.streams import follow, has_come, has_polled, listeners, wait_for


def test_the_overview_comes_at_once_and_with_every_change(
    connection: Connection, site: Site
) -> None:
    with follow(site.client("viewer"), "stream") as events:
        first = events.until(lambda name, _: name == "overview")
        assert first["lanes"][0]["name"] == "default"
        assert "settings" not in first["lanes"][0]
        assert (first["running"], first["paused"]) == ([], [])
        connection.execute("SELECT pulse.drain_lane('default', 'tidy')")
        changed = events.until(
            lambda name, data: name == "overview" and data["lanes"][0]["drained"]
        )
        assert changed["paused"][0]["reason"] == "tidy"
        connection.execute("SELECT pulse.resume_lane('default')")
        job = enqueue(connection)
        claim(connection)
        running = events.until(
            lambda name, data: name == "overview" and data["running"]
        )
        assert running["running"][0]["job_id"] == job


def test_what_did_not_change_is_not_sent_again(
    connection: Connection, site: Site
) -> None:
    """Two changes, more than a second apart, are two events and no more."""
    enqueue(connection)
    with follow(site.client("viewer"), "stream") as events:
        depths = []
        for name, data in events:
            if name != "overview":
                continue
            depths.append(data["lanes"][0]["depth"])
            if len(depths) == 3:
                break
            looks = site.app.state.hub.polls
            wait_for(partial(has_polled, site, looks + 3), "a poll")
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
        wait_for(lambda: site.app.state.hub.listening, "LISTEN was not proved")
        for step in (0.25, 0.5, 0.75):
            connection.execute("SELECT pulse.progress(%s, %s, 'on it')", (lease, step))
            message = events.until(partial(has_come, step))
            assert (message["job_id"], message["progress_note"]) == (job, "on it")
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


def test_behind_a_transaction_pooler_the_look_of_each_second_serves(
    db: Database,
    connection: Connection,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bouncer = Bouncer.start(db.server.directory / f"bouncer-{db.name}", db.server)
    if bouncer is None:
        pytest.skip("PgBouncer is not here: `make setup` gets it where apt works")
    try:
        site = serve(f"{bouncer.dsn} user=postgres dbname={db.name}")
        job = enqueue(connection)
        (lease,) = claim(connection)
        with follow(site.client(), f"jobs/{job}/stream") as events:
            wait_for(lambda: "LISTEN receives nothing" in caplog.text, "it says so")
            connection.execute("SELECT pulse.progress(%s, 0.5)", (lease,))
            events.until(partial(has_come, 0.5))
        # No session of the pooler was left with a bell that rings for nobody.
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(held).fetchone() == (0,)
    finally:
        bouncer.close()
