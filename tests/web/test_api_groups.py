"""Groups of a lane over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import Connection
from tests.web.calls import get, patch
from tests.web.conftest import API, Site


@pytest.fixture
def grouped(connection: Connection) -> Connection:
    connection.execute("SELECT pulse.set_lane('api', group_slots => 1)")
    connection.execute(
        "SELECT pulse.enqueue('k', lane => 'api', group_key => g.key)"
        " FROM (VALUES ('a'), ('a'), ('b/c')) AS g (key)"
    )
    connection.execute("SELECT pulse.claim_batch('w', 'api', 1)")
    return connection


def test_groups_show_who_waits_and_who_is_held(
    grouped: Connection, operator: httpx.Client
) -> None:
    change = {"lane": "api", "group_key": "b/c", "enabled": False, "reason": "abuse"}
    held = patch(operator, "groups", **change)
    assert (held["state"], held["reason"], held["waiting"]) == ("held", "abuse", 1)
    first, second = get(operator, "groups", lane="api")["groups"]
    assert first == held
    assert (second["group_key"], second["state"]) == ("a", "full")
    assert (second["waiting"], second["running"], second["max_slots"]) == (1, 1, 1)
    rule = patch(operator, "groups", lane="api", group_key="a", max_slots=4)
    assert rule["max_slots"] == 4
    lanes = {lane["name"]: lane["grouped"] for lane in get(operator, "lanes")["lanes"]}
    assert lanes == {"api": True, "default": False}
    assert get(operator, "groups", lane="default") == {"groups": []}


def test_rates_of_lanes_groups_and_kinds(
    grouped: Connection, operator: httpx.Client
) -> None:
    slots = {"group_slots": 0, "group_rate": 1, "group_rate_per": 90}
    lane = patch(operator, "lanes/api", rate=100, rate_per="1 min", **slots)
    rates = {"rate": 100, "rate_per": 60, "group_rate": 1, "group_rate_per": 90}
    assert rates.items() <= lane["settings"].items()
    assert lane["grouped"]
    grouped.execute("SELECT pulse.enqueue('k', lane => 'api', group_key => 'a')")
    grouped.execute("SELECT pulse.claim_batch('w', 'api', 9)")
    (held, other) = get(operator, "groups", lane="api")["groups"]
    assert (held["group_key"], held["state"], held["rate"]) == ("a", "rate", 1)
    assert (held["free_at"] is not None, other["state"]) == (True, "running")
    rule = {"rate": 5, "rate_per": "1 s"}
    own = patch(operator, "groups", lane="api", group_key="a", **rule)
    assert (own["rate"], own["rate_per"], own["state"]) == (5, 1, "waiting")
    kind = patch(operator, "kinds/k", rate=7, rate_per="2 min")
    assert (kind["settings"]["rate"], kind["settings"]["rate_per"]) == (7, "00:02:00")
    half = operator.patch(f"{API}/kinds/other", json={"rate": 7})
    assert half.status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {"lane": "api", "group_key": "a", "max_slots": 10_001},
        {"lane": "api", "group_key": "", "max_slots": 2},
        {"lane": "default", "group_key": "a", "max_slots": 2},
    ],
)
def test_a_bad_rule_is_refused(
    grouped: Connection, operator: httpx.Client, body: Any
) -> None:
    assert operator.patch(f"{API}/groups", json=body).status_code == 422


def test_who_may_only_look_changes_nothing(grouped: Connection, site: Site) -> None:
    viewer = site.client("viewer")
    change = {"lane": "api", "group_key": "a", "enabled": False}
    assert viewer.patch(f"{API}/groups", json=change).status_code == 403
    assert len(get(viewer, "groups", lane="api")["groups"]) == 2
