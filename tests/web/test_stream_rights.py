"""A stream sends nobody what they could not have asked for."""

from __future__ import annotations

from functools import partial

import pytest

from pulse.web import Tokens
from tests.conftest import Connection, Database
from tests.web.calls import enqueue, get
from tests.web.conftest import API, ROLES, TOKENS, Serve, Site
from tests.web.streams import follow, has_polled, wait_for

SECRET = "card 4111"


def test_an_approver_learns_how_it_was_decided_and_no_more(
    connection: Connection, site: Site
) -> None:
    job = enqueue(connection, "pay", "requires_approval => true")
    approver = site.client("approver")
    with follow(approver, f"jobs/{job}/stream") as events:
        assert events.until(lambda name, _: name == "job")["kind"] == "pay"
        connection.execute("SELECT pulse.approve(%s)", (int(job),))
        rows = connection.execute(
            "SELECT pulse.progress(c.lease, 0.3, %s) FROM pulse.claim_batch('w1') AS c",
            (SECRET,),
        ).fetchall()
        assert len(rows) == 1
        rest = list(events)
    assert [name for name, _ in rest] == ["end"]
    assert set(rest[0][1]) == {"job_id", "state"}
    assert rest[0][1]["state"] in ("ready", "running")
    assert approver.get(f"{API}/jobs/{job}").status_code == 404


def test_what_changes_before_it_is_decided_an_approver_gets(
    connection: Connection, site: Site
) -> None:
    job = enqueue(connection, "pay", "requires_approval => true")
    with follow(site.client("approver"), f"jobs/{job}/stream") as events:
        events.until(lambda name, _: name == "job")
        connection.execute("SELECT pulse.reprioritize(%s, 9)", (int(job),))
        changed = events.until(lambda _, data: data["priority"] == 9)
        assert changed["state"] == "awaiting_approval"
        connection.execute("SELECT pulse.reject(%s, %s)", (int(job), SECRET))
        assert list(events) == [("end", {"job_id": job, "state": "cancelled"})]


def test_a_producer_follows_its_own_job_to_the_end(
    db: Database, connection: Connection, site: Site
) -> None:
    row = (
        db.connect(user=ROLES["producer"])
        .execute("SELECT pulse.enqueue('mail')::text")
        .fetchone()
    )
    assert row is not None
    with follow(site.client("producer"), f"jobs/{row[0]}/stream") as events:
        events.until(lambda name, _: name == "job")
        wait_for(partial(has_polled, site, 2), "a poll")
        connection.execute(
            "SELECT pulse.fail(c.lease, 'no', fatal => true) "
            "FROM pulse.claim_batch('w1') AS c"
        )
        last = events.until(lambda name, _: name == "end")
    assert (last["state"], last["last_error"]) == ("dead", "no")


# -- the role of the DSN ------------------------------------------------------------


def with_role(db: Database, access: str) -> str:
    """As a superuser who acts as another role from the start."""
    return f"{db.dsn} options='-c role={ROLES[access]}'"


def test_a_role_that_the_dsn_sets_holds(
    db: Database, site: Site, serve: Serve, connection: Connection
) -> None:
    client = serve(with_role(db, "viewer")).client(**{"X-Pulse": "1"})
    for _ in range(3):
        me = get(client, "me")
        assert (me["role"], me["rights"]) == (ROLES["viewer"], ["viewer"])
    assert client.post(f"{API}/lanes/default/drain").status_code == 403
    with follow(client, "stream") as events:
        assert events.until(lambda name, _: name == "overview")["lanes"]


def test_streams_are_read_with_the_role_that_the_dsn_sets(
    db: Database, site: Site, serve: Serve
) -> None:
    tokens = Tokens({TOKENS["operator"]: ROLES["operator"]})
    client = serve(with_role(db, "nobody"), tokens=tokens).client("operator")
    me = get(client, "me")
    assert (me["role"], me["streams"]) == (ROLES["operator"], False)
    answer = client.get(f"{API}/stream")
    assert answer.status_code == 403
    assert "grant_access" in answer.json()["hint"]


@pytest.mark.parametrize("access", ["viewer", "operator"])
def test_a_role_of_a_token_comes_after_that_of_the_dsn(
    db: Database, site: Site, serve: Serve, access: str
) -> None:
    tokens = Tokens({TOKENS[access]: ROLES[access]})
    client = serve(with_role(db, "nobody"), tokens=tokens).client(access)
    assert get(client, "me")["role"] == ROLES[access]
