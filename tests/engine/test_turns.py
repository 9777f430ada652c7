"""Claims of a lane with max_slots take turns; at its turn a claim looks anew."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.conftest import Connection, Database

CLASS_AND_KEY = "'pulse_internal.roster'::regclass::oid::integer, hashtext('narrow')"
CLAIM = "SELECT c.priority FROM pulse.claim_batch('w', 'narrow') AS c"
WAITS = "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = %s"


def claim_while_waiting(
    holder: Connection, producer: Connection, claimer: Connection
) -> list[Any]:
    """Claim; while it waits for its turn, enqueue a job of higher priority."""
    rows: list[Any] = []
    holder.execute(f"SELECT pg_advisory_lock({CLASS_AND_KEY})".encode())
    claim = threading.Thread(
        target=lambda: rows.extend(claimer.execute(CLAIM).fetchall())
    )
    claim.start()
    end = time.monotonic() + 10
    while claim.is_alive() and time.monotonic() < end:
        row = producer.execute(WAITS, (claimer.info.backend_pid,)).fetchone()
        if row is not None and row[0]:
            break
    producer.execute("SELECT pulse.enqueue('k', lane => 'narrow', priority => 10)")
    holder.execute(f"SELECT pg_advisory_unlock({CLASS_AND_KEY})".encode())
    claim.join(20)
    return rows


def test_a_job_that_arrives_while_a_claim_waits_for_its_turn_goes_by_its_priority(
    db: Database,
) -> None:
    """A claim that gave up first (after 50 ms) has shown nothing and is repeated."""
    operator, producer, claimer = db.connect(), db.connect(), db.connect()
    operator.execute("SELECT pulse.set_lane('narrow', max_slots => 100)")
    operator.execute("SELECT pulse.enqueue('k', lane => 'narrow')")
    operator.execute(
        "INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at) "
        "VALUES ('narrow', '', '{0}', '{0}', clock_timestamp())"
    )
    for _ in range(50):
        if rows := claim_while_waiting(operator, producer, claimer):
            assert rows == [(10,)]
            return
        assert operator.execute(CLAIM).fetchall() == [(10,)]
    raise AssertionError("no claim had its turn")
