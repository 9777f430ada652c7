"""The soaks in small: `make soak` runs them with a million jobs."""

from __future__ import annotations

import os

from tests.chaos import soak
from tests.conftest import Database

LOAD = int(os.environ.get("PULSE_LOAD", "20000"))


def test_upkeep_of_jobs_in_all_states_is_bounded_and_loses_none(db: Database) -> None:
    connection = db.connect()
    sizes = soak.fill(connection, LOAD)
    before = connection.execute("SELECT count(*) FROM pulse.jobs").fetchone()
    assert before == (sum(sizes.values()),)
    ticks = soak.soak_tick(connection, sizes, limit=300)
    assert ticks.errors == []
    assert ticks.total["promote"] == sizes["due"] + sizes["again"]
    assert ticks.total["reap"] == sizes["lapsed"]
    assert ticks.total["approvals"] == sizes["unasked"]
    assert ticks.total["prune"] == sizes["old"]
    assert {step: n for step, n in soak.BOUNDS.items() if ticks.most[step] > n} == {}
    assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_the_memory_of_a_worker_does_not_grow_with_its_jobs(db: Database) -> None:
    memory = soak.soak_worker(db.dsn, LOAD)
    assert memory.samples[-1][0] == LOAD
    assert memory.growth_a_job < soak.GROWTH
    connection = db.connect()
    states = connection.execute("SELECT DISTINCT state FROM pulse.jobs").fetchall()
    assert states == [("completed",)]
