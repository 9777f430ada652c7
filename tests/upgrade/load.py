"""A queue at work while it is upgraded: producers, readers and workers.

The workers are written out here, as an older package sends its statements, on sessions
that outlive the upgrade.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

import pulse
from tests.conftest import Database

EXCHANGE = """
SELECT
    x.item, x.verdict, x.lane, x.lease, x.job_id, x.kind, x.payload, x.attempt,
    x.failures, x.max_attempts, x.priority, x.deadline, x.enqueued_at, x.checkpoint,
    x.group_key
FROM pulse.exchange(
    worker => %(worker)s,
    wants => CAST(%(wants)s AS jsonb),
    done => CAST(%(done)s AS jsonb),
    failed => CAST(%(failed)s AS jsonb),
    kinds => CAST(%(kinds)s AS text[]),
    lease_for => CAST(%(lease_for)s AS interval)
) AS x"""
HELLO = "SELECT h.lane, h.max_batch FROM pulse.hello(worker => %(worker)s) AS h"
HEARTBEAT = """
SELECT b.lease, b.verdict
FROM pulse.heartbeat(leases => CAST(%(leases)s AS bigint[])) AS b"""
TICK = "SELECT t.step, t.did, t.error FROM pulse.tick() AS t"
CLAIM = """
SELECT c.lease, c.payload, c.attempt
FROM pulse.claim_batch(worker => %(worker)s, max_jobs => 5) AS c"""
COMPLETE = "SELECT pulse.complete(lease => %(lease)s, result => CAST('1' AS jsonb))"
ENQUEUE = "SELECT pulse.enqueue(kind => 'work', payload => CAST(%(payload)s AS jsonb))"
READ = "SELECT count(*), max(j.job_id) FROM pulse.jobs AS j WHERE j.state = 'running'"

# Every so many-th job fails at first and is retried at once.
FAILING = 50


@dataclass
class Load:
    """Everything that runs; an error that any session sees is kept."""

    database: Database
    jobs: int
    errors: list[str] = field(default_factory=list)
    ran: Counter[int] = field(default_factory=Counter)
    by: Counter[str] = field(default_factory=Counter)
    upgraded: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _workers: list[pulse.Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> int:
        return len(self.ran)

    def start(self, run: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:
                self.errors.append(f"{run.__name__} ended: {error!r}")

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def wait_for(self, done: int, within: float) -> None:
        ends = time.monotonic() + within
        while self.done < done:
            assert time.monotonic() < ends, f"{self.done} of {done}: {self.errors}"
            time.sleep(0.01)

    def stop(self) -> None:
        self.over.set()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def note(self, worker: str, job: int) -> None:
        with self._lock:
            self.ran[job] += 1
            self.by[f"{worker} {'after' if self.upgraded.is_set() else 'before'}"] += 1

    def ask(self, session: psycopg.Connection[Any], query: str, **values: Any) -> Any:
        """Ask again what failed, as a worker does, and keep the error."""
        for _ in range(5):
            try:
                return session.execute(query.encode(), values).fetchall()
            except psycopg.Error as error:
                self.errors.append(f"{type(error).__name__}: {error} in {query}")
        raise RuntimeError(f"it fails again and again: {query}")

    # -- who takes part -----------------------------------------------------------

    def produce(self, first: int, step: int) -> None:
        """Its share of the jobs, one by one; the last fifth after the upgrade."""
        session = self.database.connect("a_producer", prepare_threshold=1)
        for n in range(first, self.jobs, step):
            if n > self.jobs * 0.8:
                self.upgraded.wait(120)
            self.ask(session, ENQUEUE, payload=json.dumps({"n": n}))
            # Twice as fast as half of the load can be upgraded.
            if n % 20 == first and not self.upgraded.is_set():
                time.sleep(50 / self.jobs)

    def read(self) -> None:
        session = self.database.connect("a_viewer", prepare_threshold=1)
        while not self.over.wait(0.02):
            self.ask(session, READ)

    def exchange(self, name: str, query: str = EXCHANGE) -> None:
        """Reports and claims in one statement; heartbeats and ticks between."""
        session = self.database.connect("a_worker", prepare_threshold=1)
        self.ask(session, HELLO, worker=name)
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for cycle in range(10_000_000):
            over = self.over.is_set() and not done and not failed
            rows = self.ask(
                session,
                query,
                worker=name,
                kinds=None,
                lease_for=None,
                wants="{}" if self.over.is_set() else '{"default": 10}',
                done=json.dumps(done),
                failed=json.dumps(failed),
            )
            done, failed = [], []
            for item, verdict, _, lease, _, _, payload, attempt, *_ in rows:
                if item != "job":
                    self.errors.append(f"{item}: {verdict}")
                elif payload["n"] % FAILING == 0 and attempt == 1:
                    again = {"error": "as planned", "retry_in": "0"}
                    failed.append({"lease": str(lease), **again})
                else:
                    self.note(name, payload["n"])
                    done.append({"lease": str(lease), "result": payload})
            if cycle % 10 == 0:
                leases = [int(report["lease"]) for report in done]
                beats = self.ask(session, HEARTBEAT, leases=leases)
                self.errors += [f"beat: {v}" for _, v in beats if v != "ok"]
                steps = self.ask(session, TICK)
                self.errors += [f"tick: {step}: {e}" for step, _, e in steps if e]
            if over:
                return
            if not rows:
                time.sleep(0.005)

    def claim(self, name: str) -> None:
        """One verb after the other, as a client without the package does."""
        session = self.database.connect("a_worker", prepare_threshold=1)
        while not self.over.wait(0.002):
            for lease, payload, _ in self.ask(session, CLAIM, worker=name):
                self.note(name, payload["n"])
                self.ask(session, COMPLETE, lease=lease)

    def package(self, name: str) -> None:
        """A worker of this package; all that it warns of counts as an error."""
        dsn = self.database.server.dsn(self.database.name, "a_worker")
        worker = pulse.Worker(dsn, concurrency=10, name=name, poll_interval=0.02)
        self._workers.append(worker)

        @worker.handle("work")
        async def work(job: pulse.Job, n: int) -> int:
            self.note(name, n)
            return n

        worker.run()


class Warnings(logging.Handler):
    """What the package says at WARNING and above."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        # Nobody but workers ticks here, and they say so.
        if "no watchdog has ticked" not in record.getMessage():
            self.into.append(f"log: {record.getMessage()}")
