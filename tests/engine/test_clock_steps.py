"""The server's clock steps: no wait goes on until the old time comes again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.chaos.clock import Clock
from tests.chaos.cluster import Node
from tools import servers

# Longer than any test waits: a wait that is stretched by it does not end.
BACK = -3600.0
WAITING = """
SELECT a.wait_event IN ('PgSleep', 'advisory', 'relation', 'transactionid')
FROM pg_stat_activity AS a WHERE a.pid = %s
"""


@dataclass
class Stepped:
    """A server whose clock can be stepped."""

    clock: Clock
    dsn: str

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)


@pytest.fixture
def stepped() -> Iterator[Stepped]:
    with Clock.temporary() as clock:
        if clock is None:
            pytest.skip("there is no C compiler")
        with Node(servers.primary(), {}, clock=clock) as server:
            server.create("app", product="extension")
            yield Stepped(clock, server.dsn("app"))


@contextlib.contextmanager
def falling(clock: Clock) -> Iterator[None]:
    """The clock is set back again and again: no timeout comes."""
    over = threading.Event()

    def fall() -> None:
        ahead = BACK
        while not over.wait(0.005):
            ahead -= 1.0
            clock.set_ahead(ahead)

    thread = threading.Thread(target=fall)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def step_while_waiting(
    stepped: Stepped, waiter: psycopg.Connection[Any], statement: str
) -> Iterator[Future[Any]]:
    """Begin the statement, and set the clock back while it waits."""
    with stepped.connect() as onlooker, ThreadPoolExecutor() as pool:
        # Waits are short: one may be over before it was seen.
        stepping = True
        while stepping:
            stepped.clock.set_ahead(0.0)
            running = pool.submit(lambda: waiter.execute(statement.encode()).fetchall())
            while stepping and not running.done():
                row = onlooker.execute(WAITING, (waiter.info.backend_pid,)).fetchone()
                if row is not None and row[0]:
                    stepped.clock.set_ahead(BACK)
                    time.sleep(0.1)
                    stepping = running.done()
        try:
            yield running
        finally:
            waiter.cancel()


def test_a_claim_that_waits_for_its_turn_ends_with_the_wait(stepped: Stepped) -> None:
    """And so does a pause that waits for this claim, and with it all others."""
    with stepped.connect() as alice, stepped.connect() as bob:
        alice.execute("SELECT pulse.set_lane('narrow', max_slots => 5)")
        for _ in range(2):
            alice.execute("SELECT pulse.enqueue('k', lane => 'narrow')")
        alice.execute("BEGIN")
        alice.execute("SELECT FROM pulse.claim_batch('alice', 'narrow')")

        claim = "SELECT kind FROM pulse.claim_batch('bob', 'narrow')"
        with step_while_waiting(stepped, bob, claim) as waits:
            alice.execute("COMMIT")
            assert waits.result(timeout=30) == [("k",)]
        alice.execute("SELECT pulse.pause('alice')")


def test_a_report_and_a_claim_in_one_wait_for_no_change_of_the_lane(
    stepped: Stepped,
) -> None:
    """As in an exchange. set_lane holds the lane and waits for what was reported: a
    claim that waited for the lane would end by its timeout, which does not come."""
    setting = "SELECT pulse.set_lane('l', group_slots => 1)"
    claim = "SELECT kind FROM pulse.claim_batch('bob', 'l')"
    with stepped.connect() as alice, stepped.connect() as bob:
        alice.execute("SELECT pulse.enqueue('k', lane => 'l', group_key => 'a')")
        [lease] = bob.execute("SELECT lease FROM pulse.claim_batch('bob', 'l')")
        bob.execute("BEGIN")
        bob.execute("SELECT pulse.complete(%s)", lease)
        with step_while_waiting(stepped, alice, setting) as waits:
            with falling(stepped.clock), ThreadPoolExecutor() as pool:
                claiming = pool.submit(lambda: bob.execute(claim).fetchall())
                try:
                    assert claiming.result(timeout=30) == []
                finally:
                    bob.cancel()
            bob.execute("COMMIT")
            waits.result(timeout=30)


def test_who_waits_for_the_numbers_of_a_new_server_ends_with_the_wait(
    stepped: Stepped,
) -> None:
    with stepped.connect() as alice, stepped.connect() as bob:
        alice.execute("SELECT setval('pulse_internal.server_start', 1)")
        alice.execute("BEGIN")
        alice.execute("LOCK TABLE pulse_internal.node IN ROW EXCLUSIVE MODE")
        with step_while_waiting(stepped, bob, "SELECT pulse.enqueue('k')") as waits:
            alice.execute("COMMIT")
            assert len(waits.result(timeout=30)) == 1


# The longest time for which a step may keep anything from moving.
WITHIN_SECONDS = 60
SETTINGS = """
SELECT pulse.set_lane('rated', rate => 2, rate_per => '5 seconds');
SELECT pulse.set_lane('grouped', group_rate => 2, group_rate_per => '5 seconds');
SELECT pulse.set_lane('cancelled', cancel_grace => '5 seconds');
SELECT pulse.set_kind('rated_kind', lane => 'kinds', rate => 2, rate_per => '5 s');
SELECT pulse.set_kind('approved', lane => 'approved', requires_approval => true,
    approval_expiry => '20 seconds');
