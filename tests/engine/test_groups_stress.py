"""Groups under stress: never more than the slots of a group, nothing lost, in order.

Producers keep transactions open, roll back and prepare; claimers name kinds, roll back,
release and fail; an operator cancels, changes priorities and settings; an old snapshot
may be held. The mutations at the end break one rule each, and the same load notices.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection, Database
from tests.engine.clients import Clients, Play
from tests.mutations import listed

SECONDS = float(os.environ.get("PULSE_STRESS", "3"))
KINDS = ["mail", "scan", "index"]
GROUPS = [f"tenant-{n}" for n in range(12)]

ENQUEUE = """
    SELECT pulse.enqueue(
        %(kind)s, jsonb_build_object('n', %(n)s), lane => 'grouped',
        priority => %(priority)s, delay => %(delay)s, group_key => %(group_key)s
    )
"""
CLAIM = """
    SELECT c.job_id, c.lease, c.group_key, c.kind
    FROM pulse.claim_batch('claimer', 'grouped', %s, kinds => %s) AS c
"""
# In the claim's own transaction: its own leases are counted, the lock is still held.
FULLEST = """
    SELECT coalesce(max(r.n), 0)
    FROM (
        SELECT count(*) AS n
        FROM pulse_internal.lease AS l
        INNER JOIN pulse_internal.body AS b ON b.job = l.job
        WHERE l.lane = 'grouped' AND b.group_key <> ''
        GROUP BY b.group_key
    ) AS r
"""
SET_GROUP = """
    SELECT pulse.set_group('grouped', 'tenant-0', {})
    WHERE pulse_internal.is_grouped('grouped')
"""
LIVE = """
    SELECT
        (SELECT count(*) FROM pulse_internal.in_line) + (SELECT count(*)
            FROM pulse_internal.waiting)
        + (SELECT count(*) FROM pulse_internal.lease)
