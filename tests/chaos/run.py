"""Run a load while everything breaks, let it come to rest, and judge the history.

python -m tests.chaos.run --seconds 120 --seed 7 --faults crash,kill_worker

The seed decides which fault comes when and to whom; what it meets there is up to the
machine. The status is 1 when a promise was not kept; the history is then kept too.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos import checker, history, journal, operators, report
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Impossible, World
from tests.chaos.faults_server import FAULTS, hold_snapshot
from tests.chaos.plan import NAMES, RATE, Step, plan
from tests.chaos.supervise import Fleet

APP_ROWS = "CREATE TABLE chaos.app_row (op text PRIMARY KEY, job bigint)"
LEFT = """
SELECT (SELECT count(*) FROM pulse_internal.blocked)
    + (SELECT count(*) FROM pulse_internal.approval)
    + (SELECT count(*) FROM pulse_internal.waiting)
    + (SELECT count(*) FROM pulse_internal.ready)
    + (SELECT count(*) FROM pulse_internal.lease)
"""
# Whom a failure holds is given up; a signal that nobody has sent is sent.
GIVE_UP = """
SELECT pulse.cancel(b.job)
FROM pulse_internal.blocked AS b
INNER JOIN pulse_internal.finished AS f ON f.job = b.waits_for
WHERE f.state <> 'completed' AND b.after_failed = 'hold'
"""
SEND = """
SELECT pulse.signal(w.signal)
FROM pulse_internal.signal_wait AS w
WHERE NOT EXISTS (SELECT FROM pulse_internal.signal AS s WHERE s.signal = w.signal)
"""
AT_REST_WITHIN = 900.0
# So long nothing may happen: what moves on may take its time on a busy machine.
STUCK_AFTER = 120.0
MANY = 20


class Run:
    def __init__(self, world: World, seed: int, seconds: float, chosen: list[str]):
        self.world = world
        self.seed = seed
        self.seconds = seconds
        self.chosen = chosen
        self.counts: Counter[str] = Counter()
        self.impossible: dict[str, str] = {}
        self.broken: list[str] = []
        self.seen: set[str] = set()
        self.over = threading.Event()

    # -- the faults -------------------------------------------------------------------

    def track(self, steps: Sequence[Step], began: float) -> None:
        """One after the other, none before its time; each kind once, however late."""
        for step in steps:
            over = self.over.wait(max(0.0, began + step.at - time.monotonic()))
            if over and (self.broken or step.fault in self.seen):
                continue
            since = time.time()
            try:
                did = self.inject(step)
            except Impossible as error:
                self.impossible[step.fault] = str(error)
                continue
            except Exception as error:
                # The harness itself failed: no verdict can be had from this run.
                self.broken.append(f"{step.fault} could not be done: {error!r}")
                print(self.broken[-1])
                self.over.set()
                # Other tracks must not wait for a standby that is gone.
                with contextlib.suppress(Exception):
                    self.world.cluster.primary.set("synchronous_standby_names", "")
                return
            if did:
                self.seen.add(step.fault)
                self.counts[step.fault] += 1
                self.world.note.fault(step.fault, did, since=since)
                print(f"{time.monotonic() - began:6.1f} s  {step.fault}: {did}")

    def inject(self, step: Step) -> str:
        """Say what was done; what met nobody it could hurt is tried once more."""
        fault, chance = FAULTS[step.fault], random.Random(step.seed)
        return fault(self.world, chance) or fault(self.world, chance)

    def snapshots(self) -> None:
        self.counts["old_snapshot"] = hold_snapshot(self.world, self.over)

    def load(self) -> None:
        """Keep the fleet up while the tracks run."""
        fleet, began = self.world.fleet, time.monotonic()
        members = [*fleet.workers, *fleet.producers]
        if "operators" in self.chosen:
            members += fleet.operators
        fleet.want(*members)
        threads = [
            threading.Thread(target=self.track, args=(steps, began))
            for steps in plan(self.seed, self.seconds, self.chosen).values()
        ]
        if "old_snapshot" in self.chosen:
            threads.append(threading.Thread(target=self.snapshots))
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() < began + self.seconds and not self.over.is_set():
                fleet.keep()
                if len(fleet.deserters) > MANY:
                    self.broken.append("the fleet does not stay up")
                    self.over.set()
                time.sleep(0.05)
        finally:
            # Also on Ctrl-C. A fault that has begun is repaired before the rest begins.
            self.over.set()
        while any(thread.is_alive() for thread in threads):
            fleet.keep()
            time.sleep(0.05)

    # -- and then rest ----------------------------------------------------------------

    def settle(self) -> float:
        """No more faults, no more jobs: how long until every job has ended."""
        fleet, cluster = self.world.fleet, self.world.cluster
        fleet.want(*fleet.workers)
        fleet.stop([*fleet.producers, *fleet.operators], 20)
        cluster.revive()
        began = moved = time.monotonic()
        least: int | None = None
        while time.monotonic() < min(began + AT_REST_WITHIN, moved + STUCK_AFTER):
            fleet.keep()
            with contextlib.suppress(psycopg.Error), cluster.connect() as connection:
                calm(connection)
                row = connection.execute(LEFT).fetchone()
                if row is not None and row[0] == 0:
                    break
                if row is not None and (least is None or row[0] < least):
                    least, moved = row[0], time.monotonic()
            time.sleep(0.2)
        fleet.want()
        fleet.stop(fleet.workers, 20)
        return time.monotonic() - began


def calm(connection: psycopg.Connection[Any]) -> None:
    """What an operator does when the night is over."""
    for lane, holder in connection.execute(
        "SELECT lane, holder FROM pulse.pause_status()"
    ).fetchall():
        if holder == "drain":
            connection.execute("SELECT pulse.resume_lane(%s)", (lane,))
        else:
            connection.execute("SELECT pulse.resume(%s, %s)", (holder, lane))
    connection.execute("SELECT pulse.unschedule(name) FROM pulse.schedules")
    connection.execute("""SELECT pulse.approve_where('{"all": true}')""")
    connection.execute(GIVE_UP)
    connection.execute(SEND)


def prepare(cluster: Cluster) -> None:
    with cluster.connect() as connection:
        connection.execute(journal.JOURNAL_SQL.encode())
        connection.execute(APP_ROWS)
        connection.execute(operators.SETUP.encode())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run")
    parser.add_argument("--seconds", type=float, default=120, help="of faults")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--faults", default=",".join(NAMES), help="only these")
    parser.add_argument("--rate", type=float, default=RATE, help="jobs a second")
    parser.add_argument("--keep", action="store_true", help="the history, always")
    chosen = parser.parse_args()
    unknown = set(chosen.faults.split(",")) - set(NAMES)
    if unknown:
        parser.error(f"no fault {', '.join(sorted(unknown))}; they are {NAMES}")
    return chosen


def main() -> int:
    asked = arguments()
    directory = Path(tempfile.mkdtemp(prefix="pulse-chaos."))
    print(f"seed {asked.seed}, {asked.seconds:.0f} s, history in {directory}")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with Cluster() as cluster:
        prepare(cluster)
        fleet = Fleet(directory, cluster.routes(), asked.rate, asked.seed)
        note = history.Recorder(directory / "faults.jsonl", "faults")
        chosen = asked.faults.split(",")
        run = Run(World(cluster, fleet, note), asked.seed, asked.seconds, chosen)
        run.load()
        rested = run.settle()
        run.counts["operators"] = report.operated(directory)
        with cluster.connect() as connection:
            found = checker.check(connection, directory)
            violations = [*run.broken, *fleet.deserters, *map(str, found.violations)]
            violations += report.idle(found.counted)
            violations += report.app_rows(connection) + report.bugs(directory)
            violations += report.steps(connection)
            if violations or asked.keep:
                checker.keep(connection, directory)
                for node in cluster.nodes:
                    shutil.copy(node.log, directory / f"{node.directory.name}.log")
    report.show(run, asked, found.counted, rested, violations)
    if violations:
        print(f"the history is in {directory}")
    elif not asked.keep:
        shutil.rmtree(directory)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
