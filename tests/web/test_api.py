"""The queue at a glance over HTTP, metrics, and what is said when all is not well."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Connection, Database
from tests.web.calls import claim, enqueue, get, post
from tests.web.conftest import API, Serve, Site


def test_status_says_how_full_it_is(
    connection: Connection, operator: httpx.Client
) -> None:
    assert get(operator, "status")["utilisation"] is None
    connection.execute("SELECT pulse.set_lane('default', 4)")
    for _ in range(3):
        enqueue(connection)
    enqueue(connection, "k", "lane => 'boundless'")
    claim(connection, "busy", 2)
    status = get(operator, "status")
    assert (status["utilisation"], status["used"], status["slots"]) == (0.5, 2, 4)
    assert (status["depth"], status["workers"]) == (2, 1)
    assert {job["worker"] for job in status["running"]} == {"busy"}
    assert [lane["name"] for lane in status["lanes"]] == ["boundless", "default"]


def test_a_worker_is_live_for_two_minutes(
    connection: Connection, operator: httpx.Client
) -> None:
    """As pulse.workers has it: the page, the metrics and why() count the same ones."""
    connection.execute("SELECT pulse.hello('w1')")
    for seconds, live in ((100, True), (121, False)):
        connection.execute(
            "UPDATE pulse_internal.worker SET seen_at = clock_timestamp() - %s * "
            "'1s'::interval",
            [seconds],
        )
        assert get(operator, "status")["workers"] == int(live)
        assert [w["live"] for w in get(operator, "workers")["workers"]] == [live]


def test_workers_schedules_health_and_audit_are_listed(
    connection: Connection, operator: httpx.Client
) -> None:
    connection.execute("SELECT pulse.hello('w1', '{default}', '{mail}')")
    connection.execute("SELECT pulse.schedule('nightly', 'report', every => '1 hour')")
    (worker,) = get(operator, "workers")["workers"]
    assert (worker["worker"], worker["kinds"]) == ("w1", ["mail"])
    (schedule,) = get(operator, "schedules")["schedules"]
    assert (schedule["name"], schedule["every"]) == ("nightly", 3600)
    paused = post(operator, "schedules/nightly/pause", reason="holiday")
    assert paused["pause_reason"] == "holiday"
    assert post(operator, "schedules/nightly/resume")["paused_at"] is None
    assert operator.post(f"{API}/schedules/x/pause").json()["sqlstate"] == "PU005"
    assert get(operator, "schedules/nightly/runs")["runs"] == []
    unknown = operator.get(f"{API}/schedules/nope/runs")
    assert unknown.status_code == 404
    assert unknown.json()["title"] == "there is no schedule nope"
    assert {check["status"] for check in get(operator, "health")["checks"]} <= {
        *("ok", "warn", "fail")
    }
    page = get(operator, "audit", limit=1)
    assert page["audit"][0]["verb"] == "resume_schedule"
    below = get(operator, "audit", limit=1, before=page["next"])
    assert below["audit"][0]["verb"] == "pause_schedule"


def test_metrics_are_what_prometheus_reads(
    connection: Connection, operator: httpx.Client
) -> None:
    name = 'back\\slash "quoted"\nlane'
    connection.execute("SELECT pulse.enqueue('k', lane => %s)", (name,))
    connection.execute("SELECT pulse.drain_lane('default', 'why')")
    answer = operator.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("lane")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["pulse_lane_ready", name] == 1
    assert samples["pulse_lane_ready", "default"] == 0
    assert samples["pulse_lane_held", "default"] == 1
    assert samples["pulse_holds", None] == 1
    assert ("pulse_lane_slots", name) not in samples
    assert 'pulse_node_info{node="0",state="unset"} 1.0' in answer.text


def test_the_database_being_away_is_said_and_survived(
    db: Database, operator: httpx.Client
) -> None:
    assert operator.get(f"{API}/me").status_code == 200
    db.server.psql(
        "postgres",
        *("-c", f"ALTER DATABASE {db.name} ALLOW_CONNECTIONS false"),
        *(
            "-c",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{db.name}'",
        ),
    )
    answer = operator.get(f"{API}/me")
    assert answer.status_code == 503
    assert answer.json()["hint"]
    db.server.psql("postgres", "-c", f"ALTER DATABASE {db.name} ALLOW_CONNECTIONS true")
    for _ in range(100):
        answer = operator.get(f"{API}/me")
        if answer.status_code == 200:
            break
    assert answer.status_code == 200


def test_unknown_paths_and_methods_are_problems(operator: httpx.Client) -> None:
    for method, path, status in (
        ("GET", f"{API}/nothing", 404),
        ("GET", f"{API}/jobs/1/nothing", 404),
        ("PUT", f"{API}/lanes", 405),
        ("DELETE", f"{API}/lanes", 405),
        ("GET", "/static/nothing.js", 404),
        ("GET", f"{API}/status/", 404),
        ("GET", "/metrics/", 404),
    ):
        answer = operator.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (f"{API}/lanes", "GET"),
        (f"{API}/kinds/mail", "GET, PATCH"),
        (f"{API}/jobs/1", "DELETE, GET"),
        (f"{API}/schedules/nightly", "DELETE, PUT"),
        (f"{API}/openapi.json", "GET, HEAD"),
        ("/", "GET, HEAD"),
        ("/static/app.js", "GET, HEAD"),
    ],
)
def test_a_405_lists_every_method_of_its_path(
    operator: httpx.Client, path: str, allowed: str
) -> None:
    answer = operator.request("POST", path, headers={"X-Pulse": "1"})
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_without_pulse_the_hint_is_to_install_it(
    new_db: Callable[..., Database], serve: Serve
) -> None:
    client = serve(new_db(product=None).dsn).client()
    for path in ("lanes", "health", "jobs"):
        answer = client.get(f"{API}/{path}")
        assert answer.status_code == 503, path
        assert "run `pulse install`" in answer.json()["hint"]


def test_the_page_is_served(site: Site) -> None:
    page = site.client("viewer").get("/")
    assert page.status_code == 200
    assert 'src="static/app.js"' in page.text
    head = site.client("viewer").head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == page.headers["content-length"]
    script = site.client("viewer").get("/static/app.js")
    assert "javascript" in script.headers["content-type"]
