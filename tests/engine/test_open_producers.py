"""A transaction that has enqueued stays open: what claims cost."""

from __future__ import annotations

import pytest

from tests.conftest import Connection, Database
from tests.engine.buffers import usual

CLAIM = "SELECT * FROM pulse.claim_batch('w', 'mine')"
ENQUEUE = "SELECT pulse.enqueue('k', lane => %s)"
JOBS = 20_000
# A batch goes in, is claimed and completed; each step commits, as from a client.
CYCLES = """
DO $do$
DECLARE
    v_leases bigint [];
BEGIN
    FOR i IN 1..{cycles} LOOP
        PERFORM count(*) FROM pulse.enqueue_many(
            'k', array_fill('1'::jsonb, ARRAY[100]), lane => 'mine'
        );
        COMMIT;
        v_leases := array(SELECT lease FROM pulse.claim_batch('w', 'mine', 100));
        COMMIT;
        PERFORM count(*) FROM pulse.complete_batch(v_leases);
        COMMIT;
    END LOOP;
END
$do$
"""


def one(connection: Connection, query: str, *values: object) -> object:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.proves("G8", "R2")
def test_claim_of_an_empty_lane_costs_the_same_beside_open_transactions(
    db: Database,
) -> None:
    """A producer of another lane, a prepared one of a third, and an old snapshot."""
    worker = db.connect()
    worker.execute(CYCLES.format(cycles=2).encode())
    before = usual(worker, CLAIM)

    producer = db.connect(autocommit=False)
    producer.execute(ENQUEUE, ["other"])
    prepared = db.connect(autocommit=False)
    prepared.execute(ENQUEUE, ["third"])
    prepared.execute("PREPARE TRANSACTION 'third'")
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")

    worker.execute(CYCLES.format(cycles=JOBS // 100).encode())
    worker.execute("SELECT pulse.tick()")
    after = usual(worker, CLAIM)
    producer.rollback()
    pin.rollback()
    worker.execute("ROLLBACK PREPARED 'third'")

    print(f"an empty claim: {before} -> {after} buffers")
    assert after <= 1.5 * before


def test_ten_thousand_lanes_in_one_transaction_fit_the_lock_table(
    db: Database,
) -> None:
    producer = db.connect(autocommit=False)
    producer.execute(
        "SELECT pulse.enqueue('k', lane => 'lane ' || n)"
        " FROM generate_series(1, 10000) AS n"
    )
    locks = one(
        producer,
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
        " AND classid = 'pulse_internal.ready_seq'::regclass",
    )
    assert locks == 256
    producer.commit()
