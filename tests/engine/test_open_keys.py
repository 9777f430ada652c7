"""A transaction that holds a unique key, or the lock of a new server, open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.conftest import Database

KEYED = "SELECT pulse.enqueue('k', unique_key => 'key')"
# As after a start of the server: its numbers have to be secured again.
STARTED = "SELECT setval('pulse_internal.server_start', 1)"
HEALTH = "SELECT status, figure FROM pulse.health() WHERE check_name = 'open_keys'"
# Far above the 3 seconds that a call waits for a key, on a busy machine.
GUARD = "SET statement_timeout = '60s'"


@pytest.mark.parametrize(
    "call",
    [
        KEYED,
        'SELECT pulse.enqueue_many(\'[{"kind": "k", "unique_key": "key"}]\')',
        "SELECT pulse.retry(1)",
        "SELECT pulse.move(2, 'default')",
        "SELECT pulse.run_schedule_now('s')",
        "SELECT pulse.spawn(lease, 'step',"
        ' \'[{"kind": "k", "unique_key": "key"}]\') FROM pulse_internal.lease',
    ],
)
def test_a_call_waits_seconds_for_a_unique_key(db: Database, call: str) -> None:
    client = db.connect()
    client.execute(GUARD)
    client.execute("SELECT pulse.enqueue('k', unique_key => 'key')")
    client.execute("SELECT pulse.cancel(1)")
    client.execute("SELECT pulse.enqueue('k', unique_key => 'key', lane => 'other')")
    client.execute(
        "SELECT pulse.schedule('s', 'k', every => '1 day', unique_key => 'key')"
    )
    client.execute("SELECT pulse.enqueue('spawns', lane => 'runs')")
    client.execute("SELECT pulse.claim_batch('w', 'runs')")

    holder = db.connect(autocommit=False)
    holder.execute(KEYED)
    with pytest.raises(psycopg.Error) as caught:
        client.execute(call.encode())
    assert caught.value.sqlstate == "PU111"
    assert f"backend {holder.info.backend_pid} " in str(
        caught.value.diag.message_detail
    )
    assert client.execute("SHOW lock_timeout").fetchone() == ("0",)

    holder.rollback()
    client.execute(call.encode())
    assert client.execute("SHOW lock_timeout").fetchone() == ("0",)


@pytest.mark.parametrize(
    "frees", ["pulse.complete(lease) FROM pulse_internal.lease", "pulse.cancel(1)"]
)
def test_a_call_waits_seconds_for_a_key_being_freed(db: Database, frees: str) -> None:
    client = db.connect()
    client.execute(GUARD)
    client.execute(KEYED)
    if "lease" in frees:
        client.execute("SELECT pulse.claim_batch('w')")
    holder = db.connect(autocommit=False)
    holder.execute(f"SELECT {frees}".encode())
    with pytest.raises(psycopg.Error) as caught:
        client.execute(KEYED)
    assert caught.value.sqlstate == "PU111"
    holder.rollback()
    client.execute(KEYED)


def test_a_shorter_lock_timeout_of_the_caller_counts(db: Database) -> None:
    client = db.connect()
    client.execute("SET lock_timeout = '10ms'")
    holder = db.connect(autocommit=False)
    holder.execute(KEYED)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        client.execute(KEYED)
    assert client.execute("SHOW lock_timeout").fetchone() == ("10ms",)


def test_a_key_that_is_decided_in_time_is_waited_for(db: Database) -> None:
    holder, client = db.connect(autocommit=False), db.connect()
    holder.execute(KEYED)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(lambda: client.execute(KEYED).fetchone())
        holder.commit()
        assert waits.result(timeout=60) == (1,)


def test_health_names_the_transaction_that_holds_keys(db: Database) -> None:
    operator = db.connect()
    assert operator.execute(HEALTH).fetchone() == ("ok", "none")
    holder = db.connect(autocommit=False)
    holder.execute(KEYED)
    row = operator.execute(HEALTH).fetchone()
    assert row is not None
    assert f"backend {holder.info.backend_pid} of role " in row[1]
    holder.execute("PREPARE TRANSACTION 'left behind'")
    row = operator.execute(HEALTH).fetchone()
    operator.execute("ROLLBACK PREPARED 'left behind'")
    assert row is not None
    assert row[1].startswith("prepared transaction left behind for ")


def test_a_prepared_first_caller_locks_no_numbers(db: Database) -> None:
    client = db.connect()
    client.execute(GUARD)
    client.execute(STARTED)
    first = db.connect()
    first.execute("BEGIN")
    first.execute("SELECT pulse.enqueue('k')")
    first.execute("PREPARE TRANSACTION 'first caller'")
    client.execute(STARTED)
    client.execute("SELECT pulse.enqueue('k')")
    client.execute("SELECT FROM pulse.claim_batch('w')")
    errors = client.execute("SELECT error FROM pulse.tick() WHERE error <> ''")
    assert errors.fetchall() == []
    client.execute("ROLLBACK PREPARED 'first caller'")
