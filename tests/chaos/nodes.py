"""Three databases, workers of all three, and the checker over each of them.

python -m tests.chaos.nodes --jobs 50000 --seed 7

Servers are stopped like by a power cut and locked up, workers are killed, while
producers enqueue everywhere. Then all comes to rest, the checker judges every node by
its own journal, and the budget of each worker by the runs that it wrote down.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

import pulse
from tests.chaos import checker, history, journal
from tests.chaos.cluster import SETTINGS, Node
from tests.chaos.history import Record, Recorder
from tests.chaos.process import die_with_parent
from tools import paths, servers

NODES = 3
WORKERS = 2
SLOTS = {"bulk": 8, "narrow": 3}
BATCH = 50
AT_REST_WITHIN = 120.0
ENQUEUE = """
SELECT pulse.enqueue(
    j ->> 'kind', jsonb_build_object('op', j ->> 'op'), lane => j ->> 'lane'
) FROM jsonb_array_elements(%s::text::jsonb) AS j"""
QUICK = "SELECT pulse.set_kind(%s, backoff_base => '100 ms')"
LEFT = """
SELECT (SELECT count(*) FROM pulse_internal.waiting) + (SELECT count(*)
    FROM pulse_internal.ready)
    + (SELECT count(*) FROM pulse_internal.lease)"""
CHANCES = {"noop": 0.9, "slow": 0.07, "flaky": 0.03}


# -- a worker, in a process of its own ------------------------------------------------


def work(directory: str, name: str, dsns: Sequence[str]) -> None:
    die_with_parent()
    notes = {
        n: Recorder(Path(directory, str(n), f"{name}.jsonl"), name)
        for n in range(1, NODES + 1)
    }
    worker = pulse.Worker(
        dsns, lanes=SLOTS, name=name, poll_interval=0.2, lease_for=3, grace=1.0
    )
    for note in notes.values():
        note.worker(name, CHANCES)

    def run(job: pulse.Job) -> None:
        note = notes[job.node]
        note.effect_begin(job.id, job.attempt, job.lease, job.kind, job.lane)
        try:
            if job.kind == "slow":
                time.sleep(0.02)
            if job.kind == "flaky" and job.failures == 0:
                raise pulse.RetryIn(0.1, "not yet")
        finally:
            note.effect_end(job.id, job.attempt, job.lease, "ended")

    for kind in CHANCES:
        worker.handle(kind)(run)
    worker.run()


# -- the run --------------------------------------------------------------------------


class Run:
    def __init__(self, directory: Path, jobs: int, seed: int) -> None:
        self.directory = directory
        self.jobs = jobs
        self.seed = seed
        self.faults: Counter[str] = Counter()
        self.closing = contextlib.ExitStack()
        self.nodes: list[Node] = []
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0
        self.over = threading.Event()

    def __enter__(self) -> Run:
        try:
            for n in range(1, NODES + 1):
                node = Node(servers.primary(), SETTINGS, waits_for="")
                self.closing.callback(node.close)
                node.create("chaos", product="extension")
                node.psql("chaos", "-c", f"SELECT pulse.set_node({n})")
                with psycopg.connect(node.dsn("chaos"), autocommit=True) as connection:
                    connection.execute(journal.JOURNAL_SQL.encode())
                    for kind in CHANCES:
                        connection.execute(QUICK, (kind,))
                self.nodes.append(node)
                (self.directory / str(n)).mkdir()
        except BaseException:
            self.closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        self.closing.close()

    @property
    def dsns(self) -> list[str]:
        return [node.dsn("chaos") for node in self.nodes]

    def start_worker(self) -> None:
        self.started += 1
        name = f"worker {self.started}"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{paths.ROOT}:{paths.ROOT / 'python'}",
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.chaos.nodes", "--work"),
                    *(str(self.directory), name, *self.dsns),
                ],
                cwd=paths.ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )

    # -- load -------------------------------------------------------------------------

    def produce(self, n: int, jobs: int) -> None:
        """Enqueue so many in one node, whatever becomes of its server."""
        chance = random.Random(f"{self.seed} {n}")
        note = Recorder(self.directory / str(n) / "producer.jsonl", f"producer {n}")
        connection: psycopg.Connection[Any] | None = None
        while jobs > 0 and not self.over.is_set():
            batch = [self.job(chance) for _ in range(min(BATCH, jobs))]
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self.dsns[n - 1], autocommit=True)
                note.notes({"what": "enqueue_try", **job} for job in batch)
            except psycopg.OperationalError:
                time.sleep(0.1)
                continue
            try:
                rows = connection.execute(ENQUEUE, (json.dumps(batch),))
                ids = [row[0] for row in rows.fetchall()]
            except psycopg.OperationalError:
                note.notes(
                    {"what": "enqueue_unknown", "op": job["op"]} for job in batch
                )
                connection.close()
                continue
            note.notes(
                {"what": "enqueue_ack", "op": job["op"], "job_id": job_id}
                for job, job_id in zip(batch, ids, strict=True)
            )
            jobs -= len(batch)
        if connection is not None:
            connection.close()

    def job(self, chance: random.Random) -> Record:
        [kind] = chance.choices(list(CHANCES), list(CHANCES.values()))
        lane = chance.choice(list(SLOTS))
        what = {"op": str(uuid.uuid4()), "kind": kind, "lane": lane}
        return {**what, "priority": 0, "unique_key": None}

    # -- faults -----------------------------------------------------------------------

    def power_cut(self, chance: random.Random) -> None:
        node = chance.choice(self.nodes)
        node.stop("SIGQUIT")
        self.over.wait(chance.uniform(0.2, 1.0))
        node.start()

    def lock_up(self, chance: random.Random) -> None:
        dsn = chance.choice(self.dsns)
        with psycopg.connect(dsn) as stranger:
            stranger.execute("LOCK TABLE pulse_internal.body, pulse_internal.lease")
            self.over.wait(chance.uniform(0.5, 2.0))

    def kill_worker(self, chance: random.Random) -> None:
        name = chance.choice(list(self.workers))
        worker = self.workers.pop(name)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.start_worker()

    def break_things(self) -> None:
        """Each fault once, then by chance, until all is enqueued."""
        chance = random.Random(self.seed)
        faults = [self.power_cut, self.lock_up, self.kill_worker]
        todo = list(faults)
        while todo or not self.over.is_set():
            fault = todo.pop(0) if todo else chance.choice(faults)
            with contextlib.suppress(psycopg.OperationalError):
                fault(chance)
                self.faults[fault.__name__] += 1
            self.over.wait(chance.uniform(0.2, 1.0))

    # -- the course -------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(WORKERS):
            self.start_worker()
        breaking = threading.Thread(target=self.break_things)
        producing = [
            threading.Thread(target=self.produce, args=[n, self.jobs // NODES])
            for n in range(1, NODES + 1)
        ]
        for thread in (*producing, breaking):
            thread.start()
        for thread in producing:
            thread.join()
        self.over.set()
        breaking.join()
        self.rest()

    def rest(self) -> None:
        until = time.monotonic() + AT_REST_WITHIN + self.jobs / 100
        while sum(int(node.psql("chaos", "-c", LEFT)) for node in self.nodes):
            if time.monotonic() > until:
                return
            time.sleep(0.2)
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            worker.wait()

    # -- the verdict ------------------------------------------------------------------

    def judge(self) -> list[str]:
        found: list[str] = []
        counted: Counter[str] = Counter()
        records: list[Record] = []
        for n, dsn in enumerate(self.dsns, 1):
            directory = self.directory / str(n)
            records += history.read_records(directory)
            with psycopg.connect(dsn) as connection:
                report = checker.check(connection, directory)
            found += [f"node {n}: {violation}" for violation in report.violations]
            counted.update(report.counted)
            if not any(r["what"] == "effect_begin" for r in records):
                found.append(f"node {n}: nothing ran")
        found += budgets(records)
        print(f"{counted['jobs']} jobs, {counted['runs']} runs in {NODES} nodes")
        for name, times in self.faults.items():
            print(f"{times:6}  {name}")
        print(f"violations: {len(found)}")
        return found


def budgets(records: Sequence[Record]) -> list[str]:
    """Runs of one worker at one time, over all nodes: never more than its slots."""
    found = []
    running: Counter[tuple[str, str]] = Counter()
    lanes: dict[int, str] = {}
    for record in sorted(records, key=lambda r: r["t"]):
        if record["what"] == "effect_begin":
            lane = lanes[record["lease"]] = record["lane"]
            running[record["who"], lane] += 1
            if running[record["who"], lane] > SLOTS[lane]:
                found.append(f"{record['who']} runs more than {SLOTS[lane]} in {lane}")
        elif record["what"] == "effect_end":
            running[record["who"], lanes[record["lease"]]] -= 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        directory, name, *dsns = chosen.work
        work(directory, name, dsns)
        return 0
    directory = Path(tempfile.mkdtemp(prefix="pulse."))
    with Run(directory, chosen.jobs, chosen.seed) as run:
        run.run()
        found = run.judge()
    for line in found[:20]:
        print(line)
    if found:
        print(f"its history is in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
