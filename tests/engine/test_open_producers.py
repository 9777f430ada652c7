"""A transaction that has enqueued stays open: what claims cost, and what names it."""

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
HEALTH = "SELECT status, figure FROM pulse.health() WHERE check_name = 'open_producers'"


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


def test_the_session_that_holds_a_lane_back_is_named(db: Database) -> None:
    operator = db.connect()
    job = one(operator, ENQUEUE, "mine")
    assert operator.execute(HEALTH).fetchone() == ("ok", "none")

    producer = db.connect(autocommit=False)
    producer.execute("SET application_name = 'importer'")
    producer.execute(ENQUEUE, ["mine"])
    operator.execute("SELECT pulse_internal.see_horizon()")
    pid = producer.info.backend_pid
    held = "SELECT holder, lanes FROM pulse_internal.open_producers()"
    row = operator.execute(held).fetchone()
    assert row is not None
    holder, lanes = row
    assert holder.startswith(f"backend {pid} of role ")
    assert ", application importer, idle in transaction for " in holder
    assert lanes == ["mine"]
    gauge = (
        "SELECT value > 0 FROM pulse.gauges() WHERE gauge = 'oldest_producer_seconds'"
    )
    assert one(operator, gauge) is True

    producer.rollback()
    assert operator.execute(held).fetchall() == []
    assert one(operator, gauge) is False
    assert one(operator, "SELECT count(*) FROM pulse.why(%s)", job) == 1


def test_health_and_why_name_a_producer_that_stays_open(db: Database) -> None:
    """Two minutes are added to every age: no test waits for one."""
    operator = db.connect()
    job = one(operator, ENQUEUE, "mine")
    producer = db.connect(autocommit=False)
    producer.execute(ENQUEUE, ["mine"])
    body = one(
        operator,
        "SELECT pg_get_functiondef('pulse_internal.open_producers'::regproc)",
    )
    assert isinstance(body, str)
    assert body.count("clock_timestamp()\n") == 1
    operator.execute(
        body.replace(
            "clock_timestamp()\n", "clock_timestamp() + interval '2 minutes'\n"
        ).encode()
    )

    row = operator.execute(HEALTH).fetchone()
    assert row is not None
    status, figure = row
    assert status == "warn"
    assert figure.startswith(f"backend {producer.info.backend_pid} of role ")
    assert figure.endswith("(mine)")
    reasons = operator.execute("SELECT reason FROM pulse.why(%s)", [job]).fetchall()
    assert f"backend {producer.info.backend_pid} of role " in reasons[-1][0]
