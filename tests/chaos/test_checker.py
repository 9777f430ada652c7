"""The checker can fail: pulse with a line taken out is caught, pulse itself is not."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos import checker, history, hostile, journal
from tests.chaos.checker import Report
from tests.chaos.small_load import SmallLoad
from tests.conftest import Database
from tools import servers
from tools.servers import Server

# A stale lease acts on whoever has the job now.
BY_JOB = """WHERE l.lease = ANY (v_sound) OR l.job IN (
    SELECT f.job FROM pulse_internal.failure AS f WHERE f.lease = ANY (v_sound)
)
"""

# What is broken: the function, patterns in it and what stands there instead, and the
# promise that is no longer kept.
BROKEN: dict[str, tuple[str, dict[str, str], str]] = {
    "the fence of complete": (
        "pulse.complete_batch",
        {r"WHERE l.lease = v_sound\[1\]\n": BY_JOB},
        "A report that was accepted ended its run, and a stale lease is refused",
    ),
    "the count of slots": (
        "pulse_internal.take_slots",
        {r"v_free := v_slots - .*;": "v_free := v_slots;"},
        "No claim commits that fills a lane beyond max_slots",
    ),
    "the lock of a lane with slots": (
        "pulse_internal.take_slots",
        {r"NOT pg_try_advisory_xact_lock\([^)]*\)[^)]*\)": "false"},
        "No claim commits that fills a lane beyond max_slots",
    ),
    "the count of a group": (
        "pulse_internal.claim_grouped",
        {r"greatest\(g\.slots - .*, 0\)": "v_need"},
        "No claim commits that fills a group of a lane beyond group_slots",
    ),
    "the wait of a group": (
        "pulse_internal.read_notices",
        {r"OR \(read_notices\.lane\)\.in_order\s+AND": "OR false AND"},
        "With in_order a group starts nothing while a job of it may come back",
    ),
    "the rate of a lane": (
        "pulse.claim_batch",
        {r"v_known\.rate IS NOT NULL AND v_claimed > 0": "false"},
        "Never more starts in any window than the rate of a lane, kind or group",
    ),
    "the rate of a group": (
        "pulse_internal.claim_grouped",
        {r"coalesce\(o\.started, 0\)::integer": "0"},
        "Never more starts in any window than the rate of a lane, kind or group",
    ),
    "the rate of a kind": (
        "pulse_internal.spend_kinds",
        {r"u\.n::integer": "0"},
        "Never more starts in any window than the rate of a lane, kind or group",
    ),
    "the look at holds": (
        "pulse.claim_batch",
        {r"h\.lane IN \('', claim_batch\.lane\)": "false"},
        "No claim commits while its lane is held or disabled",
    ),
    "the lock of a hold": (
        "pulse.claim_batch",
        {r"pg_try_advisory_xact_lock_shared\('pulse_internal\.hold'[^)]*\)": "true"},
        "No claim commits while its lane is held or disabled",
    ),
    "marks that wait for open transactions": (
        "pulse_internal.advance_line",
        {
            r"least\(v_found\.seq, advance_line\.q \+ 1\)": "v_found.seq",
            r"least\(coalesce\(v_found\.seq, v_last\), advance_line\.q \+ 1\)": (
                "coalesce(v_found.seq, 0)"
            ),
        },
        "Everything drains",
    ),
    "the order of the line": (
        "pulse_internal.pick",
        {r"ORDER BY r\.rank, r\.seq\n": "ORDER BY r.rank, r.seq DESC\n"},
        "Claims of a lane with slots, or a group in order, take the first jobs in line",
    ),
    "the bound of failures": (
        "pulse_internal.fail_runs",
        {r"g\.failures \+ 1 >= b\.max_attempts": "g.failures >= b.max_attempts"},
        "A job fails at most max_attempts times, unless retried by hand",
    ),
    "the mark of a start that was counted": (
        "pulse_internal.watch_new_leases",
        {r",\s+ready_at = NULL": ""},
        "The counters of each lane and kind equal what was committed",
    ),
    "the interval of schedules": (
        "pulse_internal.fire_schedule",
        {
            r"v_at := pulse_internal\.occurrence_after\(v_recurrence, v_at\);": (
                "v_at := pulse_internal.occurrence_after(v_recurrence, v_at + '1 "
                "second');"
            )
        },
        "Every occurrence of a schedule fires once or is skipped with a reason",
    ),
}

EARLY = "No job runs before all that it depends on has ended well enough"
SPAWNED = "A step spawns its jobs once, and who waits for the spawner waits for them"
BROKEN_FLOWS: dict[str, tuple[str, dict[str, str], str]] = {
    "the look for another upstream": (
        "pulse_internal.look",
        {r"AND NOT o\.met\n": "AND false\n"},
        EARLY,
    ),
    "the doubt of an enqueue": (
        "pulse_internal.put_after",
        {r"IF v_strange <> '\{\}' THEN\n +INSERT": "IF false THEN INSERT"},
        "Everything drains",
    ),
    "the step of a spawn": (
        "pulse.spawn",
        {
            r"IF NOT FOUND THEN": "IF false THEN",
            r"ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING": (
                "ON CONFLICT ON CONSTRAINT job_step_is_one_per_name"
                " DO UPDATE SET saved_at = excluded.saved_at"
            ),
        },
        SPAWNED,
    ),
    "the dependencies on the spawned": (
        "pulse.spawn",
        {r"FROM unnest\(v_waiting\)": "FROM unnest('{}'::bigint[])"},
        SPAWNED,
    ),
    "the memory of steps": (
        "pulse.steps",
        {r"AND s\.saved_at IS NOT NULL": "AND false"},
        "A step that has succeeded is not run by an attempt that began later",
    ),
    "the wake of a signal": (
        "pulse_internal.do_signal",
        {r"RETURN pulse_internal\.deliver_signal\([^;]*;": "RETURN 0;"},
        "Everything drains",
    ),
    "the look for paused flows": (
        "pulse.claim_batch",
        {r"v_tids := \(pulse_internal\.park\(v_tids\)\) \[1:v_need\];": ""},
        "No claim commits that takes a job of a flow that is paused",
    ),
    "the row of a signal": (
        "pulse_internal.do_signal",
        {r"INSERT INTO pulse_internal\.signal [^;]*;": ""},
        "A signal that was acknowledged is there, and nobody waits for it in vain",
    ),
}


@pytest.fixture(scope="module")
def keeping_times() -> Iterator[Server]:
    with servers.temporary(track_commit_timestamp="on") as server:
        yield server


@pytest.fixture
def watched(new_db: Callable[..., Database], keeping_times: Server) -> Database:
    db: Database = new_db(on=keeping_times)
    db.connect().execute(journal.JOURNAL_SQL.encode())
    return db


def break_function(db: Database, name: str, pieces: dict[str, str]) -> None:
    connection = db.connect()
    row = connection.execute(
        "SELECT pg_get_functiondef(%s::regproc)", (name,)
    ).fetchone()
    assert row is not None
    body: str = row[0]
    for pattern, instead in pieces.items():
        body, found = re.subn(pattern, instead, body)
        assert found >= 1, f"{name} has changed: {pattern}"
    connection.execute(body.encode())


def judged(db: Database, directory: Path) -> Report:
    SmallLoad(db.connect, directory).run()
    return checker.check(db.connect(), directory)


def test_pulse_keeps_every_promise(watched: Database, tmp_path: Path) -> None:
    report = judged(watched, tmp_path)
    assert report.violations == []
    # Each promise was put to the test.
    assert report.counted["verb_refused"] == 1
    assert report.counted["dead"] == 1
    assert report.counted["occurrences"] >= 3
    for what in (
        *("claims with slots", "claims in order", "commits under a hold"),
        *("dependencies waited for", "spawned jobs waited for", "steps saved"),
        *("steps run", "signals acknowledged", "signals received", "pauses of flows"),
    ):
        assert report.counted[what] > 0
    assert report.counted["effects"] == report.counted["runs"] > 700


@pytest.mark.parametrize("what", BROKEN)
def test_the_checker_notices_without(
    what: str, watched: Database, tmp_path: Path
) -> None:
    name, pieces, promise = BROKEN[what]
    break_function(watched, name, pieces)
    report = judged(watched, tmp_path)
    assert promise in {violation.invariant for violation in report.violations}


@pytest.mark.parametrize("what", BROKEN_FLOWS)
def test_the_checker_notices_of_flows_without(
    what: str, watched: Database, tmp_path: Path
) -> None:
    name, pieces, promise = BROKEN_FLOWS[what]
    break_function(watched, name, pieces)
    with contextlib.suppress(AssertionError):
        SmallLoad(watched.connect, tmp_path).run_flows()
    report = checker.check(watched.connect(), tmp_path)
    assert promise in {violation.invariant for violation in report.violations}


def hostile_report(
    db: Database, directory: Path, values: Sequence[hostile.Value]
) -> Report:
    note = history.Recorder(directory / "hostile.jsonl", "hostile")
    db.connect().execute(hostile.HUGE)
    for value in values:
        with db.connect() as connection:
            assert hostile.send(note, connection, value), value.sort
    return checker.check(db.connect(), directory, may_remain=["noop"])


def test_every_hostile_value_is_answered(watched: Database, tmp_path: Path) -> None:
    values = hostile.PRODUCERS + hostile.WORKERS
    report = hostile_report(watched, tmp_path, values)
    assert report.violations == []
    assert report.counted["hostile values refused"] > 0
    assert report.counted["hostile values kept"] > 0


def test_the_checker_notices_a_value_that_is_too_large(
    watched: Database, tmp_path: Path
) -> None:
    break_function(
        watched, "pulse_internal.require_size", {r"IF bytes > most": "IF false"}
    )
    report = hostile_report(watched, tmp_path, hostile.PRODUCERS)
    assert "a payload of 9 MB was taken" in {v.sentence for v in report.violations}


def test_a_kept_run_is_judged_alike(watched: Database, tmp_path: Path) -> None:
    name, pieces, _ = BROKEN["the count of slots"]
    break_function(watched, name, pieces)
    report = judged(watched, tmp_path)
    checker.keep(watched.connect(), tmp_path)
    transactions, final = checker.read_kept(tmp_path)
    again = checker.judge(history.read_records(tmp_path), transactions, final)
    assert report.violations
    assert again == report