"""
PROBLEMS = "SELECT c.problem, c.detail FROM pulse.check() AS c"


@dataclass
class Load(Clients):
    """Clients of one grouped lane, and what they saw."""

    slots: int
    rough: bool = True
    settings: bool = False
    in_order: bool = False
    patience: float = 10.0
    fullest: int = 0
    completed: int = 0
    started: dict[str, list[int]] = field(default_factory=dict)

    def producers(self) -> list[Play]:
        return [*4 * [self.produce], *([self.operate] if self.rough else [])]

    def others(self) -> list[Play]:
        return [*6 * [self.claim], self.tick]

    def drain(self) -> None:
        """Until no job is left, or none was completed for a while."""
        with self.db.connect() as connection:
            if self.settings:
                connection.execute(SET_GROUP.format("enabled => true").encode())
            seen, since = -1, time.monotonic()
            while count(connection, LIVE) > 0 and not self.errors:
                if self.completed != seen:
                    seen, since = self.completed, time.monotonic()
                if time.monotonic() - since > self.patience:
                    return
                time.sleep(0.05)

    def produce(self, connection: Connection, chance: random.Random) -> None:
        name = f"groups-{threading.current_thread().name}"
        # In order means something for one producer of a group at a time.
        mine = GROUPS[int(name[-1]) :: 4]
        n = 0
        while self.producing.is_set():
            connection.execute("BEGIN")
            for _ in range(chance.randint(1, 4)):
                n += 1
                self.enqueue(connection, chance, mine, n)
                if chance.random() < 0.1:
                    time.sleep(chance.random() * 0.2)
            ending = chance.random()
            if ending < 0.1:
                connection.execute("ROLLBACK")
            elif ending < 0.13:
                connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
                time.sleep(chance.random() * 0.2)
                connection.execute(f"COMMIT PREPARED '{name}'".encode())
            else:
                connection.execute("COMMIT")
            time.sleep(0.002)

    def enqueue(
        self, connection: Connection, chance: random.Random, mine: list[str], n: int
    ) -> None:
        values = {
            "kind": KINDS[0],
            "n": n,
            "priority": 0,
            "delay": None,
            "group_key": chance.choice(mine),
        }
        if self.rough:
            values["kind"] = chance.choice(KINDS)
            values["priority"] = chance.choice([0, 0, 5, chance.randint(-9, 9)])
            values["delay"] = "50 ms" if chance.random() < 0.1 else None
            values["group_key"] = chance.choice([*GROUPS, GROUPS[0], None])
        connection.execute(ENQUEUE, values)

    def claim(self, connection: Connection, chance: random.Random) -> None:
        while self.running.is_set():
            kinds = None
            if self.rough and chance.random() < 0.4:
                kinds = chance.sample(KINDS, chance.randint(1, 2))
            connection.execute("BEGIN")
            got = list(
                connection.execute(CLAIM, (chance.choice([1, 3, 10, 30]), kinds))
            )
            self.fullest = max(self.fullest, count(connection, FULLEST))
            if kinds and any(row[3] not in kinds for row in got):
                self.errors.append("claimed a kind that was not asked for")
            if chance.random() < 0.1:
                connection.execute("ROLLBACK")
                continue
            if not self.rough:
                for job, _, group, _ in got:
                    self.started.setdefault(group, []).append(job)
            connection.execute("COMMIT")
            self.report(connection, chance, [row[1] for row in got])
            if not got:
                time.sleep(0.005)

    def report(
        self, connection: Connection, chance: random.Random, leases: list[int]
    ) -> None:
        for lease in leases:
            fate = chance.random() if self.rough or self.in_order else 1.0
            if fate < 0.05:
                connection.execute("SELECT pulse.release(%s)", ([lease],))
            elif fate < 0.1:
                connection.execute(
                    "SELECT pulse.fail_batch(%s, retry_in => %s::interval[])",
                    ([lease], ["10 ms"]),
                )
            else:
                if fate < 0.15:
                    time.sleep(0.01)
                connection.execute("SELECT pulse.complete_batch(%s)", ([lease],))
                self.completed += 1

    def operate(self, connection: Connection, chance: random.Random) -> None:
        """What operators do: to jobs, and to settings where these may change."""
        acts = [
            'SELECT pulse.cancel_where(\'{"state": "ready"}\', max_jobs => 3)',
            'SELECT pulse.reprioritize_where(\'{"state": "ready"}\', 3, max_jobs => 3)',
            'SELECT pulse.cancel_where(\'{"state": "running"}\', true, 1)',
        ]
        if self.settings:
            acts += [
                "SELECT pulse.set_lane('grouped', fair => false, group_slots => 0)",
                f"SELECT pulse.set_lane('grouped', group_slots => {self.slots})",
                f"SELECT pulse.set_lane('grouped', group_slots => {self.slots})",
                "SELECT pulse.set_lane('grouped', group_slots => 1)",
                "SELECT pulse.set_lane('grouped', group_slots => 0, fair => true)",
                SET_GROUP.format("enabled => false"),
                SET_GROUP.format("enabled => true"),
                SET_GROUP.format("max_slots => 1"),
                SET_GROUP.format("max_slots => 0"),
            ]
        while self.producing.is_set():
            connection.execute("BEGIN")
            connection.execute(chance.choice(acts).encode())
            if chance.random() < 0.3:
                time.sleep(0.05)
            connection.execute("COMMIT" if chance.random() < 0.8 else "ROLLBACK")
            time.sleep(0.05)

    def tick(self, connection: Connection, chance: random.Random) -> None:
        while self.running.is_set():
            connection.execute(
                "UPDATE pulse_internal.horizon SET seen_at = seen_at - interval '1 s'"
            )
            connection.execute("SELECT pulse_internal.tick_promote()")
            connection.execute("SELECT pulse_internal.tick_groups()")
            time.sleep(0.05)


def count(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def judge(load: Load) -> list[str]:
    """Everything that is wrong."""
    wrong = list(load.errors)
    with load.db.connect() as connection:
        left = count(connection, LIVE)
        wrong += [
            f"{problem}: {detail}" for problem, detail in connection.execute(PROBLEMS)
        ]
    if left:
        wrong.append(f"{left} jobs never ended")
    if load.fullest > load.slots and not load.settings:
        wrong.append(f"{load.fullest} of one group ran, {load.slots} were allowed")
    if load.slots == 1 and not load.rough:
        wrong += [
            f"out of order in {group}"
            for group, jobs in load.started.items()
            if jobs != sorted(jobs)
        ]
    return wrong


def setup(db: Database, slots: int, in_order: bool = False) -> None:
    with db.connect() as connection:
        connection.execute(
            "SELECT pulse.set_lane('grouped', group_slots => %s, in_order => %s)",
            (slots, in_order),
        )


ROUGH = {"slots": 3, "rough": True}


@pytest.mark.parametrize(
    ("load", "pinned"),
    [
        pytest.param(
            {"slots": 1, "rough": False, "in_order": True},
            False,
            id="in order, with failures and releases",
        ),
        pytest.param(ROUGH, False, id="three slots, everything at once"),
        pytest.param(ROUGH, True, id="the same under an old snapshot"),
        pytest.param(
            {**ROUGH, "settings": True}, False, id="grouped, ungrouped, limits changed"
        ),
    ],
)
@pytest.mark.proves("G18", "G23")
def test_limits_hold_and_nothing_is_lost(
    db: Database, load: dict[str, Any], pinned: bool
) -> None:
    setup(db, load["slots"], load.get("in_order", False))
    old = db.connect(autocommit=False)
    if pinned:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT pg_current_xact_id()")
    clients = Load(db, seed=11, **load)
    clients.run(SECONDS)
    old.close()
    assert clients.completed > 50
    assert judge(clients) == []


MUTATIONS = [rule for rule, each in listed.ALL.items() if each.stress == "groups"]


@pytest.mark.parametrize("rule", MUTATIONS)
def test_the_load_notices_a_broken_rule(db: Database, rule: str) -> None:
    setup(db, 2)
    listed.ALL[rule].apply(db.connect())
    wrong: list[str] = []
    for seed in range(5):
        load = Load(db, seed=100 * seed, slots=2, patience=1.0)
        load.run(SECONDS)
        wrong = judge(load)
        if wrong:
            break
    assert wrong


def test_set_lane_gives_up_on_a_report_that_stays_open(db: Database) -> None:
    """It has to write into the leases of the jobs that run."""
    with db.connect() as operator:
        operator.execute("SELECT pulse.enqueue('k', lane => 'late', group_key => 'a')")
        operator.execute("SELECT pulse.claim_batch('w', 'late')")
        operator.execute(
            "ALTER FUNCTION pulse_internal.name_groups_of_leases"
            "(text, text, text, boolean) SET lock_timeout = '50ms'"
        )
        handler = db.connect(autocommit=False)
        handler.execute("SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l")
        with pytest.raises(psycopg.Error) as refused:
            operator.execute("SELECT pulse.set_lane('late', group_slots => 1)")
        assert refused.value.sqlstate == "PU106"
        handler.rollback()
        operator.execute("SELECT pulse.set_lane('late', group_slots => 1)")
        assert count(operator, "SELECT count(group_key) FROM pulse_internal.lease") == 1
