"""Every promise has a test whose name says it.

The lists are those of the contract: the fifteen rows of a job's life, the seventeen
guarantees, the twenty-six rules that keep jobs. Each names where it is proved:

- in a pgTAP file, a test whose name begins with `guarantee 9:` or `rule 13:`;
- in an isolation spec, one permutation that has all the steps named here;
- in a Python file, a test function with this name.

It cannot judge whether a test is good. It notices one that was renamed or removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tools import paths

TESTS = paths.ROOT / "tests"
TAG = re.compile(r"\b(transition|guarantee|rule) (\d+)\b", re.IGNORECASE)

TRANSITIONS = {
    1: "nothing to ready or scheduled",
    2: "nothing to awaiting_approval",
    3: "awaiting_approval to ready or scheduled",
    4: "awaiting_approval to cancelled",
    5: "scheduled or retrying to ready",
    6: "ready to running",
    7: "running to running",
    8: "running to completed",
    9: "running to retrying",
    10: "running to dead",
    11: "running to ready or scheduled",
    12: "running to cancelled",
    13: "any waiting state to cancelled",
    14: "dead or cancelled to ready",
    15: "terminal to gone",
}

# A proof is a file, and what has to be in it.
Proof = tuple[str, str]

GUARANTEES: dict[int, list[Proof]] = {
    1: [
        ("sql/96_guarantees.sql", "guarantee 1:"),
        ("isolation/specs/exclusive-claim.spec", "alice_claims bob_claims"),
    ],
    2: [
        ("sql/96_guarantees.sql", "guarantee 2:"),
        ("isolation/specs/exclusive-claim.spec", "alice_claims bob_claims_all"),
        (
            "isolation/specs/batch-never-exceeds.spec",
            "alice_claims_two bob_claims_three",
        ),
    ],
    3: [
        ("sql/96_guarantees.sql", "guarantee 3:"),
        (
            "isolation/specs/lost-lease-cannot-complete.spec",
            "reaper_runs alice_claims_again alice_uses_the_old_lease",
        ),
    ],
    4: [
        ("sql/96_guarantees.sql", "guarantee 4:"),
        ("sql/51_reap.sql", "guarantee 4:"),
        ("sql/40_claim.sql", "guarantee 4:"),
        ("isolation/specs/reap-against-complete.spec", "reaper_runs alice_completes"),
    ],
    5: [("sql/96_guarantees.sql", "guarantee 5:"), ("sql/51_reap.sql", "guarantee 5:")],
    6: [
        ("sql/96_guarantees.sql", "guarantee 6:"),
        ("sql/47_release.sql", "guarantee 6:"),
    ],
    7: [("sql/96_guarantees.sql", "guarantee 7:"), ("sql/46_fail.sql", "guarantee 7:")],
    8: [
        ("sql/96_guarantees.sql", "guarantee 8:"),
        (
            "python/test_plans.py",
            "test_a_claim_touches_buffers_in_proportion_to_its_batch",
        ),
        (
            "python/test_old_snapshot.py",
            "test_buffers_stay_the_same_under_an_old_snapshot",
        ),
    ],
    9: [
        ("sql/96_guarantees.sql", "guarantee 9:"),
        (
            "isolation/specs/slots-with-ten-claimers.spec",
            "alice_claims judy_claims how_many_run",
        ),
    ],
    10: [
        ("sql/96_guarantees.sql", "guarantee 10:"),
        ("isolation/specs/pause-against-claim.spec", "alice_claims operator_pauses"),
        (
            "isolation/specs/pause-leaves-the-rest-alone.spec",
            "deploy_pauses producer_enqueues alice_completes reaper_runs",
        ),
    ],
    11: [
        ("sql/96_guarantees.sql", "guarantee 11:"),
        (
            "isolation/specs/enqueue-rolled-back.spec",
            "alice_enqueues alice_rolls_back bob_claims",
        ),
    ],
    12: [("sql/96_guarantees.sql", "guarantee 12:")],
    13: [("python/test_dump_restore.py", "test_a_copy_is_equal_and_all_jobs_go_on")],
    14: [
        ("upgrade/test_upgrade.py", "test_jobs_survive_an_upgrade_and_workers_go_on"),
        ("upgrade/test_upgrade.py", "test_an_upgrade_makes_what_a_fresh_install_makes"),
    ],
    15: [
        ("sql/96_guarantees.sql", "guarantee 15:"),
        ("sql/40_claim.sql", "guarantee 15:"),
    ],
    16: [
        ("sql/96_guarantees.sql", "guarantee 16:"),
        ("sql/32_keys.sql", "guarantee 16:"),
        (
            "isolation/specs/complete-repeated.spec",
            "alice_completes completes_again outcome",
        ),
    ],
    17: [("sql/96_guarantees.sql", "guarantee 17:")],
}

RULES: dict[int, list[Proof]] = {
    1: [
        ("sql/10_errors.sql", "rule 1:"),
        (
            "isolation/specs/isolation-level-refused.spec",
            "alice_begins_repeatable_read operator_pauses alice_claims",
        ),
    ],
    2: [
        (
            "isolation/specs/marks-out-of-order-commit.spec",
            "slow_enqueues fast_enqueues_two ticker_ticks slow_commits worker_claims",
        ),
        (
            "python/test_marks_stress.py",
            "test_no_job_is_lost_and_none_is_claimed_twice",
        ),
    ],
    3: [
        ("sql/52_marks.sql", "rule 3:"),
        ("isolation/specs/lease-drawn-under-lock.spec", "locker_locks claims drawn"),
    ],
    4: [
        ("sql/52_marks.sql", "rule 4:"),
        (
            "isolation/specs/marks-rolled-back-claim.spec",
            "alice_claims ticker_ticks alice_rolls_back worker_claims",
        ),
        (
            "isolation/specs/marks-prepared-transaction.spec",
            "slow_prepares ticker_ticks slow_commits worker_claims",
        ),
        (
            "isolation/specs/marks-open-across-ticks.spec",
            "slow_enqueues ticker_ticks slow_commits worker_claims",
        ),
        ("isolation/specs/marks-rollback.spec", "slow_rolls_back ticker_ticks"),
        ("isolation/specs/marks-two-tickers.spec", "alice_advances bob_advances"),
    ],
    5: [
        ("sql/52_marks.sql", "rule 5:"),
        (
            "isolation/specs/marks-waiting-time.spec",
            "slow_enqueues ticker_ticks slow_commits worker_claims",
        ),
        (
            "isolation/specs/marks-lease-watch.spec",
            "slow_claims reaper_runs slow_commits",
        ),
    ],
    6: [
        ("sql/52_marks.sql", "rule 6:"),
        ("python/test_dump_restore.py", "test_a_copy_is_equal_and_all_jobs_go_on"),
    ],
    7: [
        ("sql/52_marks.sql", "rule 7:"),
        (
            "isolation/specs/move-against-claim.spec",
            "alice_claims_old operator_reprioritizes",
        ),
    ],
    8: [
        ("sql/42_heartbeat.sql", "rule 8:"),
        ("sql/45_complete.sql", "rule 8:"),
        ("isolation/specs/reap-against-heartbeat.spec", "alice_beats reaper_runs"),
    ],
    9: [
        (
            "isolation/specs/heartbeat-never-waits.spec",
            "handler_completes alice_beats handler_commits",
        ),
        ("isolation/specs/reports-no-deadlock.spec", "alice_completes bob_completes"),
    ],
    10: [
        ("sql/42_heartbeat.sql", "rule 10:"),
        (
            "python/test_old_snapshot.py",
            "test_buffers_stay_the_same_under_an_old_snapshot",
        ),
    ],
    11: [("sql/40_claim.sql", "rule 11:")],
    12: [
        ("sql/45_complete.sql", "rule 12:"),
        ("sql/46_fail.sql", "rule 12:"),
        ("sql/47_release.sql", "rule 12:"),
        ("isolation/specs/complete-repeated.spec", "alice_fails fails_again"),
    ],
    13: [
        ("sql/20_settings.sql", "rule 13:"),
        ("isolation/specs/slots-after-rollback.spec", "alice_claims alice_rolls_back"),
    ],
    14: [
        ("sql/20_settings.sql", "rule 14:"),
        ("isolation/specs/set-lane-against-claim.spec", "alice_claims operator_limits"),
        ("isolation/specs/slots-lowered.spec", "operator_lowers bob_claims"),
    ],
    15: [
        ("isolation/specs/claim-does-not-wait.spec", "alice_claims bob_claims"),
        (
            "isolation/specs/exchange-lanes-no-deadlock.spec",
            "alice_takes_a bob_takes_b alice_takes_b bob_takes_a",
        ),
    ],
    16: [
        ("sql/23_holds.sql", "rule 16:"),
        ("isolation/specs/pause-against-claim.spec", "alice_claims operator_pauses"),
        ("isolation/specs/pause-times-out.spec", "alice_claims operator_pauses"),
    ],
    17: [("sql/96_guarantees.sql", "rule 17:")],
    18: [
        ("sql/96_guarantees.sql", "rule 18:"),
        ("isolation/specs/cancel-against-claim.spec", "alice_claims operator_cancels"),
    ],
    19: [
        ("sql/53_prune.sql", "rule 19:"),
        (
            "isolation/specs/prune-against-retry.spec",
            "operator_retries watchdog_prunes",
        ),
    ],
    20: [("sql/76_bulk.sql", "a call does at most max_jobs and says how many remain")],
    21: [
        ("sql/32_keys.sql", "rule 21:"),
        ("sql/53_prune.sql", "rule 21:"),
        ("isolation/specs/unique-key-raced.spec", "alice_enqueues bob_skips"),
        ("isolation/specs/unique-key-raced.spec", "alice_enqueues bob_replaces"),
        (
            "isolation/specs/unique-key-complete-against-enqueue.spec",
            "alice_completes bob_enqueues",
        ),
        (
            "isolation/specs/enqueue-many-no-deadlock.spec",
            "alice_enqueues bob_enqueues",
        ),
        (
            "isolation/specs/retry-onto-taken-key.spec",
            "producer_enqueues operator_retries",
        ),
    ],
    22: [
        (
            "isolation/specs/bell.spec",
            "sleeper_arms producer_enqueues producer_prepares",
        ),
        ("isolation/specs/bell.spec", "producer_goes_quiet producer_prepares"),
    ],
    23: [
        ("sql/54_tick.sql", "rule 23:"),
        ("isolation/specs/two-tickers.spec", "alice_ticks bob_ticks"),
    ],
    24: [
        ("sql/00_hygiene.sql", "security_barrier"),
        ("sql/80_views.sql", "a producer sees its own jobs"),
    ],
    25: [
        (
            "upgrade/test_upgrade.py",
            "test_an_upgrade_gives_up_rather_than_queue_workers_behind_a_lock",
        ),
    ],
    26: [("sql/40_claim.sql", "rule 26:")],
}

# The races that the engine has to show, whatever their rules.
RACES: dict[str, Proof] = {
    "cancel against complete": (
        "isolation/specs/cancel-against-complete.spec",
        "alice_completes operator_cancels",
    ),
    "forced cancel against complete": (
        "isolation/specs/force-cancel-against-complete.spec",
        "alice_completes operator_kills",
    ),
    "schedule fired once by two tickers": (
        "isolation/specs/schedule-fired-once.spec",
        "alice_ticks bob_ticks",
    ),
    "approve against cancel": (
        "isolation/specs/approve-against-cancel.spec",
        "approver_approves operator_cancels",
    ),
}


def proofs() -> Iterable[tuple[str, Proof]]:
    for number, found in GUARANTEES.items():
        yield from ((f"guarantee {number}", proof) for proof in found)
    for number, found in RULES.items():
        yield from ((f"rule {number}", proof) for proof in found)
    yield from RACES.items()


def permutations(spec: str) -> list[set[str]]:
    """The steps of each permutation of a spec, which may go over several lines."""
    text = re.sub(r"#.*", "", spec)
    found = re.findall(r"^permutation\b(.*?)(?=^\w|\Z)", text, re.MULTILINE | re.DOTALL)
    return [set(re.findall(r"\w+", steps)) for steps in found]


def holds(file: Path, wanted: str) -> bool:
    text = file.read_text()
    if file.suffix == ".spec":
        return any(set(wanted.split()) <= steps for steps in permutations(text))
    if file.suffix == ".py":
        return re.search(rf"^def {wanted}\(", text, re.MULTILINE) is not None
    return re.search(rf"\b{re.escape(wanted)}", text) is not None


@pytest.mark.parametrize("number", TRANSITIONS, ids=lambda n: f"transition {n}")
def test_every_transition_has_a_test_with_its_number(number: int) -> None:
    assert holds(TESTS / "sql/95_states.sql", f"transition {number}:")


def test_the_lists_are_complete() -> None:
    assert list(TRANSITIONS) == list(range(1, 16))
    assert list(GUARANTEES) == list(range(1, 18))
    assert list(RULES) == list(range(1, 27))


@pytest.mark.parametrize(
    ("promise", "proof"),
    list(proofs()),
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_every_promise_is_proved_where_it_says(promise: str, proof: Proof) -> None:
    name, wanted = proof
    file = TESTS / name
    assert file.exists(), f"{promise}: {name} is not there"
    assert holds(file, wanted), f"{promise}: {name} has no {wanted!r}"


def test_every_spec_has_its_expected_output() -> None:
    specs = {file.stem for file in TESTS.glob("isolation/specs/*.spec")}
    expected = {file.stem for file in TESTS.glob("isolation/expected/*.out")}
    assert specs <= expected


def test_no_test_names_a_promise_that_does_not_exist() -> None:
    most = {"transition": 15, "guarantee": 17, "rule": 26}
    files = [*TESTS.glob("sql/*.sql"), *TESTS.glob("isolation/specs/*.spec")]
    strays = [
        f"{file.name}: {word} {number}"
        for file in files
        for word, number in TAG.findall(file.read_text())
        if not 1 <= int(number) <= most[word.lower()]
    ]
    assert strays == []
