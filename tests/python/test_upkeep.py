"""Upkeep that cannot stop: tick under load, under a timeout, beside open transactions."""

from __future__ import annotations

from typing import Any

from tests.conftest import Connection, Database
from tests.python.buffers import touched


def one(connection: Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def delay(connection: Connection, lanes: int, jobs: int) -> None:
    """Put jobs into waiting that are due, so many in each of so many lanes."""
    connection.execute(
        b"""
        WITH job AS (
            INSERT INTO pulse.body (kind, payload, max_attempts, enqueued_by)
            SELECT 'k', '{}', 3, current_user FROM generate_series(1, %d)
            RETURNING job
        )
        INSERT INTO pulse.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying
        )
        SELECT
            'lane ' || row_number() OVER () %% %d, now() - interval '1 minute', job, 'k', 0, 0,
            0, false, false
        FROM job
        """
        % (lanes * jobs, lanes)
    )


def a_second_passes(connection: Connection) -> None:
    connection.execute(
        "UPDATE pulse.upkeep_run SET taken_at = taken_at - interval '1 second'"
    )


def test_a_statement_timeout_does_not_roll_back_every_tick(db: Database) -> None:
    operator, ticker = db.connect(), db.connect()
    delay(operator, lanes=30, jobs=5000)
    operator.execute("SELECT pulse.enqueue('k', lane => 'lost')")
    operator.execute("SELECT count(*) FROM pulse.claim_batch('w', 'lost')")
    operator.execute("UPDATE pulse.lease SET lease_until = now() - interval '1 s'")
    operator.execute("SELECT pulse.schedule('s', 'k', every => '1 hour')")
    operator.execute("UPDATE pulse.schedule SET next_at = anchor")
    operator.execute("TRUNCATE pulse.upkeep_run")
    ticker.execute("SET statement_timeout = '1500 ms'")

    done = dict(ticker.execute("SELECT step, did FROM pulse.tick()").fetchall())

    assert done["schedules"] == 1
    assert done["reap"] == 1
    assert 0 < done["promote"] < 150_000
    assert one(operator, "SELECT count(*) FROM pulse._newest_upkeep_run('cut:promote')")
    for _ in range(200):
        a_second_passes(operator)
        ticker.execute("SELECT FROM pulse.tick()")
        if one(operator, "SELECT count(*) FROM pulse.waiting WHERE NOT retrying") == 0:
            break
    ready = "SELECT count(*) FROM pulse.ready WHERE lane LIKE 'lane %'"
    assert one(operator, ready) == 150_000


def test_an_open_lock_on_a_hundred_schedules_does_not_starve_the_rest(
    db: Database,
) -> None:
    operator, holder, ticker = db.connect(), db.connect(autocommit=False), db.connect()
    operator.execute(
        "SELECT pulse.schedule('s' || n, 'k', every => '1 minute')"
        " FROM generate_series(1, 150) AS n"
    )
    operator.execute("UPDATE pulse.schedule SET next_at = anchor")
    holder.execute(
        "SELECT FROM pulse.schedule ORDER BY next_at, name LIMIT 100 FOR UPDATE"
    )

    done = dict(ticker.execute("SELECT step, did FROM pulse.tick()").fetchall())

    assert done["schedules"] == 50
    holder.rollback()


def test_a_tick_ends_all_leases_that_lapsed_at_once(db: Database) -> None:
    """As many as it has time for, and not a thousand or ten thousand a sweep."""
    connection = db.connect()
    connection.execute(
        "SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[12000]))"
    )
    connection.execute("SELECT pulse.set_lane('default', max_batch => 10000)")
    connection.execute("SELECT count(*) FROM pulse.claim_batch('w', max_jobs => 10000)")
    connection.execute("SELECT count(*) FROM pulse.claim_batch('w', max_jobs => 10000)")
    connection.execute("UPDATE pulse.lease SET lease_until = now() - interval '1 s'")

    reap = "SELECT pulse._tick_reap(clock_timestamp() + interval '1 hour')"
    assert one(connection, reap) == 12_000
    assert one(connection, "SELECT count(*) FROM pulse.lease") == 0
    assert one(connection, "SELECT count(*) FROM pulse.check()") == 0


def test_sampling_goes_lane_by_lane_within_its_time(db: Database) -> None:
    connection = db.connect()
    connection.execute(
        "SELECT pulse.enqueue('k', lane => 'lane ' || n) FROM generate_series(1, 250) AS n"
    )
    samples = [
        one(connection, "SELECT pulse._sample_stats('-infinity')") for _ in range(3)
    ]
    assert samples == [100, 100, 50]
    assert one(connection, "SELECT count(DISTINCT lane) FROM pulse.stat") == 250
    assert one(connection, "SELECT sum(ready) FROM pulse.stat") == 250


WAVE = """
DO $do$
BEGIN
    FOR i IN 1..2000 LOOP
        PERFORM pulse.enqueue('urgent', lane => 'lane 0', priority => 9, delay => '1 us');
        COMMIT;
        PERFORM pulse.complete_batch(array(
            SELECT c.lease FROM pulse.claim_batch('w', 'lane 0') AS c WHERE c.priority = 9
        ));
        COMMIT;
    END LOOP;
END
$do$
"""


def test_urgent_jobs_pass_a_due_wave_at_the_same_cost_under_an_old_snapshot(
    db: Database,
) -> None:
    """Each claim takes the urgent job; what the urgent ones leave behind is not met."""
    worker = db.connect()
    delay(worker, lanes=1, jobs=20_000)

    def cost() -> int:
        found = []
        for _ in range(5):
            worker.execute(
                "SELECT pulse.enqueue('urgent', lane => 'lane 0', priority => 9,"
                " delay => '1 us')"
            )
            found.append(
                touched(worker, "SELECT * FROM pulse.claim_batch('w', 'lane 0')")
            )
        return sorted(found)[2]

    before = cost()
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")
    worker.execute(WAVE)
    worker.execute("SELECT pulse.tick()")
    after = cost()
    pin.rollback()

    print(f"claim {before} -> {after} buffers")
    finished = "SELECT count(*) FROM pulse.finished WHERE kind = 'urgent'"
    assert one(worker, finished) == 2000
    assert after <= 3 * before
