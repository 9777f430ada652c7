"""Retention costs what it removes: not lanes with nothing due, not what is kept."""

from __future__ import annotations

from tests.conftest import Connection, Database
from tests.engine.buffers import touched

PRUNE = "SELECT pulse_internal.tick_prune('infinity')"


def finish(
    connection: Connection, first: int, last: int, *, lane: str, ago: str, keyed: bool
) -> None:
    """Completed jobs, as they are so long after they ended."""
    connection.execute(
        """
        WITH job AS (
            INSERT INTO pulse_internal.body (kind, payload, max_attempts, owner,
                unique_key)
            SELECT 'k', '{}', 3, (SELECT pulse_internal.role_number(current_user)),
                CASE WHEN %(keyed)s THEN 'key ' || n END
            FROM generate_series(%(first)s::integer, %(last)s::integer) AS n
            RETURNING job, unique_key
        ),
        key AS (
            INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for,
                expires_at)
            SELECT %(lane)s, unique_key, job, '30 days', now() + interval '20 days'
            FROM job WHERE unique_key IS NOT NULL
        )
        INSERT INTO pulse_internal.finished (
            job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
            finished_at
        )
        SELECT
            job, replace(%(lane)s, '#', lpad(job::text, 6, '0')), 'k', 0, 'completed',
            'complete', 1, 0, %(keyed)s,
            now() - %(ago)s::interval - job * interval '1 s'
        FROM job
        """,
        {"first": first, "last": last, "lane": lane, "ago": ago, "keyed": keyed},
    )


def most(connection: Connection) -> int:
    """The walk over the lanes is longer in some ticks than in others."""
    return max(touched(connection, PRUNE) for _ in range(6))


def test_lanes_with_nothing_to_remove_cost_a_tick_nothing(db: Database) -> None:
    connection = db.connect()
    finish(connection, 1, 300, lane="lane #", ago="1 hour", keyed=False)
    most(connection)
    few = most(connection)
    finish(connection, 301, 2000, lane="lane #", ago="1 hour", keyed=False)
    many = most(connection)
    assert many < few * 1.3 + 100


def test_a_lane_among_very_many_is_found_and_then_kept_in_sight(db: Database) -> None:
    connection = db.connect()
    finish(connection, 1, 1000, lane="lane #", ago="1 hour", keyed=False)
    finish(connection, 1, 3, lane="a busy one", ago="10 days", keyed=False)
    ticks = 0
    while connection.execute(PRUNE.encode()).fetchone() == (0,):
        ticks += 1
        assert ticks < 15
    # The walk is elsewhere: this lane is remembered.
    for _ in range(3):
        finish(connection, 1, 3, lane="a busy one", ago="10 days", keyed=False)
        assert connection.execute(PRUNE.encode()).fetchone() == (3,)
    assert connection.execute(PRUNE.encode()).fetchone() == (0,)


def test_a_lane_that_finished_jobs_lately_comes_first(db: Database) -> None:
    """The walk would come to it after all idle lanes, a hundred in each tick."""
    connection = db.connect()
    finish(connection, 1, 1000, lane="lane #", ago="1 hour", keyed=False)
    finish(connection, 1, 3, lane="a busy one", ago="10 days", keyed=False)
    connection.execute("SELECT pulse.enqueue('k', lane => 'a busy one')")
    connection.execute(
        "SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'a busy one') AS c"
    )
    connection.execute("SELECT pulse_internal.tick_count()")
    assert connection.execute(PRUNE.encode()).fetchone() == (3,)
    assert connection.execute(PRUNE.encode()).fetchone() == (0,)


def test_jobs_that_are_kept_for_their_keys_cost_a_tick_nothing(db: Database) -> None:
    connection = db.connect()
    finish(connection, 1, 1000, lane="keyed", ago="10 days", keyed=True)
    most(connection)
    few = most(connection)
    finish(connection, 1001, 9000, lane="other keyed", ago="10 days", keyed=True)
    most(connection)
    many = most(connection)
    assert many < few * 1.3 + 100

    # Each goes when its time has come.
    connection.execute(
        "UPDATE pulse_internal.job_key SET expires_at = now() - interval '1 s'"
        " WHERE unique_key IN ('key 5', 'key 5000')"
    )
    assert connection.execute(PRUNE.encode()).fetchone() == (2,)
    assert connection.execute("SELECT FROM pulse.check()").fetchall() == []


def test_a_whole_tick_costs_the_same_however_many_lanes_are_idle(db: Database) -> None:
    connection = db.connect()

    def tick() -> int:
        connection.execute(
            "UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval "
            "'10 seconds'"
            " WHERE step NOT IN ('sample', 'samples', 'backstop')"
        )
        return touched(connection, "SELECT * FROM pulse.tick()")

    finish(connection, 1, 400, lane="lane #", ago="1 hour", keyed=False)
    for _ in range(6):
        tick()
    few = max(tick() for _ in range(4))
    finish(connection, 401, 4000, lane="lane #", ago="1 hour", keyed=False)
    for _ in range(6):
        tick()
    assert max(tick() for _ in range(4)) < few * 1.3 + 100
