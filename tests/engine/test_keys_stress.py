"""Many producers with few unique keys, and workers: one run of a key at a time.

What follows is neither lost nor early, whatever commits late or is rolled back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg

from tests.conftest import Connection, Database

KEYS = [f"key {n}" for n in range(4)]
ON_CONFLICT = ["skip", "replace", "follow", "follow", "cancel"]
# What the world may answer: a job that runs is not replaced, one that kept moving.
REFUSED = ("PU103", "PU107")
CALLS = 100

TWICE = """
SELECT b.unique_key FROM pulse_internal.lease AS l JOIN pulse_internal.body
    AS b USING (job)
GROUP BY 1 HAVING count(*) > 1
"""
LEFT = "SELECT count(*) FROM pulse.jobs WHERE finished_at IS NULL"


def produce(db: Database, seed: int) -> None:
    """Enqueues, some of them in transactions that end late or are rolled back."""
    chance = random.Random(seed)
    with db.connect(autocommit=False) as connection:
        for n in range(CALLS):
            try:
                connection.execute(
                    "SELECT pulse.enqueue('k', %s::jsonb, unique_key => %s,"
                    " on_conflict => %s, delay => %s)",
                    (
                        f"[{n}]",
                        chance.choice(KEYS),
                        chance.choice(ON_CONFLICT),
                        chance.choice([None, None, "2 ms"]),
                    ),
                )
                if chance.random() < 0.2:
                    connection.execute("SELECT pg_sleep(0.02)")
            except psycopg.Error as error:
                if error.sqlstate not in REFUSED:
                    raise
                connection.rollback()
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()


def work(db: Database, seed: int, over: threading.Event) -> None:
    """Completes, fails, releases; looks whether a key runs twice."""
    chance = random.Random(seed)
    connection = db.connect()
    while not over.is_set():
        rows = connection.execute(
            "SELECT lease FROM pulse.claim_batch(%s, 'default', 2)", (f"w{seed}",)
        ).fetchall()
        assert connection.execute(TWICE).fetchall() == []
        for (lease,) in rows:
            report(connection, lease, chance.random())


def report(connection: Connection, lease: int, chance: float) -> None:
    call = "SELECT pulse.complete(%s)"
    if chance < 0.1:
        call = "SELECT pulse.fail(%s, retry_in => '1 ms')"
    elif chance < 0.2:
        call = "SELECT pulse.release(ARRAY[%s::bigint])"
    connection.execute(call.encode(), (lease,))


def tick(db: Database, over: threading.Event) -> None:
    connection = db.connect()
    while not over.is_set():
        connection.execute("SELECT pulse_internal.tick_flows()")
        over.wait(0.05)


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_a_key_never_runs_twice_and_no_follower_is_left_behind(db: Database) -> None:
    over = threading.Event()
    watcher = db.connect()
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(work, db, n, over) for n in range(3)]
        others.append(pool.submit(tick, db, over))
        try:
            for done in [pool.submit(produce, db, n) for n in range(4)]:
                done.result()
            until(lambda: watcher.execute(LEFT).fetchone() == (0,))
        finally:
            over.set()
        for done in others:
            done.result()
    assert watcher.execute("SELECT * FROM pulse.check()").fetchall() == []
    assert watcher.execute(
        "SELECT count(*) FROM pulse_internal.job_key"
    ).fetchone() == (0,)
