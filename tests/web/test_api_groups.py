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
    rule = patch(operator, "groups", lane="api", group_key="a", max_slots=4, weight=3)
    assert (rule["max_slots"], rule["weight"]) == (4, 3)
    lanes = {lane["name"]: lane["grouped"] for lane in get(operator, "lanes")["lanes"]}
    assert lanes == {"api": True, "default": False}
    assert get(operator, "groups", lane="default") == {"groups": []}


@pytest.mark.parametrize(
    "body",
    [
        {"lane": "api", "group_key": "a", "weight": 101},
        {"lane": "api", "group_key": "", "weight": 2},
        {"lane": "default", "group_key": "a", "weight": 2},
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
