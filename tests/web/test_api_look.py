"""What the overview, the dead letters, kinds and schedules are made of, over HTTP."""

from __future__ import annotations

import httpx

from tests.conftest import Connection
from tests.web.calls import die, enqueue, get, patch
from tests.web.conftest import API, Site


def test_the_summary_counts_and_says_what_is_wrong(
    connection: Connection, site: Site
) -> None:
    die(connection, "charge", "Timeout after 30 s")
    die(connection, "charge", "Timeout after 5 s")
    enqueue(connection, "mail")
    connection.execute("SELECT pulse.schedule('late', 'mail', every => '1 hour')")
    connection.execute(
        "UPDATE pulse_internal.schedule SET next_at = now() - interval '1 h'"
    )
    found = get(site.client("viewer"), "summary")
    assert found["counts"]["dead"] == {"jobs": 2, "more": False}
    assert found["counts"]["ready"] == {"jobs": 1, "more": False}
    assert [(each["kind"], each["jobs"]) for each in found["dead"]] == [("charge", 2)]
    assert [(each["name"], each["late"]) for each in found["schedules"]] == [
        ("late", True)
    ]
    assert {"dead_jobs", "last_tick"} <= {p["check_name"] for p in found["problems"]}
    assert all(problem["status"] != "ok" for problem in found["problems"])


def test_dead_letters_are_read_page_by_page_by_time_of_death(
    connection: Connection, operator: httpx.Client
) -> None:
    jobs = [die(connection, "charge", f"no {n}") for n in range(5)]
    # The first to be enqueued died last, and two of them at once.
    connection.execute(
        "UPDATE pulse_internal.finished SET finished_at = now() - job / 2 * "
        "interval '1 minute'"
    )
    seen: list[str] = []
    before: dict[str, str] = {}
    while True:
        page = get(operator, "dead", limit=2, **before)
        seen += [job["job_id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
    ordered = connection.execute(
        "SELECT job_id::text FROM pulse.dead ORDER BY finished_at DESC, job_id DESC"
    ).fetchall()
    assert seen == [row[0] for row in ordered]
    assert sorted(seen) == sorted(jobs)
    assert operator.get(f"{API}/dead?before=yesterday").status_code == 422
    assert operator.get(f"{API}/dead?payload=x").status_code == 422


def test_dead_letters_are_grouped_by_kind_and_error(
    connection: Connection, operator: httpx.Client
) -> None:
    for error in ("row 1 of 7", "row 12 of 7", "no such file"):
        die(connection, "import", error)
    groups = get(operator, "dead/groups", kind="import")["groups"]
    assert [(group["error"], group["jobs"]) for group in groups] == [
        ("row 12 of 7", 2),
        ("no such file", 1),
    ]
    assert get(operator, "dead/groups", kind="other")["groups"] == []


def test_history_has_a_row_for_each_step(
    connection: Connection, operator: httpx.Client
) -> None:
    enqueue(connection, "mail")
    connection.execute("SELECT pulse.tick()")
    for name, step in (("1h", 60), ("24h", 600), ("7d", 3600)):
        found = get(operator, "history", range=name)
        assert found["step_seconds"] == step
        assert len(found["rows"]) in (61, 145, 169)
        assert sum(row["enqueued"] for row in found["rows"]) == 1
    other = get(operator, "history", kind="other")["rows"]
    assert sum(row["enqueued"] for row in other) == 0


def test_a_kind_is_shown_and_set(
    connection: Connection, operator: httpx.Client
) -> None:
    enqueue(connection, "a/b")
    assert [kind["name"] for kind in get(operator, "kinds")["kinds"]] == ["a/b"]
    assert get(operator, "kinds/a%2Fb")["ready_in"] == ["default"]
    assert get(operator, "kinds/none")["settings"] == {}
    after = patch(operator, "kinds/a%2Fb", max_attempts=9, backoff_base=2.5)
    assert after["settings"] == {"max_attempts": 9, "backoff_base": "00:00:02.5"}


def test_a_flow_has_a_row_for_each_name(
    connection: Connection, operator: httpx.Client
) -> None:
    first = connection.execute(
        "SELECT pulse.enqueue('fetch', flow => 'a/b')"
    ).fetchone()
    assert first is not None
    connection.execute(
        "SELECT pulse.enqueue_many('part', '{1,2}', flow => 'a/b', after => %s)",
        [list(first)],
    )
    found = get(operator, "flows/a%2Fb")
    assert (found["flow"], found["more"]) == ("a/b", False)
    fetch, part = found["nodes"]
    assert (fetch["first_job"], fetch["ready"]) == (str(first[0]), 1)
    assert (part["jobs"], part["blocked"], part["after"]) == (2, 2, ["fetch"])
    (job, _) = get(operator, "jobs", flow="a/b", state="blocked")["jobs"]
    assert (job["flow"], job["waits_for"]) == ("a/b", str(first[0]))
    assert operator.get(f"{API}/flows/none").status_code == 404


def test_a_schedule_is_put_and_removed(
    connection: Connection, operator: httpx.Client
) -> None:
    path = f"{API}/schedules/a%2Fb"
    body = {"kind": "mail", "every": 900, "payload": {"to": "all"}, "tags": ["x"]}
    made = operator.put(path, json=body).json()
    assert (made["name"], made["every"], made["options"]) == (
        "a/b",
        900,
        {"tags": ["x"]},
    )
    changed = operator.put(path, json={"kind": "mail", "cron": "0 3 * * *"}).json()
    assert (changed["every"], changed["cron"]) == (None, "0 3 * * *")
    for wrong in ({"cron": "x"}, {}, {"every": "1 h", "at": "2040-01-01"}):
        refused = operator.put(path, json={"kind": "mail", **wrong})
        assert refused.status_code == 422, refused.text
        assert refused.json()["sqlstate"].startswith("PU")
    assert operator.delete(path).status_code == 204
    assert operator.delete(path).json()["sqlstate"] == "PU005"
    assert connection.execute("SELECT FROM pulse.schedules").rowcount == 0


def test_lanes_come_with_their_defaults(operator: httpx.Client) -> None:
    defaults = get(operator, "lanes")["defaults"]
    assert (defaults["lease_for"], defaults["max_batch"]) == (30, 100)
