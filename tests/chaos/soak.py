"""Long runs: the upkeep of a million jobs, and a worker that has run a million.

    python -m tests.chaos.soak --jobs 1000000

Prints what it measured. test_soak.py runs the same with fewer jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

import pulse
from tools import paths, servers

Connection = psycopg.Connection[Any]
BATCH = 10_000
# What one tick may do at most in each step, so that no tick takes long.
BOUNDS = {"promote": 10 * BATCH, "reap": BATCH, "prune": BATCH, "approvals": 1000}
# A job, its row or its report kept alive is several hundred bytes.
GROWTH = 100
# Lanes, each with its part of a thousand and what becomes of its jobs. The last claims
# are those that lapse: a later one would reap them.
PARTS = {
    "ready": (400, "ready"),
    "later": (150, "scheduled"),
    "asked": (10, "awaiting_approval"),
    "done": (150, "completed"),
    "dead": (50, "dead"),
    "dropped": (40, "cancelled"),
    "running": (30, "running"),
    # From here on there is something for tick to do.
    "due": (60, "ready"),
    "again": (50, "ready"),
    "old": (28, None),
    "unasked": (2, "cancelled"),
    "lapsed": (30, "dead"),
}

ENQUEUE = """
    SELECT count(*) FROM pulse.enqueue_many(
        %(kind)s, array_fill('{}'::jsonb, ARRAY[%(n)s]), lane => %(lane)s,
        delay => %(delay)s::interval, max_attempts => %(attempts)s,
        requires_approval => %(approval)s
    )
