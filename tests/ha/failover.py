"""What a switchover and the death of the leader cost: time, enqueues, runs.

python -m tests.ha.failover [--synchronous | --asynchronous]

Patroni leads three servers; a producer enqueues one job after the other over a DSN that
names all three, a worker runs them. First the leader changes in good order, then it is
killed like by a power cut. Judged by what the producer was told and the handler did:
with synchronous_mode nothing that was acknowledged may be missing, no number is
ever handed out twice, and everything that is there is worked off.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

import pulse
from tests.ha import needs
from tests.ha.cluster import Cluster, wait_until
from tools import paths, requirements, servers

WARM_UP, AFTER = 4.0, 6.0
KINDS = "SELECT pulse.set_kind('k', backoff_base => '100 ms', lease_for => '10 s')"
THERE = "SELECT payload ->> 'op' FROM pulse.jobs"
LEFT = "SELECT count(*) FROM pulse.jobs WHERE state <> 'completed'"
JUMPS = "SELECT count(*) FROM pulse.audit WHERE verb = 'jump'"


@dataclass
class Story:
    """What the producer was told, and what the handler did."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    """The id that each enqueue was answered with."""
    times: list[float] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    leases: list[int] = field(default_factory=list)

    def pause_after(self, moment: float) -> float:
        """From a moment to the first enqueue that was acknowledged after the gap."""
        told = [moment, *(at for at in self.times if at >= moment)]
        gaps = [(later - at, later) for at, later in itertools.pairwise(told)]
        return max(gaps)[1] - moment


@dataclass(frozen=True)
class Verdict:
    acknowledged: int
    lost: int
    twice: int
    problems: Sequence[str]


def judge(
    story: Story, there: Sequence[str], synchronous: bool, checked: Sequence[str] = ()
) -> Verdict:
    """there: the jobs that the last leader has; checked: what pulse.check() found."""
    problems = list(checked)
    lost = set(story.acknowledged) - set(there)
    if synchronous and lost:
        problems.append(f"{len(lost)} acknowledged jobs are lost")
    ids = Counter(story.acknowledged.values())
    problems += [
        f"job {n} was handed out twice" for n, times in ids.items() if times > 1
    ]
    leases = Counter(story.leases)
    problems += [f"lease {n} came twice" for n, times in leases.items() if times > 1]
    problems += [f"job of {op} never ran" for op in there if not story.runs[op]]
    twice = sum(times > 1 for times in story.runs.values())
    return Verdict(len(story.acknowledged), len(lost), twice, problems)


class Load:
    """A producer and a worker, while the block lasts."""

    def __init__(self, dsn: str, story: Story) -> None:
        self._dsn, self._story = dsn, story
        self._over = threading.Event()
        self._worker = pulse.Worker(dsn, concurrency=4, poll_interval=0.2)
        self._worker.handle("k")(self._handle)
        self._threads = [
            threading.Thread(target=self._produce),
            threading.Thread(target=self._worker.run),
        ]

    def _handle(self, job: pulse.Job, op: str) -> None:
        self._story.runs[op] += 1
        self._story.leases.append(job.lease)

    def _produce(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        for n in itertools.count():
            if self._over.is_set():
                break
            op = f"op {n}"
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self._dsn, autocommit=True)
                job_id = pulse.enqueue(connection, "k", {"op": op})
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                time.sleep(0.02)
                continue
            self._story.acknowledged[op] = job_id
            self._story.times.append(time.monotonic())
            time.sleep(0.003)

    def stop_enqueueing(self) -> None:
        self._over.set()
        self._threads[0].join()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_enqueueing()
        self._worker.stop()
        self._threads[1].join()


def ask(cluster: Cluster, query: str, database: str = "app") -> list[tuple[Any, ...]]:
    with psycopg.connect(cluster.dsn(database), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def install(cluster: Cluster) -> None:
    ask(cluster, "CREATE DATABASE app", "postgres")
    ask(cluster, (paths.BUILD / "pulse.sql").read_text())
    ask(cluster, KINDS)


def goes_on(story: Story, since: float) -> bool:
    return len(story.times) > 0 and story.times[-1] > since + AFTER


def run(synchronous: bool) -> tuple[Verdict, Mapping[str, float]]:
    story, pauses = Story(), {}
    with Cluster(synchronous) as cluster:
        try:
            install(cluster)
            with Load(cluster.dsn(), story) as load:
                began = time.monotonic()
                wait_until(lambda: time.monotonic() > began + WARM_UP, "a warm-up")
                moment = time.monotonic()
                cluster.switch_over()
                wait_until(cluster.whole, "all follow the new leader")
                done = time.monotonic()
                wait_until(
                    lambda: goes_on(story, done), "enqueues after the switchover"
                )
                pauses["switchover"] = story.pause_after(moment)
                leader = cluster.leader()
                assert leader is not None
                moment = time.monotonic()
                leader.power_cut()
                wait_until(
                    lambda: goes_on(story, moment), "enqueues after the failover"
                )
                pauses["failover"] = story.pause_after(moment)
                cluster.start(leader)
                load.stop_enqueueing()
                wait_until(lambda: ask(cluster, LEFT) == [(0,)], "an empty queue")
                wait_until(cluster.whole, "the old leader follows")
            checked = [str(row) for row in ask(cluster, "SELECT * FROM pulse.check()")]
            if ask(cluster, JUMPS) != [(2,)]:
                checked.append("the numbers did not jump with each new leader")
            there = [op for (op,) in ask(cluster, THERE)]
        except BaseException:
            print(cluster.tail())
            raise
    return judge(story, there, synchronous, checked), pauses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--asynchronous", action="store_true")
    chosen = parser.parse_args()
    reason = needs.get()
    if reason is None and servers.primary().origin == "embedded":
        reason = "no PostgreSQL of the distribution"
    if reason is not None:
        print(f"skipped: {reason}")
        return int("patroni" in requirements.missing())
    logging.getLogger("pulse").setLevel(logging.CRITICAL)
    failed = False
    modes = [
        m for m in (False, True) if (chosen.synchronous, chosen.asynchronous)[not m]
    ]
    for synchronous in modes or (False, True):
        verdict, pauses = run(synchronous)
        print(
            f"{'synchronous' if synchronous else 'asynchronous'}: "
            f"{verdict.acknowledged} acknowledged, {verdict.lost} lost, "
            f"{verdict.twice} ran twice; first enqueue after the switchover "
            f"{pauses['switchover']:.1f} s, after the death of the leader "
            f"{pauses['failover']:.1f} s; problems: {len(verdict.problems)}",
            flush=True,
        )
        for problem in verdict.problems[:20]:
            print(f"  {problem}")
        failed = failed or bool(verdict.problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
