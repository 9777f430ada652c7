"""Lanes and pauses over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import BaseModel

from pulse.web.schemas import requests
from tests.conftest import Connection
from tests.web.calls import claim, enqueue, get, patch, post
from tests.web.conftest import API


def test_lanes_show_slots_depth_and_settings(
    connection: Connection, operator: httpx.Client
) -> None:
    for _ in range(3):
        enqueue(connection)
    connection.execute("SELECT pulse.set_lane('default', 4, lease_for => '90 s')")
    claim(connection)
    (lane,) = get(operator, "lanes")["lanes"]
    assert (lane["max_slots"], lane["used"], lane["depth"]) == (4, 1, 2)
    assert lane["oldest_ready_seconds"] >= 0
    assert lane["settings"] == {"max_slots": 4, "lease_for": 90, "enabled": True}
    assert (lane["paused_by"], lane["recent"]) == (None, [])


def test_recent_is_finished_jobs_a_minute_oldest_first(
    connection: Connection, operator: httpx.Client
) -> None:
    enqueue(connection)
    connection.execute(
        "INSERT INTO pulse_internal.stat (total, lane, kind, at, enqueued, started, "
        "completed, failed, dead, retried, cancelled, reaped, wait_seconds, "
        "wait_counts, run_seconds, run_counts, ready) "
        "SELECT true, 'default', '', now() - n * interval '30 s', 0, 0, "
        "sum(40 - n) OVER w, 0, count(*) OVER w, 0, count(*) OVER w, 0, 0, '{}', 0, "
        "'{}', 1 FROM generate_series(0, 40) AS n WINDOW w AS (ORDER BY n DESC)"
    )
    (lane,) = get(operator, "lanes")["lanes"]
    assert lane["recent"] == [2 * (42 - n) for n in range(29, -1, -1)]


def test_a_lane_is_changed_by_its_members(operator: httpx.Client) -> None:
    lane = patch(operator, "lanes/web", max_slots=7, lease_for=45, retain_dead="2 days")
    assert lane["max_slots"] == 7
    assert lane["settings"]["lease_for"] == 45
    assert lane["settings"]["retain_dead"] == 2 * 86400
    # A number that Python would write as 1e-05.
    lane = patch(operator, "lanes/web", retain_dead=0.00001)
    assert lane["settings"]["retain_dead"] == 0.00001
    lane = patch(operator, "lanes/web", enabled=False, reason="moving")
    assert (lane["enabled"], lane["max_slots"]) == (False, 7)


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("set_lane", requests.LaneSettings),
        ("set_kind", requests.KindSettings),
        ("set_group", requests.GroupSettings),
    ],
)
def test_every_setting_has_a_member(
    verb: str, body: type[BaseModel], connection: Connection
) -> None:
    named = (
        "SELECT array(SELECT a ->> 'name' FROM jsonb_array_elements(v.arguments) AS a)"
        " FROM pulse.verbs() AS v WHERE v.verb = %s"
    )
    row = connection.execute(named, [verb]).fetchone()
    assert row is not None
    # Those of the address.
    assert {*row[0]} - {"name", "kind"} == {*body.model_fields}


def test_a_lane_and_a_group_have_rates(operator: httpx.Client) -> None:
    lane = patch(
        operator,
        "lanes/web",
        rate=9,
        rate_per=60,
        group_rate=2,
        fair=True,
        group_rate_per="1 s",
    )
    assert lane["grouped"]
    assert lane["settings"]["rate_per"] == 60
    assert lane["settings"]["group_rate"] == 2
    group = {"lane": "web", "group_key": "a", "rate": 5, "rate_per": 1}
    assert operator.patch(f"{API}/groups", json=group).status_code == 200
    half = operator.patch(f"{API}/lanes/other", json={"rate": 9})
    assert (half.status_code, half.json()["sqlstate"]) == (422, "PU002")


@pytest.mark.parametrize(
    "body", [{"max_slots": -1}, {"slots": 3}, {"lease_for": "soon"}, {"lease_for": 0}]
)
def test_a_bad_setting_is_refused(operator: httpx.Client, body: Any) -> None:
    answer = operator.patch(f"{API}/lanes/web", json=body)
    assert answer.status_code == 422
    assert get(operator, "lanes")["lanes"][0]["settings"] == {}


@pytest.mark.parametrize("name", ["default", "a/b", "r&d 100%", "ünïcode", "<b>"])
def test_a_lane_of_any_name_is_drained_and_resumed(
    operator: httpx.Client, name: str
) -> None:
    path = f"lanes/{httpx.URL('x', params={'x': name}).query.decode()[2:]}".replace(
        "+", "%20"
    )
    lane = post(operator, f"{path}/drain", reason="tidying", new=True)
    assert (lane["name"], lane["drained"]) == (name, True)
    assert lane["paused_by"] == ["drain (tidying)"]
    lane = post(operator, f"{path}/resume")
    assert (lane["name"], lane["drained"]) == (name, False)


def test_ranges_of_durations_are_in_the_schema(operator: httpx.Client) -> None:
    document = operator.get(f"{API}/openapi.json").json()
    lane = document["components"]["schemas"]["LaneSettings"]["properties"]
    number = lane["poll_interval"]["anyOf"][0]
    assert (number["minimum"], number["maximum"]) == (0.01, 3600)
    refused = operator.patch(f"{API}/lanes/web", json={"poll_interval": 3601})
    assert refused.status_code == 422
    assert "less than or equal to 3600" in refused.json()["detail"]
    # The longest that the database takes too: ten years of months of 30 days.
    longest = lane["retain_dead"]["anyOf"][0]["maximum"]
    patch(operator, "lanes/web", retain_dead=longest)
    refused = operator.patch(f"{API}/lanes/web", json={"retain_dead": longest + 1})
    assert refused.status_code == 422


def test_a_whole_number_may_have_a_point(operator: httpx.Client) -> None:
    answer = operator.patch(
        f"{API}/lanes/web",
        content='{"max_slots": 3.0}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.json()["max_slots"] == 3
    assert operator.patch(f"{API}/lanes/web", json={"max_slots": 1.5}).is_error


def test_a_slash_in_a_name_is_no_part_of_the_address(
    connection: Connection, operator: httpx.Client
) -> None:
    """PATCH lanes/mail/resume once set a lane that is called mail/resume."""
    answer = operator.patch(f"{API}/lanes/mail/resume", json={"max_slots": 3})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    query = "SELECT FROM pulse.lanes WHERE name = 'mail/resume'"
    assert connection.execute(query).rowcount == 0
    lane = patch(operator, "lanes/mail%2Fresume", max_slots=3)
    assert (lane["name"], lane["max_slots"]) == ("mail/resume", 3)
    lane = post(operator, "lanes/mail%2Fresume/drain")
    assert (lane["name"], lane["drained"]) == ("mail/resume", True)


@pytest.mark.parametrize("name", ["%", "%2F", "a%25b", "100%/2", "/", "//"])
def test_a_name_with_a_percent_sign_or_slashes_arrives_as_it_is(
    operator: httpx.Client, name: str
) -> None:
    assert patch(operator, f"lanes/{quote(name, '')}", max_slots=1)["name"] == name
    assert get(operator, f"kinds/{quote(name, '')}")["name"] == name


def test_pauses_nest_by_holder(operator: httpx.Client) -> None:
    assert post(operator, "pause", holder="deploy", reason="r1")["changed"]
    held = post(operator, "pause", holder="backup", lane="web", new=True)
    assert [(h["holder"], h["lane"]) for h in held["paused"]] == [
        ("deploy", None),
        ("backup", "web"),
    ]
    assert get(operator, "status")["paused"] == held["paused"]
    assert not post(operator, "resume", holder="nobody")["changed"]
    assert post(operator, "resume", holder="deploy")["changed"]
    assert len(post(operator, "resume", holder="backup", lane="web")["paused"]) == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("lanes/nolane/drain", {}),
        ("lanes/nolane/resume", {}),
        ("pause", {"holder": "deploy", "lane": "nolane"}),
        ("resume", {"holder": "deploy", "lane": "nolane"}),
    ],
)
def test_a_lane_that_nothing_names_is_refused(
    operator: httpx.Client, path: str, body: Any
) -> None:
    answer = operator.post(f"{API}/{path}", json=body)
    assert answer.status_code == 404
    assert answer.json()["title"] == "there is no lane 'nolane'"
    assert answer.json()["sqlstate"] == "PU013"
    assert [lane["name"] for lane in get(operator, "lanes")["lanes"]] == ["default"]
    verbs = {entry["verb"] for entry in get(operator, "audit")["audit"]}
    assert verbs == {"grant_access"}
