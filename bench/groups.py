"""make bench-groups BASE=main: lanes with groups, before and after, in one run.

python -m bench.groups [--base main] [--rounds 12] [--only "slots 1000"]

As bench.compare: the engine of a commit and that of this checkout stand in two
databases of one server and take turns. Each lane has two jobs for every group when it
begins. A slice enqueues a batch over its groups, claims it and completes it, several
times. What counts is processor time of the server's process for a claim and its
reports, by job. The old snapshot is a transaction that begins before the slices and
ends after them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import psycopg

from bench.compare import PAYLOAD, SETTINGS, built, show
from bench.harness import processor
from tools import paths
from tools.servers import Server, primary

BATCHES = (10, 100)
GROUPS = (10, 1_000, 10_000)
CALLS = {10: 10, 100: 3}


@dataclass(frozen=True)
class Lane:
    """fair: turns alone; slots: as many for each group as two batches need."""

    limit: str
    groups: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.limit} {self.groups} by {self.batch}"

    @property
    def setting(self) -> str:
        slots = max(1, 2 * self.batch // self.groups)
        return "fair => true" if self.limit == "fair" else f"group_slots => {slots}"


class Subject:
    """A session in a database with one of the two engines."""

    def __init__(self, server: Server, script: Path) -> None:
        database = server.create()
        server.psql(database, "-f", str(script))
        self.dsn = server.dsn(database)
        self.control = psycopg.connect(self.dsn, autocommit=True)
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.pid = self.connection.info.backend_pid
        self.next_group = 0

    def prepare(self, lane: Lane) -> None:
        self.control.execute(
            f"SELECT pulse.set_lane('{lane.name}', {lane.setting})".encode()
        )
        for _ in range(2):
            self.enqueue(lane, lane.groups)
        self.control.execute("SELECT pulse.tick()")
        self.control.execute("VACUUM ANALYZE")

    def enqueue(self, lane: Lane, jobs: int) -> None:
        self.control.execute(
            "SELECT count(pulse.enqueue('bench', %s::jsonb, lane => %s,"
            " group_key => 'group ' || (n %% %s)))"
            " FROM generate_series(%s::int, %s::int) AS n",
            [
                *(PAYLOAD, lane.name, lane.groups),
                *(self.next_group, self.next_group + jobs - 1),
            ],
        )
        self.next_group += jobs

    def cycle(self, lane: Lane) -> None:
        rows = self.connection.execute(
            "SELECT c.lease FROM pulse.claim_batch('bench', %s, %s) AS c",
            (lane.name, lane.batch),
            prepare=True,
        ).fetchall()
        assert len(rows) == lane.batch, f"{lane.name}: {len(rows)} jobs claimed"
        self.connection.execute(
            "SELECT v.* FROM pulse.complete_batch(%s::bigint []) AS v",
            ([row[0] for row in rows],),
            prepare=True,
        )

    def slice(self, lane: Lane) -> float:
        """Microseconds a job."""
        used = []
        for _ in range(CALLS[lane.batch] + 1):
            self.enqueue(lane, lane.batch)
            before = processor(self.pid)
            self.cycle(lane)
            used.append(processor(self.pid) - before)
        return 1e6 * median(used[1:]) / lane.batch

    def check(self) -> None:
        problems = self.control.execute("SELECT * FROM pulse.check()").fetchall()
        assert not problems, problems


def measure(
    subjects: list[Subject], lane: Lane, rounds: int, old_snapshot: bool
) -> list[list[float]]:
    costs: list[list[float]] = [[] for _ in subjects]
    holders = []
    for subject in subjects:
        subject.prepare(lane)
        if old_snapshot:
            holder = psycopg.connect(subject.dsn)
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT 1")
            holders.append(holder)
    for number in range(-1, rounds):
        for place, subject in random.sample(list(enumerate(subjects)), len(subjects)):
            cost = subject.slice(lane)
            if number >= 0:
                costs[place].append(cost)
            subject.control.execute("SELECT pulse.tick()")
    for holder in holders:
        holder.close()
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="main", help="a commit or a plain script")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default="", help="lanes whose name has this in it")
    asked = parser.parse_args()
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    lanes = [
        Lane(limit, groups, batch)
        for limit in ("fair", "slots")
        for groups in GROUPS
        for batch in BATCHES
    ]
    rows = [["CPU µs a job", "snapshot", "before", "after", "ratio", "between"]]
    with tempfile.TemporaryDirectory() as folder, Server(primary(), SETTINGS) as server:
        before = built(asked.base, Path(folder))
        subjects = [
            Subject(server, before),
            Subject(server, paths.BUILD / "pulse.sql"),
        ]
        print(
            f"before: {asked.base}; after: this checkout; {server.install},"
            f" load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        for lane in lanes:
            if asked.only not in lane.name:
                continue
            for old_snapshot in (False, True):
                old, new = measure(
                    subjects, lane, 2 if quick else asked.rounds, old_snapshot
                )
                pairs = quantiles([a / b for a, b in zip(new, old, strict=True)], n=4)
                rows.append(
                    [
                        *(lane.name, "old" if old_snapshot else "none"),
                        *(f"{median(old):,.1f}", f"{median(new):,.1f}"),
                        f"{median(new) / median(old):.3f}",
                        f"{pairs[0]:.2f} - {pairs[2]:.2f}",
                    ]
                )
        show(rows)
        for subject in subjects:
            subject.check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
