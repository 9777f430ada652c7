"""Several databases: one page of all, and the page of each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulse.web import Tokens, fleet
from tests.conftest import Connection, Database
from tests.web.conftest import API, ROLES, TOKENS, Serve, Site, grant_roles

AWAY = "host=127.0.0.1 port=1 dbname=app"


@pytest.fixture
def two(new_db: Callable[..., Database]) -> list[Connection]:
    """Nodes 1 and 2; the second has a running job."""
    made = [new_db().connect() for _ in range(2)]
    for number, connection in enumerate(made, 1):
        connection.execute("SELECT pulse.set_node(%s)", (number,))
        connection.execute("SELECT pulse.set_lane('default', max_slots => 5)")
        connection.execute("SELECT pulse.enqueue('k'), pulse.enqueue('k')")
    made[1].execute("SELECT pulse.claim_batch('w')")
    return made


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"host=127.0.0.1 port={listening.getsockname()[1]} dbname=mute"


def dsns(two: list[Connection]) -> list[str]:
    return [connection.info.dsn for connection in two]


@pytest.fixture
def site(serve: Serve, two: list[Connection]) -> Site:
    return serve(dsns(two))


def test_nodes_by_themselves_and_lanes_added_up(site: Site) -> None:
    found = site.client().get(f"{API}/nodes").json()
    assert [each["node"] for each in found["nodes"]] == [1, 2]
    assert [each["depth"] for each in found["nodes"]] == [2, 1]
    assert [each["problem"] for each in found["nodes"]] == [None, None]
    [lane] = found["lanes"]
    assert [(each["node"], each["used"]) for each in lane["nodes"]] == [(1, 0), (2, 1)]
    assert (lane["all"]["used"], lane["all"]["depth"]) == (1, 3)
    assert lane["all"]["max_slots"] == 10
    assert [each["node"] for each in found["running"]] == [2]


def test_a_node_that_does_not_answer_is_shown_and_breaks_nothing(
    serve: Serve, two: list[Connection], mute: str
) -> None:
    client = serve([mute, AWAY, *dsns(two)]).client()
    for _ in range(2):  # The second time nobody waits for them.
        found = client.get(f"{API}/nodes").json()
        mute_one, away, *others = found["nodes"]
        assert mute_one["problem"]
        assert away["problem"]
        assert (mute_one["node"], mute_one["depth"]) == (None, None)
        assert [each["problem"] for each in others] == [None, None]
        assert found["lanes"][0]["all"]["depth"] == 3
    assert client.get("/node/2/admin/workers/status").json()["used"] == 1
    families = metrics(client.get("/metrics").text)
    up = {s.labels["place"]: s.value for s in families["pulse_node_up"]}
    assert sorted(up.values()) == [0, 0, 1, 1]
    assert up["127.0.0.1:1/app"] == 0


def test_one_that_answers_again_is_there_again(
    serve: Serve, two: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(dsns(two)).client()
    monkeypatch.setattr(fleet, "PATIENCE", 1.0)
    with two[1].transaction():
        two[1].execute(
            "LOCK TABLE pulse_internal.body, pulse_internal.lease, pulse_internal.ready"
        )
        found = client.get(f"{API}/nodes").json()["nodes"]
        assert found[1]["problem"] == "no answer within 1 seconds"
        assert found[0]["problem"] is None
    while client.get(f"{API}/nodes").json()["nodes"][1]["problem"]:
        pass


def test_two_may_ask_at_the_same_time(
    serve: Serve, two: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = serve(dsns(two))
    monkeypatch.setattr(fleet, "PATIENCE", 30.0)

    def ask() -> list[Any]:
        found = site.client().get(f"{API}/nodes").json()["nodes"]
        return [each["problem"] for each in found]

    def waiting() -> int:
        query = (
            "SELECT FROM pg_stat_activity"
            " WHERE datname = %s AND wait_event_type = 'Lock'"
        )
        return two[0].execute(query, [two[1].info.dbname]).rowcount

    with ThreadPoolExecutor() as pool:
        asked = []
        with two[1].transaction():
            two[1].execute(
                "LOCK TABLE pulse_internal.body, pulse_internal.lease, "
                "pulse_internal.ready"
            )
            for n in (1, 2):
                asked.append(pool.submit(ask))
                while waiting() < n and not asked[-1].done():
                    pass
        assert [each.result() for each in asked] == [[None, None]] * 2


def metrics(text: str) -> dict[str, Any]:
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found), "a name comes twice"
    return {family.name: family.samples for family in found}


def test_every_series_has_the_node(site: Site) -> None:
    families = metrics(site.client().get("/metrics").text)
    for name, samples in families.items():
        if name != "pulse_node_up":
            assert {sample.labels["node"] for sample in samples} <= {"1", "2"}, name
    ready = {s.labels["node"]: s.value for s in families["pulse_lane_ready"]}
    assert ready == {"1": 2, "2": 1}


def test_a_job_id_leads_to_its_node(site: Site) -> None:
    client = site.client(**{"X-Pulse": "1"})
    second = (2 << 43) + 2
    assert client.get(f"{API}/jobs/{second}").json()["state"] == "ready"
    cancelled = client.post(f"{API}/jobs/{second}/cancel", json={})
    assert cancelled.json()["state"] == "cancelled"
    lost = client.get(f"{API}/jobs/{(7 << 43) + 1}")
    assert lost.status_code == 404
    assert lost.json()["title"] == "no node 7 answers"


def test_each_node_has_its_whole_page(site: Site) -> None:
    client = site.client()
    assert 'src="static/nodes.js"' in client.get("/").text
    assert 'src="static/app.js"' in client.get("/node/1/").text
    assert client.get("/node/1/static/app.js").status_code == 200
    assert client.get("/node/1/metrics").text.count("pulse_node_info{") == 1
    assert client.get("/node/9/").status_code == 404


def test_two_with_one_number_are_told_apart(
    serve: Serve, two: list[Connection]
) -> None:
    two[1].execute("SELECT pulse.set_node(1)")
    found = serve(dsns(two)).client().get(f"{API}/nodes").json()
    first, second = found["nodes"]
    assert first["problem"] is None
    assert "both node 1" in second["problem"]
    assert "pulse.set_node(" in second["hint"]
    assert found["lanes"][0]["all"]["depth"] == 2


def test_rights_and_login_are_those_of_each_database(
    serve: Serve, two: list[Connection]
) -> None:
    for connection in two:
        grant_roles(connection)
    two[1].execute("SELECT pulse.revoke_access(%s, 'viewer')", (ROLES["viewer"],))
    tokens = Tokens({TOKENS[each]: ROLES[each] for each in ("viewer", "operator")})
    site = serve(dsns(two), tokens=tokens)
    for path in (f"{API}/nodes", "/node/1/", "/node/1/admin/workers/me", "/metrics"):
        assert site.client().get(path).status_code == 401
    page = site.client().get("/node/1/")
    assert "login.js" in page.text
    assert site.client().get("/node/1/static/login.js").status_code == 200
    one, other = site.client("viewer").get(f"{API}/nodes").json()["nodes"]
    assert one["problem"] is None
    assert "permission denied" in other["problem"]
    client = site.client()
    signed = client.post("/node/2/login", json={"token": TOKENS["operator"]})
    assert signed.status_code == 204
    assert client.get("/").status_code == 200
    assert client.get("/node/1/admin/workers/me").json()["role"] == ROLES["operator"]
    client.post("/node/1/logout", headers={"X-Pulse": "1"})
    assert client.get("/").status_code == 401
