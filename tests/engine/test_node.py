"""Choosing a node number while others enqueue and claim."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from tests.conftest import Database


@pytest.mark.parametrize("verb", ["enqueue('k')", "claim_batch('w')"])
def test_set_node_gives_up_when_open_draws_do_not_end(db: Database, verb: str) -> None:
    db.psql("-c", "SELECT pulse.enqueue('k')")
    other = db.connect(autocommit=False)
    other.execute(f"SELECT pulse.{verb}")
    with pytest.raises(psycopg.Error) as caught:
        db.connect().execute("SELECT pulse.set_node(7)")
    assert caught.value.sqlstate == "PU109"
    assert caught.value.diag.message_hint
    other.commit()
    assert db.psql("-c", "SELECT pulse.node()") == "0\n"


def test_ids_of_two_nodes_never_collide(db: Database) -> None:
    connection = db.connect()
    first = connection.execute("SELECT pulse.enqueue('k')").fetchone()
    connection.execute("SELECT pulse.set_node(7)")
    second = connection.execute("SELECT pulse.enqueue('k')").fetchone()
    assert first == (1,)
    assert second == ((7 << 43) + 1,)


def test_a_claim_that_enqueues_is_never_shot_by_set_node(db: Database) -> None:
    db.psql("-c", "SELECT pulse.enqueue('k')")
    handler = db.connect(autocommit=False)
    handler.execute("SELECT pulse.claim_batch('w')")
    setting = threading.Thread(target=db.psql, args=["-c", "SELECT pulse.set_node(7)"])
    setting.start()
    watcher = db.connect()
    for _ in range(1000):
        (waits,) = watcher.execute(
            "SELECT count(*) FROM pg_locks"
            " WHERE NOT granted AND relation = 'pulse_internal.lease_seq'::regclass"
        ).fetchall()[0]
        if waits:
            break
        time.sleep(0.005)
    assert waits
    # set_node has job_id and waits for lease_seq, this one has lease_seq.
    handler.execute("SELECT pulse.enqueue('k')")
    handler.commit()
    setting.join()
    assert watcher.execute("SELECT pulse.node()").fetchone() == (7,)


def test_leases_of_a_lower_node_are_reaped(db: Database) -> None:
    connection = db.connect()
    connection.execute("SELECT pulse.set_node(7)")
    for _ in range(3):
        connection.execute("SELECT pulse.enqueue('k')")
        connection.execute(
            "SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w') AS c"
        )
        connection.execute("SELECT pg_sleep(0.03), pulse.reap()")
    swept = connection.execute(
        "SELECT pulse.lease_node((state ->> 'from')::bigint)"
        " FROM pulse_internal.upkeep_run WHERE step = 'watch'"
    ).fetchone()
    assert swept == (7,)

    connection.execute("SELECT pulse.set_node(3)")
    # A sweep that had begun before writes what it saw of node 7.
    connection.execute(
        "INSERT INTO pulse_internal.upkeep_run (step, taken_at, state)"
        " VALUES ('watch', now(), jsonb_build_object('from', (7::bigint << 53) + 9999))"
    )
    connection.execute("SELECT pulse.enqueue('k')")
    connection.execute("SELECT pulse.claim_batch('w')")
    connection.execute(
        "UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s'"
    )
    assert connection.execute("SELECT pulse.reap()").fetchone() == (1,)