"""
CLAIM = "SELECT lease FROM pulse.claim_batch('soak', %s, %s, %s::interval)"
COMPLETE = "SELECT count(*) FROM pulse.complete_batch(%s)"
FAIL = "SELECT count(*) FROM pulse.fail_batch(%s, retry_in => %s::interval[])"
STATES = "SELECT lane, state, count(*) FROM pulse.jobs GROUP BY lane, state"


@dataclass
class Ticks:
    """What the ticks of a soak did."""

    seconds: list[float] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def tick(self, connection: Connection) -> None:
        began = time.monotonic()
        rows = connection.execute("SELECT step, did, error FROM pulse.tick()")
        for step, did, error in rows.fetchall():
            self.most[step] = max(self.most[step], did or 0)
            self.total[step] += did or 0
            if error:
                self.errors.append(f"{step}: {error}")
        self.seconds.append(time.monotonic() - began)


def fill(connection: Connection, jobs: int) -> dict[str, int]:
    """Jobs in every state, made by the verbs that users have."""
    for call in (
        "set_lane('old', retain_completed => '0', max_batch => 10000)",
        *(
            f"set_lane('{lane}', max_batch => 10000)"
            for lane in ("done", "dead", "running", "again", "lapsed")
        ),
        "set_kind('short', requires_approval => true, approval_expiry => '1 second')",
    ):
        connection.execute(f"SELECT pulse.{call}".encode())
    sizes = {lane: max(1, jobs * part // 1000) for lane, (part, _) in PARTS.items()}
    for lane, size in sizes.items():
        for done in range(0, size, BATCH):
            _fill_lane(connection, lane, min(BATCH, size - done))
    return sizes


def _fill_lane(connection: Connection, lane: str, n: int) -> None:
    connection.execute(
        ENQUEUE,
        {
            "kind": "short" if lane == "unasked" else "k",
            **{"n": n, "lane": lane, "attempts": 1 if lane == "lapsed" else 3},
            "delay": {"later": "1 day", "due": "1 second"}.get(lane),
            "approval": True if lane == "asked" else None,
        },
    )
    if lane == "dropped":
        connection.execute(
            'SELECT pulse.cancel_where(\'{"lane": "dropped"}\', max_jobs => 10000)'
        )
    if lane not in ("done", "old", "dead", "running", "again", "lapsed"):
        return
    lease_for = "1 second" if lane == "lapsed" else "1 day"
    leases = [row[0] for row in connection.execute(CLAIM, (lane, n, lease_for))]
    assert len(leases) == n
    if lane in ("done", "old"):
        connection.execute(COMPLETE, (leases,))
    elif lane == "dead":
        connection.execute(
            "SELECT count(*) FROM pulse.fail_batch(%s, fatal => %s)",
            (leases, [True] * n),
        )
    elif lane == "again":
        connection.execute(FAIL, (leases, ["1 second"] * n))


def expected(sizes: dict[str, int]) -> dict[tuple[str, str], int]:
    return {(lane, PARTS[lane][1] or ""): n for lane, n in sizes.items()}


def soak_tick(
    connection: Connection, sizes: dict[str, int], limit: float = 3600
) -> Ticks:
    """Tick until all that was due is done; claims of the other lanes go on."""
    ticks, end = Ticks(), time.monotonic() + limit
    wanted = {key: n for key, n in expected(sizes).items() if key[1]}
    while time.monotonic() < end:
        ticks.tick(connection)
        connection.execute(CLAIM, ("idle", 10, "1 minute"))
        rows = connection.execute(STATES).fetchall()
        if {(lane, state): n for lane, state, n in rows} == wanted:
            return ticks
        time.sleep(0.5)
    raise TimeoutError(f"after {limit} s the jobs are {rows}")


# -- the worker -----------------------------------------------------------------------


def work(dsn: str) -> None:
    """A worker of jobs that do nothing, until it is asked to stop."""
    worker = pulse.Worker(dsn, concurrency=20, tick=False)

    @worker.handle("nothing")
    async def nothing(job: pulse.Job) -> None: ...

    asyncio.run(worker.run_async(signals=True))


def resident(pid: int) -> int:
    """The memory of a process in bytes."""
    said = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(said.stdout) * 1024


@dataclass
class Memory:
    """The memory of a worker by how many jobs it had run."""

    samples: list[tuple[int, int]] = field(default_factory=list)

    def at(self, begin: float, end: float) -> float:
        """The median between two parts of the way."""
        last = self.samples[-1][0]
        return statistics.median(
            size for n, size in self.samples if begin * last <= n <= end * last
        )

    @property
    def growth_a_job(self) -> float:
        """Bytes a job from the second quarter, when all is warm, to the last."""
        jobs = self.samples[-1][0] * 0.5
        return (self.at(0.75, 1.0) - self.at(0.25, 0.5)) / jobs


def soak_worker(
    dsn: str, jobs: int, tell: Callable[[str], None] = lambda _: None
) -> Memory:
    memory = Memory()
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.soak", "--work", dsn],
        cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": f"{paths.ROOT}:{paths.ROOT / 'python'}"},
    )
    step = max(1000, min(BATCH, jobs // 40))
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for done in range(step, jobs + 1, step):
                connection.execute(
                    "SELECT count(*) FROM pulse.enqueue_many("
                    " 'nothing', array_fill('{}'::jsonb, ARRAY[%s]))",
                    (step,),
                )
                _until_done(connection, child)
                memory.samples.append((done, resident(child.pid)))
                if done % (10 * step) == 0:
                    tell(f"{done} jobs: {memory.samples[-1][1] >> 10} kB")
    finally:
        child.terminate()
        child.wait(60)
    return memory


def _until_done(connection: Connection, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    left = (
        "SELECT EXISTS (SELECT FROM pulse_internal.ready) OR EXISTS (SELECT FROM "
        "pulse_internal.lease)"
    )
    while connection.execute(left).fetchone() != (False,):
        if child.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the worker does not work")
        time.sleep(0.02)


# -- the command ----------------------------------------------------------------------


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=1_000_000)
    options.add_argument("--work", metavar="DSN")
    chosen = options.parse_args()
    if chosen.work:
        work(chosen.work)
        return 0
    with servers.temporary() as server:
        dsn = server.dsn(server.create(product="extension"))
        with psycopg.connect(dsn, autocommit=True) as connection:
            began = time.monotonic()
            sizes = fill(connection, chosen.jobs)
            print(f"{sum(sizes.values())} jobs in {time.monotonic() - began:.0f} s")
            ticks = soak_tick(connection, sizes)
            problems = connection.execute("SELECT * FROM pulse.check()").fetchall()
        print(
            f"{len(ticks.seconds)} ticks: median"
            f" {statistics.median(ticks.seconds) * 1000:.0f} ms, longest"
            f" {max(ticks.seconds) * 1000:.0f} ms; did {dict(ticks.total)};"
            f" errors {ticks.errors}; check() {problems}"
        )
        dsn = server.dsn(server.create(product="extension"))
        memory = soak_worker(dsn, chosen.jobs, print)
        first, last = memory.samples[len(memory.samples) // 4], memory.samples[-1]
        print(
            f"{first[1] >> 10} kB after {first[0]} jobs, {last[1] >> 10} kB after"
            f" {last[0]}: {memory.growth_a_job:.1f} bytes a job"
        )
    bounded = all(ticks.most[step] <= n for step, n in BOUNDS.items())
    flat = memory.growth_a_job < GROWTH
    return 0 if bounded and flat and not ticks.errors and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
