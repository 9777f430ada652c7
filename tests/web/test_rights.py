"""The database decides: viewers change nothing, strangers see nothing.

Every operation is read from the OpenAPI document, so a new route is covered too.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import Connection, Database
from tests.web.conftest import API, ROLES, Operation, Site, operations


@pytest.fixture
def known(db: Database) -> dict[str, str]:
    """Names that exist, for the paths: a job, a lane, a flow, a schedule."""
    connection = db.connect()
    enqueue = "SELECT pulse.enqueue('mail', flow => 'default')::text"
    row = connection.execute(enqueue).fetchone()
    connection.execute("SELECT pulse.schedule('default', 'mail', every => '1 day')")
    assert row is not None
    return {"job_id": row[0], "name": "default"}


def everything(connection: Connection) -> list[Any]:
    """The whole state, as text: jobs, lanes, holds, schedules and what was done."""
    found = []
    for query in (
        "SELECT job_id, state, lane, priority FROM pulse.jobs",
        "SELECT name, settings, enabled, drained, paused_by FROM pulse.lanes",
        "SELECT * FROM pulse.pause_status()",
        "SELECT name, paused_at FROM pulse.schedules",
        "SELECT count(*) FROM pulse.audit",
    ):
        found += connection.execute(query.encode()).fetchall()
    return found


def test_a_viewer_sees_everything_and_changes_nothing(
    db: Database, site: Site, known: dict[str, str]
) -> None:
    viewer, connection = site.client("viewer"), db.connect()
    before = everything(connection)
    changing = [each for each in operations(site.app) if each.changes]
    assert len({str(each) for each in changing}) >= 15
    for each in changing:
        answer = each.call(viewer, **known)
        assert answer.status_code == 403, f"{each}: {answer.text}"
        assert answer.json()["sqlstate"] == "42501", f"{each}: {answer.text}"
    for each in operations(site.app):
        if not each.changes and not each.streams:
            assert each.call(viewer, **known).status_code == 200, str(each)
    assert everything(connection) == before


@pytest.mark.parametrize("access", [each for each in ROLES if each != "nobody"])
def test_rights_are_those_that_the_database_names(
    db: Database, site: Site, access: str
) -> None:
    rights = site.client(access).get(f"{API}/me").json()["rights"]
    named = db.connect(user=ROLES[access]).execute("SELECT pulse.my_access()")
    assert rights == [row[0] for row in named]


def test_who_was_given_nothing_learns_that(site: Site) -> None:
    found = site.client("nobody").get(f"{API}/me").json()
    assert (found["role"], found["rights"]) == (ROLES["nobody"], [])


def test_an_operator_may_do_all_of_it(site: Site, known: dict[str, str]) -> None:
    """The other half: what a viewer is refused is refused for want of rights only."""
    client = site.client("operator")
    for each in operations(site.app):
        if not each.streams:
            answer = each.call(client, **known)
            assert answer.status_code not in (401, 403), f"{each}: {answer.text}"
            assert answer.status_code < 500, f"{each}: {answer.text}"


def refused(answer: httpx.Response) -> bool:
    body = answer.json()
    return answer.status_code == 401 and body["status"] == 401 and len(body) == 6


@pytest.mark.parametrize("credentials", ["none", "a wrong token", "a wrong cookie"])
def test_a_stranger_sees_nothing(
    site: Site, known: dict[str, str], credentials: str
) -> None:
    headers = {
        "none": {},
        "a wrong token": {"Authorization": "Bearer nobody-gave-me-this-token"},
        "a wrong cookie": {"Cookie": "pulse_web=nobody-gave-me-this-cookie"},
    }[credentials]
    stranger = site.client(**headers, **{"X-Pulse": "1"})
    for each in [
        *operations(site.app),
        Operation("GET", f"{API}/openapi.json", None),
        Operation("GET", "/static/app.js", None),
        Operation("GET", "/nowhere", None),
    ]:
        answer = each.call(stranger, **known)
        assert refused(answer), f"{each}: {answer.status_code} {answer.text[:200]}"
        assert answer.headers["www-authenticate"] == "Bearer"
    page = stranger.get("/")
    assert page.status_code == 401
    assert "<form" in page.text


def test_who_was_given_nothing_learns_only_who_they_are(
    site: Site, known: dict[str, str]
) -> None:
    nobody = site.client("nobody")
    for each in operations(site.app):
        answer = each.call(nobody, **known)
        if each.path == f"{API}/me":
            assert answer.json()["role"] == ROLES["nobody"]
            assert answer.json()["rights"] == []
        else:
            assert answer.status_code == 403, f"{each}: {answer.text}"
            assert answer.json()["sqlstate"] == "42501", f"{each}: {answer.text}"


def test_rights_are_those_of_the_database(site: Site) -> None:
    rights = {
        access: set(site.client(access).get(f"{API}/me").json()["rights"])
        for access in ROLES
    }
    assert rights == {
        "viewer": {"viewer"},
        "operator": {"viewer", "approver", "operator"},
        "approver": {"approver"},
        "producer": {"producer"},
        "nobody": set(),
    }


def test_a_producer_sees_and_cancels_its_own_jobs_only(
    db: Database, site: Site
) -> None:
    of_others = db.connect().execute("SELECT pulse.enqueue('mail')::text").fetchone()
    mine = (
        db.connect(user=ROLES["producer"])
        .execute("SELECT pulse.enqueue('mail')::text")
        .fetchone()
    )
    assert of_others is not None
    assert mine is not None
    producer = site.client("producer")
    page = producer.get(f"{API}/jobs").json()
    assert [job["job_id"] for job in page["jobs"]] == [mine[0]]
    assert producer.get(f"{API}/jobs/{of_others[0]}").status_code == 404
    assert producer.post(f"{API}/jobs/{of_others[0]}/cancel").status_code == 404
    assert producer.get(f"{API}/jobs/{mine[0]}").json()["audit"] == []
    done = producer.post(f"{API}/jobs/{mine[0]}/cancel").json()
    assert done["state"] == "cancelled"


def test_an_approver_hears_the_state_of_what_it_no_longer_sees(
    db: Database, site: Site
) -> None:
    row = (
        db.connect()
        .execute("SELECT pulse.enqueue('pay', requires_approval => true)::text")
        .fetchone()
    )
    assert row is not None
    approver = site.client("approver")
    assert len(approver.get(f"{API}/jobs").json()["jobs"]) == 1
    done = approver.post(f"{API}/jobs/{row[0]}/approve", json={"reason": "seen"})
    assert done.json() == {"job_id": row[0], "state": "ready"}


def test_the_audit_names_the_role_of_the_token(db: Database, site: Site) -> None:
    site.client("operator").post(f"{API}/lanes/default/drain", json={"reason": "why"})
    last = "SELECT who, verb, reason FROM pulse.audit ORDER BY entry DESC LIMIT 1"
    row = db.connect().execute(last).fetchone()
    assert row == (ROLES["operator"], "drain_lane", "why")


def test_a_role_that_is_not_there_is_reported_as_such(db: Database, serve: Any) -> None:
    from pulse.web import Tokens

    token = "a-token-for-a-role-that-is-gone"
    client = serve(db.dsn, tokens=Tokens({token: "no_such_role"})).client(
        Authorization=f"Bearer {token}"
    )
    answer = client.get(f"{API}/me")
    assert answer.status_code == 403
    assert "no_such_role" in answer.json()["title"]
