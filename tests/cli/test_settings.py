"""set-lane, set-kind, move, delete, prune, grant, audit, and pages of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from pulse.cli import settings
from tests.cli.conftest import Pulse
from tests.conftest import Connect, Connection


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


def one(connection: Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def enqueue(connection: Connection, options: str) -> str:
    return str(one(connection, f"SELECT pulse.enqueue({options})"))


def test_settings_of_lanes_and_kinds(pulse: Pulse, connection: Connection) -> None:
    ran = pulse(
        *("set-lane", "mail", "--max-slots", 3, "--lease-for", "1 min"),
        *("--enabled", "false", "--reason", "slow"),
    )
    assert ran.out == "mail  max_slots 3, lease_for 1 min, enabled False\n"
    facts = "SELECT settings || jsonb_build_object('n', max_slots, 'on', enabled)"
    found = one(connection, f"{facts} FROM pulse.lanes WHERE name = 'mail'")
    assert (found["n"], found["on"], found["lease_for"]) == (3, False, "00:01:00")
    ran = pulse(
        *("set-kind", "send", "--max-attempts", 7, "--backoff", "fixed"),
        *("--max-delay", "1 min", "--json"),
    )
    assert ran.json == {
        "name": "send",
        "changed": {"max_attempts": 7, "backoff": "fixed", "max_delay": "1 min"},
    }
    enqueue(connection, "'send'")
    assert one(connection, "SELECT max_attempts FROM pulse.jobs") == 7
    assert pulse("set-lane", "mail", "--fair", "true", "--group-slots", 2).code == 0
    groups = """settings @> '{"fair": true, "group_slots": 2}'"""
    assert one(connection, f"SELECT {groups} FROM pulse.lanes WHERE name = 'mail'")
    ran = pulse("set-lane", "mail", "--rate", 100, "--rate-per", "1 min")
    assert ran.out == "mail  rate 100, rate_per 1 min\n"
    assert pulse("set-group", "mail", "a", "--rate", 5, "--rate-per", "1 s").code == 0
    rates = "SELECT array_agg(rate ORDER BY rate) FROM "
    both = (
        "(SELECT rate FROM pulse_internal.lane UNION ALL SELECT rate FROM "
        "pulse_internal.group_rule) r"
    )
    assert one(connection, rates + both) == [5, 100]
    assert pulse("set-lane", "mail").code == 2
    refused = pulse("set-lane", "mail", "--max-slots", -1)
    assert refused.code == 1
    assert "[PU002]" in refused.err


@pytest.mark.parametrize("verb", ["set_lane", "set_kind", "set_group"])
def test_every_setting_has_an_option(verb: str, connection: Connection) -> None:
    named = (
        "SELECT array(SELECT a ->> 'name' FROM jsonb_array_elements(v.arguments) AS a)"
        " FROM pulse.verbs() AS v WHERE v.verb = %s"
    )
    row = connection.execute(named, [verb]).fetchone()
    assert row is not None
    known = {
        "set_lane": {"name", *settings.LANE},
        "set_kind": {"kind", *settings.KIND},
        "set_group": {"lane", "group_key", *settings.GROUP},
    }
    assert {*row[0]} == {"reason", *known[verb]}


def test_jobs_are_moved_and_deleted(pulse: Pulse, connection: Connection) -> None:
    first, second = enqueue(connection, "'a'"), enqueue(connection, "'b'")
    assert pulse("move", "slow", first).out == f"{first}  ready\n"
    assert pulse("move", "slow", "--kind", "b", "--yes").out == "move: 1 job\n"
    lanes = "SELECT array_agg(DISTINCT lane) FROM pulse.jobs"
    assert one(connection, lanes) == ["slow"]
    pulse("cancel", first, second)
    assert pulse("delete", first).code == 0
    assert one(connection, "SELECT count(*) FROM pulse.jobs") == 1


def test_prune_counts_and_removes(pulse: Pulse, connection: Connection) -> None:
    enqueue(connection, "'a'")
    pulse("cancel", "--all", "--yes")
    pulse("set-lane", "default", "--retain-cancelled", "0")
    assert pulse("prune", "--dry-run").out == "1 job would go\n"
    assert pulse("prune", "--json").json == {"removed": 1, "dry_run": False}


def test_access_is_granted_and_revoked(pulse: Pulse, connection: Connection) -> None:
    connection.execute("CREATE ROLE of_the_cli")
    try:
        assert pulse("grant", "of_the_cli", "producer").out == "of_the_cli  producer\n"
        levels = "SELECT count(*) FROM pulse.access WHERE role = 'of_the_cli'"
        assert one(connection, levels) == 1
        assert pulse("revoke", "of_the_cli", "producer").code == 0
        assert one(connection, levels) == 0
    finally:
        connection.execute("DROP OWNED BY of_the_cli")
        connection.execute("DROP ROLE of_the_cli")


def test_the_audit_says_who_did_what(pulse: Pulse, connection: Connection) -> None:
    job = enqueue(connection, "'a'")
    pulse("reprioritize", "-p", 5, job, "--reason", "the customer waits")
    pulse("set-lane", "mail", "--max-slots", 3)
    ran = pulse("audit")
    assert "the customer waits" in ran.out
    assert "max_slots 3" in ran.out
    pulse("set-lane", "mail", "--max-slots", 0)
    assert "max_slots 3 > -" in pulse("audit").out
    pulse("cancel", "--kind", "a", "--yes")
    assert 'filter {"kind": ["a"]}, done 1' in pulse("audit").out
    [entry] = pulse("audit", "--job", job, "--json").json
    assert (entry["verb"], entry["job_id"]) == ("reprioritize", job)
    assert len(pulse("audit", "--verb", "set_lane", "--json").json) == 2
    [newest] = pulse("audit", "-n", 1, "--json").json
    [older] = pulse("audit", "-n", 1, "--before", newest["entry"], "--json").json
    assert older["entry"] < newest["entry"]


def test_jobs_come_in_pages_by_every_filter_of_the_bulk_verbs(
    pulse: Pulse, connection: Connection
) -> None:
    jobs = [
        enqueue(connection, f"'k', group_key => 'g{n % 2}', tags => ARRAY['t{n}']")
        for n in range(4)
    ]
    jobs.append(
        enqueue(
            connection, f"'k', after => '{{{jobs[3]}}}', flow => 'f', tags => '{{t4}}'"
        )
    )
    page = pulse("jobs", "-n", 2)
    assert f"older ones with --before {jobs[3]}." in page.out
    rest = pulse("jobs", "-n", 10, "--before", jobs[3], "--json").json
    assert [row["job_id"] for row in rest] == jobs[2::-1]
    for options, wanted in (
        (["--group-key", "g1"], jobs[3::-2]),
        (["--tag", "t0", "--tag", "t4"], [jobs[4], jobs[0]]),
        (["--older-than", "1 hour"], []),
        (["--flow", "f"], [jobs[4]]),
        (["--state", "blocked"], [jobs[4]]),
        (["--newer-than", "1 hour", "--kind", "k"], jobs[::-1]),
        (["--where", '{"tag": "t2"}'], [jobs[2]]),
    ):
        found = [row["job_id"] for row in pulse("jobs", *options, "--json").json]
        assert found == wanted, options
        counted = pulse("cancel", *options, "--dry-run", "--json").json["remaining"]
        assert counted == len(wanted), options


def test_schedules_are_created_and_run_now(
    pulse: Pulse, connection: Connection
) -> None:
    made = pulse(
        "schedule", "create", "s", "k", "--every", "1 h", "--expires-in", "5 m"
    )
    assert made.out.startswith("s  next at ")
    assert pulse("schedule", "run-now", "s").out.startswith("s  job ")
    due = "SELECT start_by IS NOT NULL FROM pulse.jobs"
    assert one(connection, due) is True


def test_a_job_is_enqueued_with_headers_and_a_time_to_begin(
    pulse: Pulse, connection: Connection
) -> None:
    ran = pulse("enqueue", "k", "--expires-in", "5 min", "--headers", '{"tenant": 7}')
    assert ran.code == 0, ran.err
    found = "SELECT headers || jsonb_build_object('late', start_by < now())"
    expected = {"tenant": 7, "late": False}
    assert one(connection, f"{found} FROM pulse.jobs") == expected
    assert pulse("enqueue", "k", "--headers", "x").code == 2
