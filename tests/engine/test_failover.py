"""No number is handed out twice, whatever an asynchronous failover loses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.chaos.cluster import Node
from tests.conftest import Connection, Database
from tools import servers

JOBS = 1000
RUNS = 100
# What a promotion looks like from inside, without one: the numbers were last drawn by
# another server, and by another timeline.
PROMOTED = (
    "SELECT setval('pulse_internal.server_start', 1, true), "
    "setval('pulse_internal.server_history', 1)"
)


class Pair:
    """A primary and an asynchronous standby that was cut off."""

    def __init__(self) -> None:
        settings = {"wal_level": "replica", "wal_keep_size": "64MB"}
        self.nodes = [Node(servers.primary(), settings, waits_for="")]
        self.old = self.nodes[0]
        self.old.create("app", product="extension")

    def follow(self) -> None:
        self.nodes.append(Node(servers.primary(), {}, source=self.old, waits_for=""))
        self.new = self.nodes[1]

    def cut(self) -> None:
        """All that is committed so far arrives, and nothing after it."""
        lsn = self.old.psql("app", "-c", "SELECT pg_current_wal_lsn()").strip()
        until(self.new, f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'")
        self.new.psql("app", "-c", "ALTER SYSTEM SET primary_conninfo = ''")
        self.new.psql("app", "-c", "SELECT pg_reload_conf()")
        until(self.new, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def promote(self) -> None:
        self.new.psql("app", "-c", "SELECT pg_promote(true, 60)")

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def until(node: Node, question: str) -> None:
    deadline = time.monotonic() + 30
    while node.psql("app", "-c", question) != "t\n":
        assert time.monotonic() < deadline, question
        time.sleep(0.05)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def draw(node: Node) -> tuple[set[int], set[int], set[int]]:
    """Job ids, lease numbers and entries of the audit that a node hands out."""
    with psycopg.connect(node.dsn("app"), autocommit=True) as connection:
        jobs = numbers(
            connection,
            f"SELECT pulse.enqueue('k') FROM generate_series(1, {JOBS})",
        )
        leases = numbers(
            connection,
            f"SELECT lease FROM pulse.claim_batch('w', max_jobs => {RUNS})",
        )
        connection.execute("SELECT pulse.set_lane('bulk', max_batch => 7)")
        entries = numbers(
            connection, "SELECT entry FROM pulse.audit WHERE verb = 'set_lane'"
        )
    assert len(jobs) == JOBS
    assert len(leases) == RUNS
    return jobs, leases, entries


def numbers(connection: Connection, query: str) -> set[int]:
    return {row[0] for row in connection.execute(query).fetchall()}


def test_no_number_of_a_lost_primary_is_handed_out_again(pair: Pair) -> None:
    pair.follow()
    pair.cut()
    lost = draw(pair.old)
    assert lost[0] == set(range(1, JOBS + 1))
    pair.promote()
    fresh = draw(pair.new)
    for before, after in zip(lost, fresh, strict=True):
        assert not before & after
    assert not {lease >> 10 for lease in lost[1]} & {lease >> 10 for lease in fresh[1]}
    with psycopg.connect(pair.new.dsn("app")) as connection:
        rows = connection.execute(
            "SELECT after ->> 'pulse_internal.job_id' FROM pulse.audit WHERE verb "
            "= 'jump'"
        ).fetchall()
        assert rows == [("100000001",)]
        assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_a_standby_that_saw_the_installation_can_lead_at_once(pair: Pair) -> None:
    """PostgreSQL 15 to 18: an unlogged sequence is not there after a promotion that
    comes before the standby's next restartpoint."""
    pair.follow()
    pair.old.create("late")
    pair.old.install_pulse("late", "extension")
    pair.cut()
    pair.promote()
    pair.new.psql("late", "-c", "SELECT pulse.pause('me')")
    assert pair.new.psql("late", "-c", "SELECT pulse.enqueue('k') > 0") == "t\n"


def test_ids_go_on_after_a_restart(pair: Pair) -> None:
    first = pair.old.psql("app", "-c", "SELECT pulse.enqueue('k')")
    pair.old.restart("SIGQUIT")
    second = pair.old.psql("app", "-c", "SELECT pulse.enqueue('k')")
    # The server keeps 32 numbers in advance and forgets them when it crashes.
    assert 0 < int(second) - int(first) <= 33


def first_of_many(db: Database, query: str, threads: int = 8) -> list[int]:
    """What several sessions get that all come right after a promotion."""
    connections = [db.connect() for _ in range(threads)]
    for connection in connections:
        connection.execute("SELECT pulse.enqueue('warm')")
    ready = threading.Barrier(threads)
    drawn: list[int] = []

    def work(connection: Connection) -> None:
        ready.wait()
        drawn.extend(row[0] for row in connection.execute(query).fetchall())

    db.connect().execute(PROMOTED)
    running = [threading.Thread(target=work, args=[each]) for each in connections]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return drawn


def test_sessions_that_come_at_once_jump_once(db: Database) -> None:
    for _ in range(5):
        drawn = first_of_many(
            db, "SELECT pulse.enqueue('k') FROM generate_series(1, 20)"
        )
        assert len(set(drawn)) == len(drawn) == 160
        assert max(drawn) - min(drawn) < 1000
    assert (
        db.psql("-c", "SELECT count(*) FROM pulse.audit WHERE verb = 'jump'") == "5\n"
    )


def test_nobody_waits_for_the_transaction_that_jumped(db: Database) -> None:
    before = int(db.psql("-c", "SELECT pulse.enqueue('k')"))
    db.connect().execute(PROMOTED)
    first = db.connect(autocommit=False)
    first.execute("SELECT pulse.enqueue('k')")
    second = db.connect()
    second.execute("SET statement_timeout = '5s'")
    after = second.execute("SELECT pulse.enqueue('k')").fetchone()
    assert after is not None
    assert after[0] > before + 100_000_000
    # Rolled back or not: what was put forward stays there.
    first.rollback()
    third = second.execute("SELECT pulse.enqueue('k')").fetchone()
    assert third is not None
    assert third[0] == after[0] + 1


def test_numbers_that_cannot_be_secured_are_not_drawn(db: Database) -> None:
    stranger = db.connect(autocommit=False)
    stranger.execute("LOCK TABLE pulse_internal.node")
    db.connect().execute(PROMOTED)
    with pytest.raises(psycopg.Error) as caught:
        db.connect().execute("SELECT pulse.enqueue('k')")
    assert caught.value.sqlstate == "PU110"
    assert caught.value.diag.message_hint
    stranger.rollback()
    assert db.psql("-c", "SELECT pulse.enqueue('k')") == "100000002\n"
