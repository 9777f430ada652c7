"""The checker can fail: pulse with a line taken out is caught, pulse itself is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos import checker, history, hostile, journal
from tests.chaos.checker import Report
from tests.chaos.small_load import SmallLoad
from tests.conftest import Database
from tests.mutations import listed
from tests.mutations.harness import Mutation
from tools import servers
from tools.servers import Server

BROKEN = [rule for rule, each in listed.ALL.items() if each.chaos]
BROKEN_FLOWS = [rule for rule, each in listed.ALL.items() if each.chaos_flows]


@pytest.fixture(scope="module")
def keeping_times() -> Iterator[Server]:
    with servers.temporary(track_commit_timestamp="on") as server:
        yield server


@pytest.fixture
def watched(new_db: Callable[..., Database], keeping_times: Server) -> Database:
    db: Database = new_db(on=keeping_times)
    db.connect().execute(journal.JOURNAL_SQL.encode())
    return db


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
        *("steps run", "signals acknowledged", "signals received"),
    ):
        assert report.counted[what] > 0
    assert report.counted["effects"] == report.counted["runs"] > 700


def broken(db: Database, rule: str) -> Mutation:
    """The database without a rule."""
    mutation = listed.ALL[rule]
    mutation.apply(db.connect())
    return mutation


@pytest.mark.parametrize("rule", BROKEN)
def test_the_checker_notices_without(
    rule: str, watched: Database, tmp_path: Path
) -> None:
    promise = broken(watched, rule).chaos
    report = judged(watched, tmp_path)
    assert promise in {violation.invariant for violation in report.violations}


@pytest.mark.parametrize("rule", BROKEN_FLOWS)
def test_the_checker_notices_of_flows_without(
    rule: str, watched: Database, tmp_path: Path
) -> None:
    promise = broken(watched, rule).chaos_flows
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
    broken(watched, "a payload has a largest size")
    report = hostile_report(watched, tmp_path, hostile.PRODUCERS)
    assert "a payload of 9 MB was taken" in {v.sentence for v in report.violations}


def test_a_kept_run_is_judged_alike(watched: Database, tmp_path: Path) -> None:
    broken(watched, "a claim counts the slots in use")
    report = judged(watched, tmp_path)
    checker.keep(watched.connect(), tmp_path)
    transactions, final = checker.read_kept(tmp_path)
    again = checker.judge(history.read_records(tmp_path), transactions, final)
    assert report.violations
    assert again == report
