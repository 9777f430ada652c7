"""Choosing a node number while others enqueue."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Database


def test_set_node_gives_up_when_open_enqueues_do_not_end(db: Database) -> None:
    producer = db.connect(autocommit=False)
    producer.execute("SELECT pulse.enqueue('k')")
    with pytest.raises(psycopg.Error) as caught:
        db.connect().execute("SELECT pulse.set_node(7)")
    assert caught.value.sqlstate == "PU109"
    assert caught.value.diag.message_hint
    producer.commit()
    assert db.psql("-c", "SELECT pulse.enqueue('k') & 1023") == "0\n"


def test_ids_of_two_nodes_never_collide(db: Database) -> None:
    connection = db.connect()
    first = connection.execute("SELECT pulse.enqueue('k')").fetchone()
    connection.execute("SELECT pulse.set_node(7)")
    second = connection.execute("SELECT pulse.enqueue('k')").fetchone()
    assert first is not None
    assert second is not None
    assert first[0] & 1023 == 0
    assert second[0] & 1023 == 7
    assert second[0] > first[0]
