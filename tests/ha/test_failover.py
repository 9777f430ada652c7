"""What the judge of failovers finds; `make ha` has the real ones."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.ha import failover, needs
from tests.ha.failover import Story, judge


def story() -> Story:
    return Story({"a": 1, "b": 2}, [1.0, 1.1], Counter("ab"), [10, 11])


def test_nothing_is_wrong_with_a_run_that_lost_nothing() -> None:
    verdict = judge(story(), ["a", "b"], synchronous=True)
    assert (verdict.acknowledged, verdict.lost, verdict.twice) == (2, 0, 0)
    assert verdict.problems == []


def test_what_a_standby_did_not_have_is_counted_and_only_forgiven_if_it_may_be() -> (
    None
):
    assert judge(story(), ["a"], synchronous=True).problems == [
        "1 acknowledged jobs are lost"
    ]
    forgiven = judge(story(), ["a"], synchronous=False)
    assert (forgiven.lost, forgiven.problems) == (1, [])


def test_numbers_that_come_twice_and_jobs_that_never_ran_are_found() -> None:
    seen = story()
    seen.acknowledged["b"] = 1
    seen.leases[1] = 10
    seen.runs = Counter("aa")
    verdict = judge(seen, ["a", "b"], synchronous=True, checked=["a row too many"])
    assert verdict.twice == 1
    assert verdict.problems == [
        "a row too many",
        "job 1 was handed out twice",
        "lease 10 came twice",
        "job of b never ran",
    ]


def test_the_pause_ends_with_the_first_answer_after_the_longest_silence() -> None:
    told = Story(times=[0.9, 1.1, 1.2, 19.0, 19.1])
    assert told.pause_after(1.0) == 18.0


def test_where_there_is_no_etcd_it_says_so_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs, "get", lambda: "no etcd here")
    monkeypatch.setattr("sys.argv", ["failover"])
    assert failover.main() == 0
    assert capsys.readouterr().out == "skipped: no etcd here\n"
