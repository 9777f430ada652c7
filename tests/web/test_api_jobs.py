"""Jobs over HTTP: found, looked at, acted on one by one and by filter."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import Connection
from tests.web.calls import claim, die, enqueue, get, patch, post
from tests.web.conftest import API


def test_pages_of_jobs_follow_each_other(
    connection: Connection, operator: httpx.Client
) -> None:
    ids = [enqueue(connection, f"k{n % 2}") for n in range(7)][::-1]
    seen, before = [], None
    while True:
        page = get(operator, "jobs", limit=3, **({"before": before} if before else {}))
        seen += [job["job_id"] for job in page["jobs"]]
        before = page["next"]
        if before is None:
            break
    assert seen == ids
    page = get(operator, "jobs", kind="k1", limit=3)
    assert [job["job_id"] for job in page["jobs"]] == ids[1::2]


def test_jobs_are_found_by_each_filter(
    connection: Connection, operator: httpx.Client
) -> None:
    enqueue(connection)
    options = "lane => 'web', priority => 5, tags => '{red}', group_key => 'g'"
    wanted = enqueue(connection, "report", options)
    dead = die(connection, "charge", "card declined 42")
    for query, found in (
        ({"lane": "web"}, [wanted]),
        ({"kind": "report"}, [wanted]),
        ({"tag": "red"}, [wanted]),
        ({"group_key": "g"}, [wanted]),
        ({"priority_above": 4}, [wanted]),
        ({"state": ["dead", "completed"]}, [dead]),
        ({"worker": "w1"}, [dead]),
        ({"error_like": "%declined%"}, [dead]),
        ({"kind": "report", "lane": "default"}, []),
        ({"older_than": "1 day"}, []),
        ({"enqueued_by": "nobody"}, []),
    ):
        page = get(operator, "jobs", **query)
        assert [job["job_id"] for job in page["jobs"]] == found, query
    assert len(get(operator, "jobs", newer_than="3600 s")["jobs"]) == 3
    assert len(get(operator, "jobs", priority_below=5)["jobs"]) == 2


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 201},
        {"before": "x"},
        {"before": 2**63},
        {"state": "sleeping"},
        {"older_than": "a while"},
        {"priority_above": 2**31},
        {"error_like": "\\"},
        {"lane": "a\0b"},
    ],
)
def test_a_query_that_makes_no_sense_is_refused(
    operator: httpx.Client, query: Any
) -> None:
    answer = operator.get(f"{API}/jobs", params=query)
    assert answer.status_code == 422
    assert answer.json()["status"] == 422


def test_one_job_tells_its_life(connection: Connection, operator: httpx.Client) -> None:
    job = enqueue(connection)
    connection.execute("SELECT pulse.fail(%s, 'first', '0 s')", claim(connection))
    connection.execute("SELECT pulse.reprioritize(%s, 9, 'vip')", (int(job),))
    found = get(operator, f"jobs/{job}")
    assert (found["job_id"], found["failures"], found["priority"]) == (job, 1, 9)
    (attempt,) = found["attempts_log"]
    assert (attempt["attempt"], attempt["error"]) == (1, "first")
    (entry,) = found["audit"]
    assert (entry["verb"], entry["reason"]) == ("reprioritize", "vip")
    assert found["why"][0]["reason"]
    assert get(operator, f"jobs/{job}/why")["why"][0]["position"] == 1


def test_a_job_that_is_not_there_is_404_with_its_code(operator: httpx.Client) -> None:
    for path in ("jobs/99", "jobs/99/why", "jobs/99/stream"):
        answer = operator.get(f"{API}/{path}")
        assert answer.status_code == 404, path
        assert answer.json()["sqlstate"] == "PU004"
    assert operator.delete(f"{API}/jobs/99").json()["sqlstate"] == "PU004"
    assert operator.get(f"{API}/jobs/99999999999999999999").status_code == 422


def test_a_running_job_is_asked_to_stop_or_forced(
    connection: Connection, operator: httpx.Client
) -> None:
    job = enqueue(connection)
    claim(connection)
    asked = post(operator, f"jobs/{job}/cancel", reason="no longer needed")
    assert asked["state"] == "running"
    assert asked["cancel_by"] is not None
    (running,) = get(operator, "status")["running"]
    assert running["cancel_reason"] == "no longer needed"
    assert post(operator, f"jobs/{job}/cancel", force=True)["state"] == "cancelled"


def test_a_job_is_approved_rejected_retried_moved_and_deleted(
    connection: Connection, operator: httpx.Client
) -> None:
    asks = "requires_approval => true"
    one, two = (enqueue(connection, "pay", asks) for _ in range(2))
    assert post(operator, f"jobs/{one}/approve")["state"] == "ready"
    assert (
        post(operator, f"jobs/{two}/reject", reason="too much")["state"] == "cancelled"
    )
    again = operator.post(f"{API}/jobs/{two}/approve", json={})
    assert (again.status_code, again.json()["sqlstate"]) == (409, "PU105")
    assert again.json()["hint"]
    assert post(operator, f"jobs/{two}/retry")["state"] == "awaiting_approval"
    assert post(operator, f"jobs/{two}/approve")["state"] == "ready"
    assert post(operator, f"jobs/{two}/move", lane="web")["lane"] == "web"
    assert patch(operator, f"jobs/{two}/priority", priority=-3)["priority"] == -3
    assert operator.delete(f"{API}/jobs/{two}").status_code == 409
    post(operator, f"jobs/{two}/cancel")
    gone = operator.delete(f"{API}/jobs/{two}", params={"reason": "by mistake"})
    assert (gone.status_code, gone.content) == (204, b"")
    assert operator.get(f"{API}/jobs/{two}").status_code == 404


def test_dead_letters_are_retried_by_filter_after_a_dry_run(
    connection: Connection, operator: httpx.Client
) -> None:
    ids = [die(connection, "charge", "timeout") for _ in range(3)]
    other = die(connection, "mail", "no such address")
    found = get(operator, "dead")
    assert [job["job_id"] for job in found["jobs"]] == [other, *ids[::-1]]
    assert found["jobs"][0]["last_error"] == "no such address"
    order = {"verb": "retry", "filter": {"state": "dead", "error_like": "time%"}}
    assert post(operator, "jobs/bulk", **order) == {
        "done": 3,
        "remaining": 0,
        "dry_run": True,
    }
    assert len(get(operator, "dead")["jobs"]) == 4
    done = post(operator, "jobs/bulk", **order, dry_run=False, max_jobs=2)
    assert done == {"done": 2, "remaining": 1, "dry_run": False}
    assert len(get(operator, "dead", lane="default")["jobs"]) == 2


def test_every_bulk_verb_acts(connection: Connection, operator: httpx.Client) -> None:
    def bulk(verb: str, filter: Any, **more: Any) -> int:
        body = {"verb": verb, "filter": filter, "dry_run": False, **more}
        return int(post(operator, "jobs/bulk", **body)["done"])

    for _ in range(2):
        enqueue(connection, "pay", "requires_approval => true")
    enqueue(connection)
    (first, second) = (
        job["job_id"] for job in get(operator, "jobs", kind="pay")["jobs"]
    )
    assert bulk("approve", {"job_ids": [first]}) == 1
    assert bulk("reject", {"job_ids": [second]}, reason="no") == 1
    assert bulk("reprioritize", {"kind": "mail"}, priority=8) == 1
    assert bulk("move", {"kind": ["mail", "pay"]}, lane="web") == 2
    assert bulk("cancel", {"all": True}) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"verb": "cancel", "filter": {}}, "PU006"),
        ({"verb": "cancel", "filter": {"colour": "red"}}, "PU006"),
        ({"verb": "retry", "filter": {"state": "ready"}}, "PU006"),
        ({"verb": "move", "filter": {"all": True}}, None),
        ({"verb": "reprioritize", "filter": {"all": True}}, None),
        ({"verb": "delete", "filter": {"all": True}}, None),
        ({"verb": "cancel", "filter": {"all": True}, "max_jobs": 0}, None),
        ({"verb": "cancel", "filter": {"lane": "a\0"}}, "22P05"),
    ],
)
def test_a_bulk_order_that_is_not_understood_does_nothing(
    operator: httpx.Client, body: Any, code: str | None
) -> None:
    answer = operator.post(f"{API}/jobs/bulk", json={**body, "dry_run": False})
    assert answer.status_code == 422, answer.text
    assert answer.json()["sqlstate"] == code


# -- what is asked for ------------------------------------------------------------


def test_dead_letters_take_every_filter(
    connection: Connection, operator: httpx.Client
) -> None:
    one = die(connection, "mail", "no answer")
    two = die(connection, "pay", "no money")
    assert [job["job_id"] for job in get(operator, "dead")["jobs"]] == [two, one]
    for wanted in ({"kind": "mail"}, {"error_like": "%answer%"}):
        found = get(operator, "dead", **wanted)["jobs"]
        assert [job["job_id"] for job in found] == [one], wanted
    assert get(operator, "dead", lane="other")["jobs"] == []


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (f"{API}/dead?kidn=mail", "query.kidn: no such parameter; there are: before,"),
        (f"{API}/dead?state=ready", "query.state: no such parameter"),
        (f"{API}/jobs?Lane=x", "query.Lane: no such parameter"),
        (f"{API}/jobs?lane=a&lane=b", "query.lane: given more than once"),
        (f"{API}/lanes?limit=5", "query.limit: no such parameter; there are: none"),
        (f"{API}/jobs/1024?verbose=1", "query.verbose: no such parameter"),
        ("/metrics?lane=x", "query.lane: no such parameter"),
    ],
)
def test_a_parameter_that_is_not_known_is_named(
    operator: httpx.Client, path: str, wrong: str
) -> None:
    answer = operator.get(path)
    assert answer.status_code == 422
    assert wrong in answer.json()["detail"]


def test_a_change_with_an_unknown_parameter_changes_nothing(
    connection: Connection, operator: httpx.Client
) -> None:
    job = enqueue(connection)
    answer = operator.post(f"{API}/jobs/{job}/cancel?force=true", json={})
    assert answer.status_code == 422
    assert get(operator, f"jobs/{job}")["state"] == "ready"
    assert len(get(operator, "jobs", state=["ready", "dead"])["jobs"]) == 1
