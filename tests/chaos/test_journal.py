"""The order and the times of the journal when the server's clock steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.chaos import journal
from tests.chaos.clock import Clock
from tests.chaos.cluster import Node
from tests.chaos.journal import Steps
from tools import servers

BACK = -5.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    with Clock.temporary() as made:
        if made is None:
            pytest.skip("there is no C compiler")
        yield made


@pytest.fixture
def stepped(clock: Clock) -> Iterator[psycopg.Connection[Any]]:
    settings = {"track_commit_timestamp": "on", "chaos.clock": str(clock.path)}
    with Node(servers.primary(), settings, clock=clock) as server:
        server.create("app", product="extension")
        with psycopg.connect(server.dsn("app"), autocommit=True) as connection:
            connection.execute(journal.JOURNAL_SQL.encode())
            yield connection


def enqueue(connection: psycopg.Connection[Any]) -> tuple[int, float]:
    """The job, and a time by which it was committed."""
    row = connection.execute("SELECT pulse.enqueue('k')").fetchone()
    assert row is not None
    return row[0], time.time()


def test_a_step_back_changes_neither_the_order_nor_the_times(
    clock: Clock, stepped: psycopg.Connection[Any]
) -> None:
    begin = time.time()
    first, first_by = enqueue(stepped)
    before, after = clock.set_ahead(BACK)
    second, second_by = enqueue(stepped)

    stamped = stepped.execute(
        "SELECT j.job FROM chaos.journal AS j WHERE j.place = 'body'"
        " ORDER BY pg_xact_commit_timestamp(j.xid::xid)"
    ).fetchall()
    assert stamped == [(second,), (first,)]

    steps = Steps(((before, after, BACK),))
    (one, one_at), (two, two_at) = (
        (each.events[0].job, each.committed)
        for each in journal.read_journal(stepped, steps)
    )
    assert (one, two) == (first, second)
    assert begin <= one_at <= first_by <= two_at <= second_by


def test_a_transaction_that_was_open_at_the_step_has_its_own_times(
    clock: Clock, stepped: psycopg.Connection[Any]
) -> None:
    with stepped.transaction():
        begun = time.time()
        job, _ = enqueue(stepped)
        before, after = clock.set_ahead(-BACK)
    ended = time.time()
    steps = Steps(((before, after, -BACK),))
    [transaction] = journal.read_journal(stepped, steps)
    assert transaction.events[0].job == job
    assert begun - 1 <= transaction.started <= transaction.events[0].at <= before
    assert after <= transaction.committed <= ended
