"""Guarantee 9 with many slots and clients: never one run too many."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from tests.conftest import Connection, Database
from tests.mutations import listed

SLOTS = 250
CLIENTS = 6
SECONDS = 2.0


class Load:
    """Clients that claim, complete and back out; one counts what runs."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.end = time.monotonic() + SECONDS
        self.most = 0
        self.completed = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self.guarded, args=(self.count,))]
        threads += [
            threading.Thread(target=self.guarded, args=(self.work, seed))
            for seed in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def guarded(self, act: Any, *arguments: Any) -> None:
        try:
            with self.db.connect(autocommit=False) as connection:
                act(connection, *arguments)
        except BaseException as error:
            self.errors.append(error)

    def work(self, connection: Connection, seed: int) -> None:
        choose = random.Random(seed)
        mine: list[int] = []
        while time.monotonic() < self.end:
            rows = connection.execute(
                "SELECT c.lease FROM pulse.claim_batch(%s, 'wide', %s) AS c",
                [f"w{seed}", choose.randint(1, 100)],
            ).fetchall()
            if choose.random() < 0.1:
                connection.rollback()
                continue
            connection.commit()
            mine += [lease for (lease,) in rows]
            choose.shuffle(mine)
            done = [mine.pop() for _ in range(choose.randint(0, len(mine)))]
            connection.execute(
                "SELECT count(*) FROM pulse.complete_batch(%s::bigint [])", [done]
            )
            connection.commit()
            self.completed += len(done)

    def count(self, connection: Connection) -> None:
        while time.monotonic() < self.end:
            row = connection.execute(
                "SELECT count(*) FROM pulse_internal.lease"
            ).fetchone()
            connection.rollback()
            assert row is not None
            self.most = max(self.most, row[0])


def load(db: Database) -> Load:
    with db.connect() as connection:
        connection.execute("SELECT pulse.set_lane('wide', max_slots => %s)", [SLOTS])
        connection.execute(
            "SELECT count(*) FROM pulse.enqueue_many("
            "'k', array_fill('{}'::jsonb, ARRAY[30000]), 'wide')"
        )
    clients = Load(db)
    clients.run()
    return clients


def test_many_slots_are_never_one_too_many(db: Database) -> None:
    clients = load(db)
    assert not clients.errors
    assert SLOTS / 2 < clients.most <= SLOTS
    assert clients.completed > SLOTS
    with db.connect() as connection:
        assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []


MUTATIONS = [rule for rule, each in listed.ALL.items() if each.stress == "slots"]


@pytest.mark.parametrize("rule", MUTATIONS)
def test_the_load_notices_a_broken_rule(db: Database, rule: str) -> None:
    listed.ALL[rule].apply(db.connect())
    # Claims that write one roster at once may also end in a deadlock.
    for _ in range(5):
        clients = load(db)
        if clients.errors or clients.most > SLOTS:
            return
    raise AssertionError("the load noticed nothing")
