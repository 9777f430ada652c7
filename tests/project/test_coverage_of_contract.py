"""Every promise has a test whose name says it.

docs/contract.md numbers transitions (T), guarantees (G) and rules (R). A transition is
proved in tests/sql/states.sql by `transition 9:`, that of a paused flow in
flows/pause_flow.sql; the others where PROOFS says:

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
NUMBERED = {
    "transition": re.compile(r"^\| T(\d+) \|", re.MULTILINE),
    "guarantee": re.compile(r"^- \*\*G(\d+)\*\* ", re.MULTILINE),
    "rule": re.compile(r"^- \*\*R(\d+)\*\* ", re.MULTILINE),
}


def numbers(sort: str, page: str = "contract.md") -> list[int]:
    """The numbers that a page of docs/ gives to transitions, guarantees or rules."""
    text = (paths.ROOT / "docs" / page).read_text()
    return [int(number) for number in NUMBERED[sort].findall(text)]


# A proof is a file, and what has to be in it.
Proof = tuple[str, str]

PROOFS: dict[str, dict[int, list[Proof]]] = {}

PROOFS["guarantee"] = {
    1: [
        ("sql/guarantees.sql", "guarantee 1:"),
        ("isolation/specs/exclusive-claim.spec", "alice_claims bob_claims"),
    ],
    2: [
        ("sql/guarantees.sql", "guarantee 2:"),
        ("isolation/specs/exclusive-claim.spec", "alice_claims bob_claims_all"),
        (
            "isolation/specs/batch-never-exceeds.spec",
            "alice_claims_two bob_claims_three",
        ),
    ],
    3: [
        ("sql/guarantees.sql", "guarantee 3:"),
        (
            "isolation/specs/lost-lease-cannot-complete.spec",
            "reaper_runs alice_claims_again alice_uses_the_old_lease",
        ),
    ],
    4: [
        ("sql/guarantees.sql", "guarantee 4:"),
        ("sql/maintenance/reap.sql", "guarantee 4:"),
        ("sql/claim/claim.sql", "guarantee 4:"),
        ("isolation/specs/reap-against-complete.spec", "reaper_runs alice_completes"),
    ],
    5: [
        ("sql/guarantees.sql", "guarantee 5:"),
        ("sql/maintenance/reap.sql", "guarantee 5:"),
    ],
    6: [
        ("sql/guarantees.sql", "guarantee 6:"),
        ("sql/report/give_back.sql", "guarantee 6:"),
    ],
    7: [
        ("sql/guarantees.sql", "guarantee 7:"),
        ("sql/report/fail.sql", "guarantee 7:"),
    ],
    8: [
        ("sql/guarantees.sql", "guarantee 8:"),
        (
            "engine/test_plans.py",
            "test_a_claim_touches_buffers_in_proportion_to_its_batch",
        ),
        (
            "engine/test_old_snapshot.py",
            "test_buffers_stay_the_same_under_an_old_snapshot",
        ),
    ],
    9: [
        ("sql/guarantees.sql", "guarantee 9:"),
        (
            "isolation/specs/slots-with-ten-claimers.spec",
            "alice_claims judy_claims how_many_run",
        ),
    ],
    10: [
        ("sql/guarantees.sql", "guarantee 10:"),
        ("isolation/specs/pause-against-claim.spec", "alice_claims operator_pauses"),
        (
            "isolation/specs/pause-leaves-the-rest-alone.spec",
            "deploy_pauses producer_enqueues alice_completes reaper_runs",
        ),
    ],
    11: [
        ("sql/guarantees.sql", "guarantee 11:"),
        (
            "isolation/specs/enqueue-rolled-back.spec",
            "alice_enqueues alice_rolls_back bob_claims",
        ),
    ],
    12: [("sql/guarantees.sql", "guarantee 12:")],
    13: [("engine/test_dump_restore.py", "test_a_copy_is_equal_and_all_jobs_go_on")],
    14: [
        ("upgrade/test_upgrade.py", "test_jobs_survive_an_upgrade_and_workers_go_on"),
        ("upgrade/test_upgrade.py", "test_an_upgrade_makes_what_a_fresh_install_makes"),
    ],
    15: [
        ("sql/guarantees.sql", "guarantee 15:"),
        ("sql/claim/claim.sql", "guarantee 15:"),
    ],
    16: [
        ("sql/guarantees.sql", "guarantee 16:"),
        ("sql/enqueue/unique_keys.sql", "guarantee 16:"),
        (
            "isolation/specs/complete-repeated.spec",
            "alice_completes completes_again outcome",
        ),
    ],
    17: [("sql/guarantees.sql", "guarantee 17:")],
    18: [
        ("sql/groups/claim.sql", "guarantee 18:"),
        ("isolation/specs/groups-one-slot.spec", "alice_claims bob_claims"),
        (
            "isolation/specs/groups-reap-against-claim.spec",
            "reaper_runs worker_claims reaper_commits",
        ),
        (
            "engine/test_groups_stress.py",
            "test_limits_hold_and_nothing_is_lost",
        ),
    ],
    19: [("sql/groups/claim.sql", "guarantee 19:")],
    20: [
        ("sql/flows/after.sql", "guarantee 20:"),
        (
            "isolation/specs/after-last-two-at-once.spec",
            "alice_completes_b bob_completes_a bob_commits alice_commits tick_runs",
        ),
        (
            "engine/test_flows_stress.py",
            "test_nothing_is_released_early_and_nothing_is_lost",
        ),
    ],
    21: [
        ("sql/flows/steps.sql", "guarantee 21:"),
        (
            "isolation/specs/spawn-repeated.spec",
            "lease_is_lost zombie_spawns claims_again bob_spawns",
        ),
    ],
    22: [
        ("sql/flows/steps.sql", "guarantee 22:"),
        (
            "isolation/specs/signal-against-wait.spec",
            "bob_signals alice_waits bob_commits alice_commits works",
        ),
    ],
    23: [
        ("sql/groups/in_order.sql", "guarantee 23:"),
        (
            "isolation/specs/groups-in-order.spec",
            "alice_fails bob_claims alice_commits bob_claims",
        ),
        ("engine/test_groups_stress.py", "test_limits_hold_and_nothing_is_lost"),
    ],
    24: [
        ("sql/claim/rates.sql", "guarantee 24:"),
        (
            "isolation/specs/groups-rates.spec",
            "alice_claims bob_claims alice_commits",
        ),
        ("python/worker/test_rates.py", "test_a_rate_wakes_the_worker_and_is_kept"),
    ],
}

PROOFS["rule"] = {
    1: [
        ("sql/common/errors.sql", "rule 1:"),
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
            "engine/test_marks_stress.py",
            "test_no_job_is_lost_and_none_is_claimed_twice",
        ),
    ],
    3: [
        ("sql/common/marks.sql", "rule 3:"),
        ("isolation/specs/lease-drawn-under-lock.spec", "locker_locks claims drawn"),
    ],
    4: [
        ("sql/common/marks.sql", "rule 4:"),
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
        ("sql/common/marks.sql", "rule 5:"),
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
        ("sql/common/marks.sql", "rule 6:"),
        ("engine/test_dump_restore.py", "test_a_copy_is_equal_and_all_jobs_go_on"),
    ],
    7: [
        ("sql/common/marks.sql", "rule 7:"),
        (
            "isolation/specs/move-against-claim.spec",
            "alice_claims_old operator_reprioritizes",
        ),
    ],
    8: [
        ("sql/report/heartbeat.sql", "rule 8:"),
        ("sql/report/complete.sql", "rule 8:"),
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
        ("sql/report/heartbeat.sql", "rule 10:"),
        (
            "engine/test_old_snapshot.py",
            "test_buffers_stay_the_same_under_an_old_snapshot",
        ),
    ],
    11: [("sql/claim/claim.sql", "rule 11:")],
    12: [
        ("sql/report/complete.sql", "rule 12:"),
        ("sql/report/fail.sql", "rule 12:"),
        ("sql/report/give_back.sql", "rule 12:"),
        ("isolation/specs/complete-repeated.spec", "alice_fails fails_again"),
    ],
    13: [
        ("sql/settings/settings.sql", "rule 13:"),
        ("isolation/specs/slots-after-rollback.spec", "alice_claims alice_rolls_back"),
    ],
    14: [
        ("sql/settings/settings.sql", "rule 14:"),
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
        ("sql/settings/pause.sql", "rule 16:"),
        ("isolation/specs/pause-against-claim.spec", "alice_claims operator_pauses"),
        ("isolation/specs/pause-times-out.spec", "alice_claims operator_pauses"),
    ],
    17: [("sql/guarantees.sql", "rule 17:")],
    18: [
        ("sql/guarantees.sql", "rule 18:"),
        ("isolation/specs/cancel-against-claim.spec", "alice_claims operator_cancels"),
    ],
    19: [
        ("sql/maintenance/prune.sql", "rule 19:"),
        (
            "isolation/specs/prune-against-retry.spec",
            "operator_retries watchdog_prunes",
        ),
    ],
    20: [
        (
            "sql/operate/bulk_verbs.sql",
            "a call does at most max_jobs and says how many remain",
        )
    ],
    21: [
        ("sql/enqueue/unique_keys.sql", "rule 21:"),
        ("sql/maintenance/prune.sql", "rule 21:"),
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
        ("sql/maintenance/tick.sql", "rule 23:"),
        ("isolation/specs/two-tickers.spec", "alice_ticks bob_ticks"),
    ],
    24: [
        ("sql/hygiene.sql", "security_barrier"),
        ("sql/inspect/views.sql", "a producer sees its own jobs"),
    ],
    25: [
        (
            "upgrade/test_upgrade.py",
            "test_an_upgrade_gives_up_rather_than_queue_workers_behind_a_lock",
        ),
    ],
    26: [("sql/claim/claim.sql", "rule 26:")],
    27: [
        ("isolation/specs/groups-one-slot.spec", "alice_completes_a bob_claims"),
        (
            "isolation/specs/groups-lost-wake-up.spec",
            "alice_claims producer_commits alice_commits",
        ),
        (
            "engine/test_groups_stress.py",
            "test_the_load_notices_a_broken_rule",
        ),
    ],
    28: [
        (
            "isolation/specs/groups-cancel-of-the-first.spec",
            "operator_cancels worker_claims operator_rolls_back",
        ),
        (
            "isolation/specs/groups-notice-out-of-order.spec",
            "worker_claims ticker_ticks slow_commits",
        ),
    ],
    29: [
        (
            "isolation/specs/watchers-in-later-statement.spec",
            "alice_progresses bob_completes carol_enqueues alice_commits",
        ),
        (
            "isolation/specs/cancel-against-release.spec",
            "alice_cancels bob_completes bob_commits alice_rolls_back tick_runs",
        ),
    ],
    30: [
        (
            "isolation/specs/after-enqueue-against-complete.spec",
            "alice_enqueues bob_completes bob_commits alice_commits tick_runs",
        ),
        (
            "isolation/specs/doubt-while-end-is-open.spec",
            "alice_enqueues bob_completes alice_commits tick_runs bob_commits",
        ),
        (
            "isolation/specs/doubt-of-own-exchange.spec",
            "alice_completes_b alice_claims bob_completes_a alice_commits",
        ),
    ],
    31: [
        (
            "isolation/specs/groups-in-order.spec",
            "operator_cancels bob_claims operator_commits bob_claims",
        ),
        (
            "isolation/specs/groups-in-order.spec",
            "operator_cancels bob_claims operator_rolls_back bob_claims",
        ),
    ],
    32: [
        (
            "isolation/specs/groups-rates.spec",
            "alice_claims bob_claims alice_rolls_back",
        ),
        (
            "isolation/specs/groups-rates.spec",
            "producer_enqueues an_hour_passes bob_claims_a",
        ),
    ],
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
    for sort, listed in PROOFS.items():
        for number, found in listed.items():
            yield from ((f"{sort} {number}", proof) for proof in found)
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


@pytest.mark.parametrize("number", numbers("transition"))
def test_every_transition_has_a_test_with_its_number(number: int) -> None:
    files = ("sql/states.sql", "sql/flows/pause_flow.sql")
    assert any(holds(TESTS / file, f"transition {number}:") for file in files)


@pytest.mark.parametrize("sort", NUMBERED)
def test_the_contract_counts_without_gaps(sort: str) -> None:
    found = numbers(sort)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 15


@pytest.mark.parametrize("sort", PROOFS)
def test_every_guarantee_and_rule_of_the_contract_has_a_named_test(sort: str) -> None:
    assert sorted(n for n, found in PROOFS[sort].items() if found) == numbers(sort)


def test_reliability_lists_the_guarantees_by_the_same_numbers() -> None:
    assert numbers("guarantee", "reliability.md") == numbers("guarantee")


def test_the_contract_names_every_public_function_and_view_and_no_other() -> None:
    reference = (paths.ROOT / "docs/reference.md").read_text()
    without_types = reference.partition("\n## Types")[0]
    public = set(re.findall(r"^### (?:pulse\.)?(\w+)$", without_types, re.MULTILINE))
    contract = (paths.ROOT / "docs/contract.md").read_text()
    surface = contract.partition("## The SQL surface")[2].partition("\n## ")[0]
    # Arguments and their values are explained in the same sentences.
    words = (
        "unique_key unique_for on_conflict skip replace error follow merge max_jobs"
        " dry_run"
    )
    assert set(re.findall(r"`(\w+)`", surface)) - set(words.split()) == public


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
    known = {sort: numbers(sort) for sort in NUMBERED}
    files = [
        *TESTS.glob("sql/**/*.sql"),
        *TESTS.glob("isolation/specs/*.spec"),
        *(paths.EXTENSION / "sql").rglob("*.sql"),
    ]
    strays = [
        f"{file.name}: {word} {number}"
        for file in files
        for word, number in TAG.findall(file.read_text())
        if int(number) not in known[word.lower()]
    ]
    assert strays == []


def test_no_file_cites_a_contract_that_is_not_in_the_repository() -> None:
    elsewhere = re.compile(r"\b(SPEC|ENGINE|CONCURRENCY)\b(\.md| section| guarantee)")
    files = [
        file
        for folder in ("tests", "extension/sql", "python/pulse", "docs", "tools")
        for file in (paths.ROOT / folder).rglob("*")
        if file.suffix in (".py", ".sql", ".spec", ".md")
    ]
    cited = [str(file) for file in files if elsewhere.search(file.read_text())]
    assert cited == []
