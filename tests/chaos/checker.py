"""Reads the whole history of a run and says which promises were not kept.

    python -m tests.chaos.checker DIRECTORY      judge a kept run once more

The judges are the invariants*.py files, one class for each promise. They see every
transaction once, in commit order, so a run of any length fits into memory.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos import history, journal
from tests.chaos.history import Event, Record, Transaction
from tests.chaos.invariants import KEPT, Invariant, Lives, Violation
from tests.chaos.invariants_clients import (
    AcceptedReportsHappened,
    AcknowledgedEnqueuesExist,
    EffectsHaveALiveLease,
)
from tests.chaos.invariants_counters import COUNTED, Counters, CountersAreExact
from tests.chaos.invariants_flows import (
    DependentsWait,
    SignalsAreKept,
    SpawnsHappenOnce,
    StepsAreDoneOnce,
)
from tests.chaos.invariants_jobs import (
    CompletedStaysCompleted,
    FailuresAreBounded,
    LeasesGrow,
    OnlyTheHolderEndsARun,
    StandsInOnePlace,
)
from tests.chaos.invariants_lanes import (
    GroupSlotsAreExact,
    GroupsWaitForTheirJobs,
    NothingIsClaimedWhilePaused,
    SlotsAreExact,
    WorkersGetWhatTheyCanRun,
)
from tests.chaos.invariants_numbers import Losses, NumbersAreHandedOutOnce
from tests.chaos.invariants_order import OrderIsKept
from tests.chaos.invariants_pressure import HostileValuesAreAnswered, UpkeepGoesOn
from tests.chaos.invariants_rates import RatesAreExact
from tests.chaos.invariants_schedules import OccurrencesAreHandledOnce
from tests.chaos.journal import Steps

_PLACES = """
SELECT 'blocked', b.job, b.kind FROM pulse_internal.blocked AS b
UNION ALL SELECT 'approval', a.job, a.kind FROM pulse_internal.approval AS a
UNION ALL SELECT 'waiting', w.job, w.kind FROM pulse_internal.waiting AS w
UNION ALL SELECT 'ready', r.job, r.kind FROM pulse_internal.ready AS r
UNION ALL SELECT 'lease', l.job, l.kind FROM pulse_internal.lease AS l
UNION ALL SELECT 'finished', f.job, f.kind FROM pulse_internal.finished AS f
"""
_PROBLEMS = """
SELECT concat_ws(' ', c.problem || ':', 'job ' || c.job_id, c.detail)
FROM pulse.check() AS c
"""
# tick looks at schedules every second; a minute late is not late but forgotten.
_FORGOTTEN = """
SELECT format('schedule %s was due at %s', s.name, s.next_at)
FROM pulse_internal.schedule AS s
WHERE s.paused_at IS NULL AND s.next_at < clock_timestamp() - interval '1 minute'
"""
_UNCOUNTED = "SELECT count(*) FROM pulse_internal.tally"
_COUNTERS = f"SELECT lane, kind, enqueued, {', '.join(COUNTED)} FROM pulse.counters"


@dataclass
class Final:
    """What the tables say when all is over."""

    places: dict[int, str] = field(default_factory=dict)
    bodies: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    unfinished: list[tuple[int, str, str]] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    # None: nobody has asked.
    counters: Counters | None = None


def read_final(connection: psycopg.Connection[Any]) -> Final:
    final = Final()
    for place, job, kind in connection.execute(_PLACES):
        final.places[job] = place
        if place != "finished":
            final.unfinished.append((job, place, kind))
    final.bodies = {
        job for (job,) in connection.execute("SELECT job FROM pulse_internal.body")
    }
    for query in (_PROBLEMS, _FORGOTTEN):
        final.problems += [line for (line,) in connection.execute(query)]
    final.outcomes = dict(
        connection.execute(
            "SELECT f.state::text, count(*) FROM pulse_internal.finished AS f GROUP "
            "BY f.state"
        ).fetchall()
    )
    final.counters = read_counters(connection)
    return final


def read_counters(connection: psycopg.Connection[Any]) -> Counters:
    """All is at rest: what late transactions left is decided within a few looks."""
    for _ in range(5):
        connection.execute("SELECT pulse_internal.tick_count()")
        row = connection.execute(_UNCOUNTED).fetchone()
        if row == (0,):
            break
    names = ("enqueued", *COUNTED)
    return [
        (lane, kind, dict(zip(names, counts, strict=True)))
        for lane, kind, *counts in connection.execute(_COUNTERS.encode())
    ]


@dataclass
class Report:
    violations: list[Violation]
    counted: dict[str, int]
    """How much was looked at: a promise nobody put to the test is not proved."""


def judge(
    records: Sequence[Record],
    transactions: Iterable[Transaction],
    final: Final,
    may_remain: Collection[str] = (),
) -> Report:
    """Every violation in a history; jobs of the kinds in may_remain need not end."""
    kinds = {r["name"]: r["kinds"] for r in records if r["what"] == "worker"}
    lives, places = Lives(), StandsInOnePlace()
    losses, steps = Losses.of(records), Steps.of(records)
    judges: list[Invariant] = [
        places,
        CompletedStaysCompleted(),
        LeasesGrow(),
        OnlyTheHolderEndsARun(steps),
        FailuresAreBounded(),
        SlotsAreExact(),
        GroupSlotsAreExact(),
        GroupsWaitForTheirJobs(),
        RatesAreExact(steps),
        NothingIsClaimedWhilePaused(),
        WorkersGetWhatTheyCanRun(kinds),
        OrderIsKept(records, kinds),
        OccurrencesAreHandledOnce(),
        DependentsWait(),
        SpawnsHappenOnce(steps),
        StepsAreDoneOnce(records, lives),
        SignalsAreKept(records, losses),
        NumbersAreHandedOutOnce(losses),
        AcknowledgedEnqueuesExist(records, losses),
        AcceptedReportsHappened(records, lives, losses),
        EffectsHaveALiveLease(records, lives, losses, steps),
        UpkeepGoesOn(records),
        HostileValuesAreAnswered(records),
        CountersAreExact(final.counters),
    ]
    counted: Counter[str] = Counter()
    for transaction in transactions:
        counted["transactions"] += 1
        lives.commit(transaction)
        for each in judges:
            each.commit(transaction)
    places.compare(final.places, final.bodies)
    left = [each for each in final.unfinished if each[2] not in may_remain]
    counted["violations"] = len(final.problems) + len(left)
    violations = [
        Violation("pulse.check() is empty", line) for line in final.problems[:KEPT]
    ] + [
        Violation("Everything drains", f"job {job} of kind {kind} is left in {place}")
        for job, place, kind in left[:KEPT]
    ]
    for each in judges:
        each.end()
        violations += each.found
        counted.update(each.counted)
    counted["jobs"] = len(places.places)
    counted["runs"] = len(lives.leases)
    counted.update(final.outcomes)
    return Report(violations, dict(counted))


def check(
    connection: psycopg.Connection[Any],
    directory: Path | str,
    may_remain: Collection[str] = (),
) -> Report:
    """Judge a run by its server and the records in its directory; all is at rest."""
    records = history.read_records(directory)
    final = read_final(connection)
    transactions = journal.read_journal(connection, Steps.of(records))
    return judge(records, transactions, final, may_remain)


# -- a run that is kept ---------------------------------------------------------------


def keep(connection: psycopg.Connection[Any], directory: Path | str) -> None:
    """Put the server's side of the history beside the clients', to be judged again."""
    final = read_final(connection)
    facts = {**asdict(final), "bodies": sorted(final.bodies)}
    facts["places"] = sorted(final.places.items())
    Path(directory, "final.json").write_text(json.dumps(facts))
    with gzip.open(Path(directory, "journal.gz"), "wt", compresslevel=1) as file:
        steps = Steps.of(history.read_records(directory))
        for transaction in journal.read_journal(connection, steps):
            file.write(json.dumps(asdict(transaction)) + "\n")


def read_kept(directory: Path | str) -> tuple[Iterator[Transaction], Final]:
    facts = json.loads(Path(directory, "final.json").read_text())
    facts["bodies"] = set(facts["bodies"])
    facts["places"] = dict(facts["places"])
    for name in ("unfinished", "counters"):
        facts[name] = [tuple(each) for each in facts[name]]

    def transactions() -> Iterator[Transaction]:
        with gzip.open(Path(directory, "journal.gz"), "rt") as lines:
            for line in lines:
                row = json.loads(line)
                row["events"] = [Event(**event) for event in row["events"]]
                yield Transaction(**row)

    return transactions(), Final(**facts)


def main(directory: str) -> int:
    transactions, final = read_kept(directory)
    report = judge(history.read_records(directory), transactions, final)
    for violation in report.violations:
        print(violation)
    for what, number in sorted(report.counted.items()):
        print(f"{number:>10}  {what}")
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
