"""What a run says at its end."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.chaos import history
from tests.chaos.plan import NAMES, RATE

if TYPE_CHECKING:
    from tests.chaos.run import Run

# A row of the application and its job commit together or not at all.
APP_ROWS = """
SELECT format('the row of %s was kept and its job %s was not', a.op, a.job)
FROM chaos.app_row AS a
WHERE NOT EXISTS (
    SELECT 1 FROM pulse_internal.body AS b WHERE b.job = a.job
        AND b.payload ->> 'op' = a.op
)
UNION ALL
SELECT format('job %s was kept and its row was not', b.job)
FROM pulse_internal.body AS b
WHERE b.payload ? 'app'
    AND NOT EXISTS (SELECT 1 FROM chaos.app_row AS a WHERE a.op = b.payload ->> 'op')
"""


# What a job was told of its steps is what was saved first.
STEPS = """
SELECT format('job %s returned %s for step %s, and %s was saved', f.job,
    f.result -> s.step, s.step, s.result)
FROM pulse_internal.finished AS f INNER JOIN pulse_internal.job_step
    AS s ON s.job = f.job
WHERE f.state = 'completed' AND f.kind = 'saga' AND f.result ? s.step
    AND f.result -> s.step IS DISTINCT FROM s.result
"""


def steps(connection: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in connection.execute(STEPS)]


def app_rows(connection: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in connection.execute(APP_ROWS)]


def bugs(directory: Path) -> list[str]:
    """Errors that pulse itself calls its own."""
    return [
        f"{record['verb']} answered {record['code']}: {record['error']}"
        for record in history.read_records(directory)
        if record["what"] == "bug"
    ]


def idle(counted: Mapping[str, int]) -> list[str]:
    """A run in which nothing happened keeps every promise and proves none."""
    needed = (
        *("enqueue_ack", "completed", "effects", "claims with slots"),
        *("dependencies waited for", "jobs spawned", "steps saved"),
        "signals acknowledged",
    )
    return [
        f"nothing was proved: no {what}" for what in needed if not counted.get(what)
    ]


def operated(directory: Path) -> int:
    """How many verbs of operators were answered."""
    records = history.read_records(directory)
    return sum(record["what"] == "control_ack" for record in records)


def show(
    run: Run,
    asked: argparse.Namespace,
    counted: Mapping[str, int],
    rested: float,
    violations: Sequence[str],
) -> None:
    seed, seconds = asked.seed, f"{asked.seconds:.0f}"
    print(f"\nseed {seed}: {seconds} s of faults, at rest {rested:.1f} s later")
    print("\njobs")
    for name, number in sorted((+Counter(counted)).items()):
        print(f"{number:>10,}  {name}")
    print("\nfaults")
    for name in NAMES:
        why = run.impossible.get(name)
        left_out = "" if name in run.chosen else "  (not asked for)"
        note = f"  (not possible here: {why})" if why else left_out
        print(f"{run.counts[name]:>10,}  {name}{note}")
    print(f"\nviolations: {len(violations)}")
    for violation in violations:
        print(f"- {violation}")
    only = "" if set(run.chosen) == set(NAMES) else f" CHAOS_FAULTS={asked.faults}"
    load = "" if asked.rate == RATE else f" CHAOS_RATE={asked.rate:g}"
    again = f"CHAOS_SECONDS={seconds} CHAOS_SEED={seed}{load}{only}"
    print(f"repeat with: make chaos {again}")