SELECT pulse.set_kind('failed', lane => 'failed', backoff => 'fixed',
    backoff_base => '5 seconds');
SELECT pulse.schedule('every', 'every', every => '2 seconds', lane => 'schedules');
SELECT pulse.schedule('cron', 'cron', cron => '* * * * *', lane => 'schedules');
SELECT pulse.enqueue(lane, lane => lane)
FROM unnest('{leased,limited,cancelled,failed,keyed}'::text[]) AS lane;
SELECT pulse.enqueue('k', lane => 'rated') FROM generate_series(1, 9);
SELECT pulse.enqueue('rated_kind') FROM generate_series(1, 9);
SELECT pulse.enqueue('k', lane => 'grouped', group_key => 'a')
FROM generate_series(1, 9);
"""
KEYED = """
SELECT created FROM pulse.enqueue_one(
    'key', lane => 'key', unique_key => 'k', unique_for => '5 s')
"""
CLAIM = "SELECT lease FROM pulse.claim_batch('w', %s, 1, lease_for => '3 seconds')"
# Each names what has moved: the jobs or starts that only time keeps back.
MOVED = """
SELECT 'lease' FROM pulse.jobs
WHERE lane = 'leased' AND attempts > 0 AND state <> 'running'
UNION ALL
SELECT 'max_runtime' FROM pulse.jobs WHERE lane = 'limited' AND state = 'dead'
UNION ALL
SELECT 'cancel' FROM pulse.jobs WHERE lane = 'cancelled' AND state = 'cancelled'
UNION ALL
SELECT 'retry' FROM pulse.jobs
WHERE lane = 'failed' AND state = 'ready' AND attempts = 1
UNION ALL
SELECT 'approval' FROM pulse.jobs WHERE lane = 'approved' AND state = 'cancelled'
UNION ALL
SELECT DISTINCT 'schedule ' || name FROM pulse_internal.schedule_run
WHERE job IS NOT NULL AND handled_at > %(right)s AND handled_at <= clock_timestamp()
"""
EXPECTED = {
    "lease",
    "max_runtime",
    "cancel",
    "retry",
    "approval",
    "schedule every",
    "schedule cron",
    "schedule new",
    "rated",
    "kinds",
    "grouped",
    "unique key",
}


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_keeps_nothing_back_for_a_minute(stepped: Stepped, step: float) -> None:
    with stepped.connect() as client:
        client.execute(SETTINGS)
        client.execute("SELECT FROM pulse.tick()")
        stepped.clock.set_ahead(step)
        _use_every_verb(client)
        stepped.clock.set_ahead(0.0)

        row = client.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        moved: set[str] = set()
        for second in range(1, WITHIN_SECONDS + 1):
            stepped.clock.set_ahead(float(second))
            client.execute("SELECT FROM pulse.tick()")
            moved |= _what_moves(client, row[0])
        assert EXPECTED - moved == set()

        problems = client.execute("SELECT * FROM pulse.check()").fetchall()
        assert problems == []
        health = dict(client.execute("SELECT check_name, status FROM pulse.health()"))
        assert health["clock"] == "warn"


def _use_every_verb(client: psycopg.Connection[Any]) -> None:
    leases: dict[str, int] = {}
    for lane in ("leased", "cancelled", "failed", "keyed", "rated", "kinds", "grouped"):
        while row := client.execute(CLAIM, (lane,)).fetchone():
            leases.setdefault(lane, row[0])
    client.execute(
        "UPDATE pulse_internal.body SET max_runtime = '10 seconds', max_attempts = 1"
        " WHERE kind = 'limited'"
    )
    client.execute(
        "SELECT FROM pulse.claim_batch('w', 'limited', lease_for => '1 hour')"
    )
    client.execute("SELECT pulse.fail(%s, 'broken')", (leases["failed"],))
    client.execute(
        "SELECT pulse.cancel(job_id) FROM pulse.jobs WHERE lane = 'cancelled'"
    )
    client.execute("SELECT pulse.heartbeat(%s)", (list(leases.values()),))
    client.execute("SELECT pulse.enqueue('approved')")
    client.execute(KEYED)
    client.execute("SELECT pulse.complete(lease) FROM pulse.claim_batch('w', 'key')")
    client.execute(
        "SELECT pulse.schedule('new', 'new', every => '2 seconds', lane => 'schedules')"
    )
    for _ in range(2):
        client.execute(
            "UPDATE pulse_internal.upkeep_run"
            " SET taken_at = taken_at - interval '1 minute'"
        )
        client.execute("SELECT FROM pulse.tick()")


def _what_moves(client: psycopg.Connection[Any], right: Any) -> set[str]:
    moved = {row[0] for row in client.execute(MOVED, {"right": right})}
    for lane in ("rated", "kinds", "grouped"):
        if client.execute(CLAIM, (lane,)).fetchone():
            moved.add(lane)
    row = client.execute(KEYED).fetchone()
    assert row is not None
    if row[0]:
        moved.add("unique key")
    return moved
