"""The server's clock is set back: no wait goes on until the old time comes again."""

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
