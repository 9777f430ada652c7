"""Flows under stress: producers, workers, operators, tickers; then the books.

Producers hold transactions open, roll them back and name jobs of others; workers
claim and report in one transaction or in several, die, release, spawn and roll back.
No job may be released early, and when all have stopped none may wait for jobs that
have ended. MUTATIONS are what must not be left out: with each, a run finds violations.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.conftest import Database
from tests.mutations import listed
from tools import servers
from tools.servers import Server

Connection = psycopg.Connection[Any]

EARLY = """
SELECT count(DISTINCT d.job)
FROM pulse_internal.dependency AS d
INNER JOIN pulse_internal.body AS b ON b.job = d.job
LEFT JOIN pulse_internal.finished AS f ON f.job = d.after
WHERE d.job = ANY (%s) AND NOT d.met
    AND (f.job IS NULL OR f.state <> 'completed' AND b.after_failed <> 'run')
"""
LOST = """
SELECT count(*)
FROM pulse_internal.blocked AS b
WHERE NOT EXISTS (
    SELECT
    FROM pulse_internal.dependency AS d
    LEFT JOIN pulse_internal.finished AS f ON f.job = d.after
    WHERE d.job = b.job AND NOT d.met
        AND (f.job IS NULL OR f.state <> 'completed' AND b.after_failed = 'hold')
) OR b.after_failed = 'cancel' AND EXISTS (
    SELECT
    FROM pulse_internal.dependency AS d
    INNER JOIN pulse_internal.finished AS f ON f.job = d.after
    WHERE d.job = b.job AND f.state <> 'completed'
)
"""
LEFT = """
SELECT 'ready', job FROM pulse_internal.ready
UNION ALL SELECT 'lease', job FROM pulse_internal.lease
UNION ALL SELECT 'waiting', job FROM pulse_internal.waiting
UNION ALL SELECT 'wake', job FROM pulse_internal.wake
UNION ALL SELECT 'doubt', job FROM pulse_internal.doubt
"""


MUTATIONS = {r: each for r, each in listed.ALL.items() if each.stress == "flows"}


@dataclass
class Books:
    """What a run found."""

    jobs: int = 0
    edges: int = 0
    early: int = 0
    lost: int = 0
    stuck: list[Any] = field(default_factory=list)
    problems: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (
            self.early or self.lost or self.stuck or self.problems or self.errors
        )


class Stress:
    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.seed = seed
        self.books = Books()
        self.recent: list[int] = []
        self.enqueueing = True
        self.working = True
        self.lock = threading.Lock()

    def run(self, seconds: float, producers: int, workers: int) -> Books:
        threads = [
            threading.Thread(target=self._guard, args=(play, n))
            for play, many in (
                (self.produce, producers),
                (self.work, workers),
                (self.tick, 2),
                (self.operate, 1),
            )
            for n in range(many)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self.enqueueing = False
        self._drain()
        self.working = False
        for thread in threads:
            thread.join()
        with self.db.connect() as db:
            self.books.lost = db.execute(LOST).fetchone()[0]  # type: ignore[index]
            self.books.problems = db.execute(
                "SELECT problem, count(*), min(job_id), min(detail)"
                " FROM pulse.check() GROUP BY problem"
            ).fetchall()
            self.books.jobs, self.books.edges = db.execute(  # type: ignore[misc]
                "SELECT (SELECT count(*) FROM pulse_internal.body),"
                " (SELECT count(*) FROM pulse_internal.dependency)"
            ).fetchone()
        return self.books

    def _guard(self, play: Callable[[Connection, random.Random], None], n: int) -> None:
        chance = random.Random(f"{self.seed} {play.__name__} {n}")
        try:
            with self.db.connect(autocommit=False) as db:
                play(db, chance)
        except Exception as error:
            self.books.errors.append(f"{play.__name__}: {error!r}")
            self.enqueueing = self.working = False

    def _drain(self) -> None:
        """Until nothing moves any more: no job, and no note."""
        with self.db.connect() as db:
            deadline = time.monotonic() + 60
            while self.working:
                left = db.execute(LEFT).fetchall()
                if not left:
                    return
                if time.monotonic() > deadline:
                    self.books.stuck = left
                    return
                db.execute(
                    "UPDATE pulse_internal.waiting SET run_at = now() WHERE run_at "
                    "> now()"
                )
                db.execute("DELETE FROM pulse_internal.due_mark")
                time.sleep(0.05)

    def produce(self, db: Connection, chance: random.Random) -> None:
        while self.enqueueing:
            own: list[int] = []
            for _ in range(chance.choice([1, 1, 2, 4])):
                own += self._enqueue(db, chance, own)
                if chance.random() < 0.2:
                    time.sleep(chance.random() * 0.05)
            if chance.random() < 0.1:
                db.rollback()
                continue
            db.commit()
            with self.lock:
                self.recent = (self.recent + own)[-300:]
            time.sleep(chance.random() * 0.01)

    def _enqueue(
        self, db: Connection, chance: random.Random, own: list[int]
    ) -> list[int]:
        policy = chance.choice([None, "cancel", "cancel", "hold", "run"])
        with self.lock:
            known = self.recent[-40:] + own
        after = chance.sample(known, min(len(known), chance.choice([0, 1, 2, 3, 20])))
        many = chance.choice([1, 1, 3, 30])
        try:
            with db.transaction():
                rows = db.execute(
                    "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[%s]),"
                    " after => %s::bigint[], after_failed => %s)",
                    (many, after, policy),
                ).fetchall()
                ids = [row[0] for row in rows]
                if chance.random() < 0.3:
                    ids += [
                        row[0]
                        for row in db.execute(
                            "SELECT pulse.enqueue('join', after => %s::bigint[],"
                            " after_failed => %s)",
                            (ids, policy),
                        )
                    ]
                return ids
        except psycopg.errors.DatabaseError as error:
            if error.sqlstate != "PU004":
                raise
            return []

    def work(self, db: Connection, chance: random.Random) -> None:
        me = f"w{chance.random()}"
        while self.working:
            leases = db.execute(
                "SELECT lease, job_id FROM pulse.claim_batch(%s, max_jobs => %s)",
                (me, chance.choice([1, 5, 20])),
            ).fetchall()
            if leases:
                early = db.execute(EARLY, ([job for _, job in leases],)).fetchone()
                self.books.early += early[0]  # type: ignore[index]
            fate = chance.random() if self.enqueueing else 1
            if fate < 0.03:
                db.rollback()
                continue
            if fate > 0.4:
                db.commit()
            if not leases:
                db.commit()
                time.sleep(0.005)
                continue
            self._report(db, chance, [lease for lease, _ in leases])

    def _report(self, db: Connection, chance: random.Random, leases: list[int]) -> None:
        """Each of them until it is reported: a rolled back report is repeated."""
        chance.shuffle(leases)
        claimed = leases
        while leases:
            part = leases[: chance.choice([1, 3, 20])]
            what = chance.random() if self.enqueueing else 1
            if what < 0.05:
                db.execute(
                    "SELECT pulse.fail_batch(%s::bigint[], fatal => array_fill(true,"
                    " ARRAY[%s]))",
                    (part, len(part)),
                )
            elif what < 0.1:
                db.execute(
                    "SELECT pulse.fail_batch(%s::bigint[], retry_in =>"
                    " array_fill('0'::interval, ARRAY[%s]))",
                    (part, len(part)),
                )
            elif what < 0.15:
                db.execute("SELECT pulse.release(%s::bigint[])", (part,))
            else:
                if what < 0.35:
                    db.execute(
                        "SELECT pulse.spawn(%s::bigint, 's', %s::jsonb)",
                        (part[0], '[{"kind": "s"}, {"kind": "s"}, {"kind": "s"}]'),
                    )
                db.execute("SELECT pulse.complete_batch(%s::bigint[])", (part,))
            if chance.random() < 0.2:
                # As an exchange does: a report, then a claim that finds nothing.
                db.execute("SELECT pulse.claim_batch('idle', 'idle')")
            if chance.random() < 0.2:
                time.sleep(chance.random() * 0.05)
            if chance.random() < 0.05:
                # Earlier reports, too, and the claim, where they were not committed.
                db.rollback()
                rows = db.execute(
                    "SELECT lease FROM pulse_internal.lease WHERE lease = ANY (%s)",
                    (claimed,),
                ).fetchall()
                leases = [row[0] for row in rows]
                db.commit()
                continue
            if chance.random() < 0.8:
                db.commit()
            leases = leases[len(part) :]
        db.commit()

    def tick(self, db: Connection, chance: random.Random) -> None:
        while self.working:
            db.execute("SELECT pulse.tick()")
            if chance.random() < 0.3:
                db.execute("SELECT pulse_internal.tick_flows()")
            db.commit()
            time.sleep(chance.random() * 0.2)

    def operate(self, db: Connection, chance: random.Random) -> None:
        while self.enqueueing:
            with self.lock:
                jobs = chance.sample(self.recent, min(len(self.recent), 3))
            for job in jobs:
                verb = chance.choice(["cancel", "retry", "retry", "reprioritize"])
                more = ", 0" if verb == "reprioritize" else ""
                try:
                    with db.transaction():
                        db.execute(f"SELECT pulse.{verb}(%s{more})", (job,))
                except psycopg.errors.DatabaseError as error:
                    if (error.sqlstate or "")[:3] != "PU1":
                        raise
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.02)
            db.commit()
            time.sleep(0.02)


def run(db: Database, seconds: float, seed: int, mutation: str | None = None) -> Books:
    if mutation is not None:
        MUTATIONS[mutation].apply(db.connect())
    return Stress(db, seed).run(seconds, 6, 8)


def main() -> int:
    """The long run, and each mutation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutation", choices=[*MUTATIONS, "all"])
    asked = parser.parse_args()
    wrong = 0
    names = [None, *MUTATIONS] if asked.mutation == "all" else [asked.mutation]
    server = Server(servers.primary(), {})
    try:
        for name in names:
            db = Database(server, server.create(product="extension"))
            books = run(db, asked.seconds, asked.seed, name)
            print(f"{name or 'as it is'}: {books}", flush=True)
            db.close()
            wrong += books.sound if name is not None else not books.sound
    finally:
        server.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
