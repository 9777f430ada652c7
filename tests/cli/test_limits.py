"""pulse limits, set-group: what keeps jobs from running all at once."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Pulse
from tests.conftest import Connect, Connection


@pytest.fixture
def connection(connect: Connect) -> Connection:
    connection = connect()
    connection.execute("SELECT pulse.set_lane('api', group_slots => 1)")
    connection.execute(
        "SELECT pulse.enqueue('k', lane => 'api', group_key => g.key)"
        " FROM (VALUES ('a'), ('a'), ('b')) AS g (key)"
    )
    return connection


def test_lanes_with_limits_are_listed(pulse: Pulse, connection: Connection) -> None:
    connection.execute("SELECT pulse.enqueue('k')")
    connection.execute("SELECT pulse.set_lane('mail', max_slots => 3, fair => true)")
    head, *lines = pulse("limits").out.splitlines()
    assert " ".join(head.split()) == (
        "LANE SLOTS FAIR GROUP SLOTS IN ORDER RATE GROUP RATE READY"
    )
    assert [line.split() for line in lines] == [
        ["api", "0/∞", "-", "1", "-", "-", "-", "3"],
        ["mail", "0/3", "yes", "-", "-", "-", "-", "0"],
    ]
    assert [row["lane"] for row in pulse("limits", "--json").json] == ["api", "mail"]


def test_groups_of_a_lane_with_who_holds_them(
    pulse: Pulse, connection: Connection
) -> None:
    connection.execute("SELECT pulse.claim_batch('w', 'api', 1)")
    ran = pulse("set-group", "api", "b", "--enabled", "false", "--reason", "abuse")
    assert ran.out == "api b  enabled False\n"
    assert pulse("set-group", "api", "a", "--max-slots", 7).code == 0
    held, other = pulse("limits", "api").out.splitlines()[1:]
    assert " ".join(held.split()) == "b 1 0 1 held by postgres: abuse"
    assert " ".join(other.split()) == "a 1 1 7 waiting"
    (only,) = pulse("limits", "api", "-g", "a", "--json").json
    assert (only["group_key"], only["running"], only["max_slots"]) == ("a", 1, 7)
    assert pulse("limits", "none").out == "Lane none has no jobs in groups.\n"
    assert pulse("limits", "-g", "a").code == 2


def test_rates_of_lanes_kinds_and_groups(pulse: Pulse, connection: Connection) -> None:
    rate = ("--rate", 2, "--rate-per", "1 h")
    group_rate = ("--group-rate", 1, "--group-rate-per", "1 min")
    assert pulse("set-lane", "api", "--group-slots", 0, *rate, *group_rate).code == 0
    assert pulse("set-kind", "k", "--rate", 5, "--rate-per", "90 s").code == 0
    assert pulse("set-group", "api", "b", "--rate", 7, "--rate-per", "1 s").code == 0
    connection.execute("SELECT pulse.claim_batch('w', 'api', 9)")
    lanes, kinds = pulse("limits").out.split("KIND")
    assert " 2/2 in 1h, used up for 59m " in " ".join(lanes.split())
    assert " 1 in 1m " in " ".join(lanes.split())
    assert " ".join(kinds.split()) == "RATE k 2/5 in 1m 30s"
    *_, kind = pulse("limits", "--json").json
    assert (kind["kind"], kind["allowed"], kind["used"]) == ("k", 5, 2)
    (held,) = pulse("limits", "api", "-g", "a").out.splitlines()[1:]
    assert " ".join(held.split()).startswith("a 1 1 - rate used up until 20")
    (other,) = pulse("limits", "api", "-g", "b", "--json").json
    assert (other["rate"], other["rate_per"], other["state"]) == (7, 1, "running")


def test_a_rule_that_says_nothing_or_cannot_be_is_refused(
    pulse: Pulse, connection: Connection
) -> None:
    assert pulse("set-group", "api", "a").code == 2
    for wrong in (
        ("api", "a", "--max-slots", 10_001),
        ("default", "a", "--max-slots", 2),
    ):
        ran = pulse("set-group", *wrong)
        assert (ran.code, "[PU002]" in ran.err) == (1, True)
