"""What the HTTP API says and checks about verbs is what pulse.verbs() says."""

from __future__ import annotations

import httpx
import pytest

from pulse import verbs
from pulse.web.schemas import requests
from tests.conftest import Connection
from tests.web.calls import get
from tests.web.conftest import ACCESS, API, Site


def test_verbs_are_those_of_the_database(
    connection: Connection, operator: httpx.Client
) -> None:
    rows = connection.execute("SELECT to_jsonb(v) FROM pulse.verbs() AS v").fetchall()
    assert get(operator, "verbs")["verbs"] == [row[0] for row in rows]


def test_verbs_are_asked_once_for_a_build(
    connection: Connection, operator: httpx.Client
) -> None:
    before = get(operator, "verbs")
    connection.execute(
        "CREATE OR REPLACE FUNCTION pulse_internal.access_levels() "
        "RETURNS TABLE (access text, object text) LANGUAGE sql IMMUTABLE "
        "SET search_path = pg_catalog, pg_temp "
        "AS $$ SELECT 'admin', 'enqueue' $$"
    )
    # The build of the SQL is the same, so the server answers what it knows.
    assert get(operator, "verbs") == before


def test_every_level_may_ask_and_nobody_else(site: Site) -> None:
    for access in ACCESS:
        assert site.client(access).get(f"{API}/verbs").status_code == 200, access
    assert site.client("nobody").get(f"{API}/verbs").status_code == 403


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("set_lane", requests.LaneSettings),
        ("set_kind", requests.KindSettings),
        ("set_group", requests.GroupSettings),
        ("schedule", requests.NewSchedule),
        ("cancel_where", requests.Bulk),
        ("reprioritize", requests.NewPriority),
    ],
)
def test_every_number_has_the_range_of_its_verb(
    verb: str, body: type[requests.RequestBody]
) -> None:
    shown = body.model_json_schema()["properties"]
    checked = 0
    for name, argument in verbs.known()[verb].arguments.items():
        limits = argument.get("limits", {})
        for unit, lowest, highest in (
            ("number", "minimum", "maximum"),
            ("characters", "minLength", "maxLength"),
            ("bytes", "minLength", "maxLength"),
        ):
            if name not in shown or unit not in limits or argument["type"] == "jsonb":
                continue
            # What may be left out is one of two: this, or null.
            schema = shown[name].get("anyOf", [shown[name]])[0]
            if "maxLength" not in schema and argument["type"] == "text[]":
                continue
            found = schema.get(lowest, 0), schema[highest]
            assert found == (limits[unit]["min"], limits[unit]["max"]), name
            checked += 1
    assert checked > 0


def test_a_kind_takes_as_many_attempts_as_the_engine(
    connection: Connection, operator: httpx.Client
) -> None:
    most = verbs.most("set_kind", "max_attempts")
    settings = {"max_attempts": most}
    assert operator.patch(f"{API}/kinds/k", json=settings).status_code == 200
    found = connection.execute(
        "SELECT max_attempts FROM pulse_internal.kind"
    ).fetchall()
    assert found == [(most,)]
    above = {"max_attempts": most + 1}
    assert operator.patch(f"{API}/kinds/k", json=above).status_code == 422
