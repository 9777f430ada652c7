"""Low-water marks under stress: nothing is lost and nothing runs twice.

Producers keep transactions open, roll back and prepare; claimers name kinds and roll
back; marks move some fifty times a second. The same load loses jobs when marks do not
wait for open transactions, so it would notice.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.conftest import Connection, Database
from tests.engine.clients import Clients, Play
from tests.mutations import listed

KINDS = ["mail", "scan", "index", "thumb"]

ENQUEUE = """
    SELECT pulse.enqueue_many(
        %s, array_fill('1'::jsonb, ARRAY[%s]), priority => %s, delay => %s
    )
"""
CLAIM = """
    SELECT c.job_id, c.lease
    FROM pulse.claim_batch('claimer', max_jobs => %s, kinds => %s) AS c
"""
COMPLETE = "SELECT c.verdict FROM pulse.complete_batch(%s) AS c"
PROBLEMS = "SELECT c.problem, count(*) FROM pulse.check() AS c GROUP BY c.problem"
ROWS = """
    SELECT
        (SELECT count(*) FROM pulse_internal.ready) + (SELECT count(*)
            FROM pulse_internal.waiting),
        (SELECT count(*) FROM pulse_internal.lease),
        (SELECT count(*) FROM pulse_internal.finished)
"""


@dataclass
class Load(Clients):
    """What producers committed and what claimers claimed."""

    committed: list[int] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)

    def producers(self) -> list[Play]:
        return [*8 * [self.produce]]

    def others(self) -> list[Play]:
        return [*4 * [self.claim], *2 * [self.tick]]

    def drain(self) -> None:
        """Until every committed job is claimed, or none was for two seconds."""
        seen, since = -1, time.monotonic()
        while len(self.claimed) < len(self.committed):
            if len(self.claimed) != seen:
                seen, since = len(self.claimed), time.monotonic()
            if self.errors or time.monotonic() - since > 2.0:
                return
            time.sleep(0.02)

    def produce(self, connection: Connection, chance: random.Random) -> None:
        name = f"stress-{threading.current_thread().name}"
        while self.producing.is_set():
            jobs: list[int] = []
            connection.execute("BEGIN")
            for _ in range(chance.randint(1, 4)):
                doubtful = chance.random() < 0.1
                if doubtful:
                    connection.execute("SAVEPOINT doubt")
                some = self.enqueue(connection, chance)
                if chance.random() < 0.3:
                    time.sleep(chance.random() * chance.choice([0.01, 0.1, 1.0]))
                if doubtful:
                    connection.execute("ROLLBACK TO SAVEPOINT doubt")
                else:
                    jobs += some
            ending = chance.random()
            if ending < 0.15:
                connection.execute("ROLLBACK")
                continue
            if ending < 0.17:
                connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
                time.sleep(chance.random() * 0.2)
                connection.execute(f"COMMIT PREPARED '{name}'".encode())
            else:
                connection.execute("COMMIT")
            self.committed += jobs

    def enqueue(self, connection: Connection, chance: random.Random) -> list[int]:
        priority = chance.choice([0, 0, 0, 5, 5, chance.randint(-50, 50)])
        delay = f"{chance.randint(1, 300)} ms" if chance.random() < 0.1 else None
        values = (chance.choice(KINDS), chance.randint(1, 5), priority, delay)
        return [row[0] for row in connection.execute(ENQUEUE, values)]

    def claim(self, connection: Connection, chance: random.Random) -> None:
        while self.running.is_set():
            kinds = None
            if chance.random() < 0.4:
                kinds = chance.sample(KINDS, chance.randint(1, 3))
            connection.execute("BEGIN")
            got = list(
                connection.execute(CLAIM, (chance.choice([1, 5, 20, 50]), kinds))
            )
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.05)
                connection.execute("ROLLBACK")
                continue
            connection.execute("COMMIT")
            self.claimed += [job for job, _ in got]
            if got:
                leases = [lease for _, lease in got]
                self.reports += [
                    row[0] for row in connection.execute(COMPLETE, (leases,))
                ]
            else:
                time.sleep(0.005)

    def tick(self, connection: Connection, chance: random.Random) -> None:
        while self.running.is_set():
            connection.execute("SELECT * FROM pulse.tick()")
            # What a claim does that stepped over many dead rows, more often.
            connection.execute("SELECT pulse_internal.tick_marks()")
            connection.execute(
                "SELECT pulse_internal.ask_for_marks('default', %s, NULL, true)",
                (KINDS,),
            )
            time.sleep(0.02 + chance.random() * 0.01)

    @property
    def lost(self) -> set[int]:
        return set(self.committed) - set(self.claimed)


@pytest.fixture
def load(db: Database) -> Iterator[Load]:
    """Repeat a run with STRESS_SEED=…; threads still interleave as they like."""
    load = Load(db, int(os.environ.get("STRESS_SEED", random.randrange(2**32))))
    print(f"STRESS_SEED={load.seed}")
    yield load
    print(f"{len(load.committed)} committed, {len(load.claimed)} claimed")


@pytest.mark.proves("R2")
def test_no_job_is_lost_and_none_is_claimed_twice(load: Load) -> None:
    load.run(seconds=6)
    assert load.errors == []
    assert load.lost == set()
    assert len(load.claimed) == len(set(load.claimed)) == len(load.committed)
    assert set(load.reports) == {"ok"}

    connection = load.db.connect()
    assert connection.execute(PROBLEMS).fetchall() == []
    assert connection.execute(ROWS).fetchone() == (0, 0, len(load.committed))


def test_it_would_notice_marks_that_do_not_wait_for_open_transactions(
    load: Load,
) -> None:
    connection = load.db.connect()
    listed.ALL["the horizon waits for open transactions"].apply(connection)

    load.run(seconds=3)
    assert load.errors == []
    assert load.lost
    assert "ready job is below its mark" in dict(
        connection.execute(PROBLEMS).fetchall()
    )
