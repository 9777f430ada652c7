"""make bench-compare BASE=main: what each verb costs, before and after, in one run.

python -m bench.compare [--base main] [--rounds 60] [--only enqueue,claim]

The engine of a commit and the one of this checkout stand in two databases of one
server, the one-table design in a third. An ordinary role with one session in each
calls the verbs in short slices that take turns, so whatever else the machine does meets
all of them alike. What counts is processor time of the server's process, the lower
quartile of the calls of a slice and of the slices; "between" has the middle half of the
ratios of neighbours. So what is done once in many calls (plans, marks) is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg

from bench.harness import HERE, processor
from tools import paths
from tools.servers import Server, primary

# Five keys, 100 bytes.
PAYLOAD = (
    '{"to": "ada@example.org", "subject": "hello", "template": "welcome",'
    ' "locale": "en", "account": 12345}'
)
KINDS = ["bench", *(f"kind {n}" for n in range(9))]
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    # What it would do is done between the rounds.
    "autovacuum": "off",
}


class Subject:
    """A session in a database of its own; steps hand each other what they claimed."""

    def __init__(self, name: str, server: Server, script: Path) -> None:
        self.name = name
        database = server.create()
        server.psql(database, "-f", str(script))
        self.control = psycopg.connect(server.dsn(database), autocommit=True)
        self.allow()
        self.connection = psycopg.connect(
            server.dsn(database, user="bench"), autocommit=True
        )
        self.pid = self.connection.info.backend_pid
        self.taken: list[list[int]] = []
        # As the worker of that build reports jobs without results.
        known = "SELECT 'completed' = ANY (proargnames) FROM pg_proc"
        row = self.control.execute(f"{known} WHERE proname = 'exchange'").fetchone()
        lists = row is not None and row[0]
        self.reports = "completed => %s::bigint []" if lists else "done => %s::jsonb"
        # Builds before pulse_internal existed keep their tables in pulse.
        schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pulse_internal'"
        found = self.control.execute(schemas).fetchone()
        self.tables = "pulse_internal" if found and found[0] else "pulse"

    def allow(self) -> None:
        for access in ("producer", "worker"):
            self.control.execute("SELECT pulse.grant_access('bench', %s)", [access])
        # As docs/python.md says for very short jobs.
        self.control.execute("SELECT pulse.set_lane('bulk', max_batch => 500)")

    def call(self, query: str, *parameters: object) -> list[Any]:
        cursor = self.connection.execute(query.encode(), parameters, prepare=True)
        return cursor.fetchall() if cursor.description else []

    def enqueue(self, jobs: int) -> None:
        if jobs == 1:
            self.call("SELECT pulse.enqueue('bench', %s::jsonb)", PAYLOAD)
        else:
            self.call(
                "SELECT count(*) FROM pulse.enqueue_many('bench', %s::jsonb [])",
                [PAYLOAD] * jobs,
            )

    def claim(self, jobs: int) -> None:
        rows = self.call(
            "SELECT c.* FROM pulse.claim_batch('bench', max_jobs => %s) AS c", jobs
        )
        assert len(rows) == jobs, f"{len(rows)} of {jobs} jobs claimed"
        self.taken.append([row[0] for row in rows])

    def complete(self, _: int) -> None:
        leases = self.taken.pop()
        self.call("SELECT v.* FROM pulse.complete_batch(%s::bigint []) AS v", leases)

    def exchange(self, jobs: int, kinds: list[str] | None = None) -> None:
        """Report what the last one brought, claim as many."""
        leases: list[int] = self.taken.pop()
        done = [{"lease": str(lease)} for lease in leases]
        rows = self.call(
            f"SELECT e.* FROM pulse.exchange('bench', %s::jsonb, {self.reports},"
            " kinds => %s::text []) AS e",
            json.dumps({"bulk": jobs}),
            leases if "completed" in self.reports else json.dumps(done),
            kinds,
        )
        assert len(rows) == jobs, f"{len(rows)} of {jobs} jobs exchanged"
        self.taken.append([row[3] for row in rows])

    def exchange_kinds(self, jobs: int) -> None:
        """As a Python worker does, which names the kinds that it has handlers for."""
        self.exchange(jobs, KINDS)

    def stock(self, jobs: int, calls: int) -> None:
        """What so many exchanges take, and what the first of them reports."""
        for _ in range(calls + 1):
            self.call(
                "SELECT count(*)"
                " FROM pulse.enqueue_many('bench', %s::jsonb [], 'bulk')",
                [PAYLOAD] * jobs,
            )
        self.taken.append([])
        self.exchange(jobs)

    def rest(self) -> None:
        """Between two rounds: what a worker and autovacuum do."""
        self.control.execute("SELECT pulse.tick()")
        self.control.execute(f"VACUUM {self.tables}.ready, {self.tables}.lease")

    def check(self) -> None:
        problems = self.control.execute("SELECT * FROM pulse.check()").fetchall()
        assert not problems, problems

    def close(self) -> None:
        self.connection.close()
        self.control.close()


class OneTable(Subject):
    """The design pulse is measured against, history kept: three bare statements."""

    def allow(self) -> None:
        self.control.execute("GRANT USAGE ON SCHEMA one_table TO bench")
        self.control.execute("GRANT ALL ON one_table.job TO bench")

    def enqueue(self, jobs: int) -> None:
        insert = "INSERT INTO one_table.job (kind, payload)"
        if jobs == 1:
            self.call(f"{insert} VALUES ('bench', %s::jsonb) RETURNING id", PAYLOAD)
        else:
            self.call(
                f"{insert} SELECT 'bench', p FROM unnest(%s::jsonb []) AS p",
                [PAYLOAD] * jobs,
            )

    def claim(self, jobs: int) -> None:
        rows = self.call(
            """
            UPDATE one_table.job
            SET
                state = 'running',
                attempt = attempt + 1,
                worker = 'bench',
                claimed_at = clock_timestamp(),
                lease_until = clock_timestamp() + interval '30 seconds'
            WHERE ctid = ANY (array(
                SELECT j.ctid
                FROM one_table.job AS j
                WHERE j.lane = 'default'
                    AND j.state = 'ready'
                ORDER BY j.priority DESC, j.id
                LIMIT %s
                FOR UPDATE SKIP LOCKED
            ))
            RETURNING id, kind, payload, attempt, lease_until
            """,
            jobs,
        )
        assert len(rows) == jobs, f"{len(rows)} of {jobs} jobs claimed"
        self.taken.append([row[0] for row in rows])

    def complete(self, _: int) -> None:
        self.call(
            "UPDATE one_table.job"
            " SET state = 'done', finished_at = clock_timestamp(), lease_until = NULL"
            " WHERE id = ANY (%s::bigint []) RETURNING id",
            self.taken.pop(),
        )

    def stock(self, jobs: int, calls: int) -> None:
        for _ in range(calls + 1):
            self.enqueue(jobs)
        self.claim(jobs)

    def exchange(self, jobs: int, kinds: list[str] | None = None) -> None:
        """In two statements and transactions: there is no such verb."""
        self.complete(jobs)
        self.claim(jobs)

    def rest(self) -> None:
        self.control.execute("VACUUM one_table.job")

    def check(self) -> None:
        pass


# Which verb, of how many jobs, how many calls a slice. What a step leaves behind is
# what the next one takes.
Step = tuple[str, int, int]
STEPS: list[Step] = [
    ("enqueue", 1, 60),
    ("claim", 1, 60),
    ("complete", 1, 60),
    ("enqueue", 100, 3),
    ("claim", 100, 3),
    ("complete", 100, 3),
    ("exchange", 10, 12),
    ("exchange", 500, 2),
    ("exchange_kinds", 10, 12),
]
NAMES = {
    ("enqueue", 1): "enqueue",
    ("enqueue", 100): "enqueue_many 100",
    ("claim", 1): "claim_batch 1",
    ("claim", 100): "claim_batch 100",
    ("complete", 1): "complete_batch 1",
    ("complete", 100): "complete_batch 100",
    ("exchange", 10): "exchange 10",
    ("exchange", 500): "exchange 500",
    ("exchange_kinds", 10): "exchange 10, kinds",
}


def slice_of(subject: Subject, step: Step) -> float:
    """Microseconds of processor time of a call that nothing disturbed."""
    verb, jobs, calls = step
    act: Callable[[int], None] = getattr(subject, verb)
    if verb.startswith("exchange"):
        subject.stock(jobs, calls + 1)
    # Plans anew: VACUUM between the rounds has thrown the plans away.
    act(jobs)
    used = []
    for _ in range(calls):
        before = processor(subject.pid)
        act(jobs)
        used.append(processor(subject.pid) - before)
    if verb.startswith("exchange"):
        subject.complete(jobs)
    return 1e6 * quantiles(used, n=4, method="inclusive")[0]


def measure(
    subjects: list[Subject], steps: list[Step], rounds: int, warm: int
) -> dict[Step, list[list[float]]]:
    """For each step and subject the cost of every slice."""
    costs: dict[Step, list[list[float]]] = {
        step: [[] for _ in subjects] for step in steps
    }
    order = list(enumerate(subjects))
    for number in range(-warm, rounds):
        for step in steps:
            # Drawn anew each time: who runs twice in a row has warm caches.
            for place, subject in random.sample(order, len(order)):
                cost = slice_of(subject, step)
                if number >= 0:
                    costs[step][place].append(cost)
        for subject in subjects:
            subject.rest()
    return costs


def lower(values: list[float]) -> float:
    return quantiles(values, n=4)[0]


def table(costs: dict[Step, list[list[float]]]) -> list[list[str]]:
    rows = [
        [
            "CPU µs a call",
            "before",
            "after",
            "ratio",
            "between",
            "one table",
            "after / it",
        ]
    ]

    def row(
        name: str, before: list[float], after: list[float], bare: list[float]
    ) -> None:
        pairs = quantiles([a / b for a, b in zip(after, before, strict=True)], n=4)
        rows.append(
            [
                *(name, f"{lower(before):,.1f}", f"{lower(after):,.1f}"),
                *(
                    f"{lower(after) / lower(before):.3f}",
                    f"{pairs[0]:.2f} - {pairs[2]:.2f}",
                ),
                *(f"{lower(bare):,.1f}", f"{lower(after) / lower(bare):.2f}"),
            ]
        )

    for step, (before, after, bare) in costs.items():
        row(NAMES[step[:2]], before, after, bare)
    cycle = [costs[step] for step in costs if step[1] == 1]
    if len(cycle) == 3:
        sums = [
            [sum(x) for x in zip(*each, strict=True)]
            for each in zip(*cycle, strict=True)
        ]
        row("one at a time", *sums)
    return rows


def show(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [
            cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)
        ]
        print("   ".join([first.ljust(widths[0]), *cells]))


def built(base: str, folder: Path) -> Path:
    """The plain script of a commit, or the file that was named."""
    if base.endswith(".sql"):
        return Path(base)
    archive = subprocess.run(
        ["git", "archive", base, "extension"],
        cwd=paths.ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    subprocess.run(["make", "-s", "-C", folder / "extension"], check=True)
    return folder / "extension/build/pulse.sql"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="main", help="a commit or a plain script")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default="", help="steps whose name begins so")
    asked = parser.parse_args()
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    words = tuple(asked.only.replace(",", " ").split()) or ("",)
    steps = [step for step in STEPS if NAMES[step[:2]].startswith(words)]
    if any(verb in ("claim", "complete") for verb, _, _ in steps):
        steps = [step for step in STEPS if step in steps or step[0][:8] != "exchange"]
    if not steps:
        parser.error(f"no such step: there are {', '.join(NAMES.values())}")

    with tempfile.TemporaryDirectory() as folder, Server(primary(), SETTINGS) as server:
        before = built(asked.base, Path(folder))
        server.psql("postgres", "-c", "CREATE ROLE bench LOGIN")
        subjects = [
            Subject("before", server, before),
            Subject("after", server, paths.BUILD / "pulse.sql"),
            OneTable("one table", server, HERE / "baseline_one_table.sql"),
        ]
        print(
            f"before: {asked.base}; after: this checkout; {server.install},"
            f" load {os.getloadavg()[0]:.1f}, five keys and 100 bytes a job",
            flush=True,
        )
        rounds, warm = (2, 0) if quick else (asked.rounds, 3)
        show(table(measure(subjects, steps, rounds, warm)))
        for subject in subjects:
            subject.check()
            subject.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
