"""Upkeep that cannot stop: tick under load, a timeout, beside open transactions."""

from __future__ import annotations

import time
from typing import Any

from tests.conftest import Connection, Database
from tests.engine.buffers import touched


def one(connection: Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def delay(connection: Connection, lanes: int, jobs: int) -> None:
    """Put jobs into waiting that are due, so many in each of so many lanes."""
    connection.execute(
        b"""
        WITH job AS (
            INSERT INTO pulse_internal.body (kind, payload, max_attempts, owner)
            SELECT 'k', '{}', 3, (SELECT pulse_internal.role_number(current_user))
            FROM generate_series(1, %d)
            RETURNING job
        )
        INSERT INTO pulse_internal.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying
        )
        SELECT
            'lane ' || row_number() OVER () %% %d, now() - interval '1 minute', job,
            'k', 0, 0, 0, false, false
        FROM job
        """
        % (lanes * jobs, lanes)
    )


def a_second_passes(connection: Connection) -> None:
    connection.execute(
        "UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '1 second'"
    )


def test_a_statement_timeout_does_not_roll_back_every_tick(db: Database) -> None:
    operator, ticker = db.connect(), db.connect()
    delay(operator, lanes=30, jobs=5000)
    operator.execute("SELECT pulse.enqueue('k', lane => 'lost')")
    operator.execute("SELECT count(*) FROM pulse.claim_batch('w', 'lost')")
    operator.execute(
        "UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s'"
    )
    operator.execute("SELECT pulse.schedule('s', 'k', every => '1 hour')")
    operator.execute("UPDATE pulse_internal.schedule SET next_at = anchor")
    operator.execute("TRUNCATE pulse_internal.upkeep_run")
    ticker.execute("SET statement_timeout = '1500 ms'")

    done = dict(ticker.execute("SELECT step, did FROM pulse.tick()").fetchall())

    assert done["schedules"] == 1
    assert done["reap"] == 1
    assert 0 < done["promote"] < 150_000
    assert one(
        operator, "SELECT count(*) FROM pulse_internal.newest_upkeep_run('cut:promote')"
    )
    for _ in range(200):
        a_second_passes(operator)
        ticker.execute("SELECT FROM pulse.tick()")
        if (
            one(
                operator,
                "SELECT count(*) FROM pulse_internal.waiting WHERE NOT retrying",
            )
            == 0
        ):
            break
    ready = "SELECT count(*) FROM pulse_internal.ready WHERE lane LIKE 'lane %'"
    assert one(operator, ready) == 150_000


def test_a_tick_that_runs_short_of_time_goes_on_where_it_stopped(db: Database) -> None:
    operator, ticker = db.connect(), db.connect()
    for step in ("fire_schedules", "tick_promote"):
        operator.execute(
            f"ALTER FUNCTION pulse_internal.{step}(timestamptz)"
            f" RENAME TO quick_{step}".encode()
        )
        operator.execute(
            f"CREATE FUNCTION pulse_internal.{step}(timestamptz) RETURNS bigint"
            " LANGUAGE sql AS 'SELECT pg_sleep(2.2); SELECT 0::bigint'".encode()
        )
    ticker.execute("SET statement_timeout = '3 s'")

    done = []
    for _ in range(10):
        a_second_passes(operator)
        steps = ticker.execute("SELECT step FROM pulse.tick()").fetchall()
        done.append([step for (step,) in steps])
        if "groups" in done[-1]:
            break

    assert done[:2] == [["schedules"], ["promote"]]
    assert {"flows", "reap", "groups"} <= {step for steps in done[2:] for step in steps}
    assert not one(
        operator, "SELECT count(*) FROM pulse_internal.upkeep_run WHERE step = 'left'"
    )


def test_health_names_who_has_little_time_for_a_tick(db: Database) -> None:
    operator = db.connect()
    operator.execute("TRUNCATE pulse_internal.upkeep_run")
    advice = "SELECT advice FROM pulse.health() WHERE check_name = 'last_tick'"
    assert "Little time" not in one(operator, advice)

    operator.execute(f"ALTER DATABASE {db.name} SET statement_timeout = 700".encode())

    assert "Little time: every role has statement_timeout = 700." in one(
        operator, advice
    )


def test_a_large_backstop_is_left_to_callers_with_time(db: Database) -> None:
    """One statement: a tick that is cancelled in it would be so every time."""
    operator, ticker = db.connect(), db.connect()
    operator.execute(
        "ALTER TABLE pulse_internal.waiting SET (autovacuum_enabled = off)"
    )
    delay(operator, lanes=1, jobs=90_000)
    operator.execute("DELETE FROM pulse_internal.waiting")
    dead = "SELECT pg_stat_get_dead_tuples('pulse_internal.waiting'::regclass)"
    while one(operator, dead) < 90_000:
        time.sleep(0.05)

    look = "SELECT step FROM pulse_internal.tick('{backstop}')"
    ticker.execute("SET statement_timeout = '1 s'")
    assert ticker.execute(look).fetchall() == []
    cut = "SELECT figure FROM pulse.health() WHERE check_name = 'tick_budget'"
    assert "backstop (skipped)" in one(operator, cut)

    ticker.execute("SET statement_timeout = 0")
    assert ticker.execute(look).fetchall() == [("backstop",)]


def test_an_open_lock_on_a_hundred_schedules_does_not_starve_the_rest(
    db: Database,
) -> None:
    operator, holder, ticker = db.connect(), db.connect(autocommit=False), db.connect()
    operator.execute(
        "SELECT pulse.schedule('s' || n, 'k', every => '1 minute')"
        " FROM generate_series(1, 150) AS n"
    )
    operator.execute("UPDATE pulse_internal.schedule SET next_at = anchor")
    holder.execute(
        "SELECT FROM pulse_internal.schedule ORDER BY next_at, name LIMIT 100 "
        "FOR UPDATE"
    )

    done = dict(ticker.execute("SELECT step, did FROM pulse.tick()").fetchall())

    assert done["schedules"] == 50
    holder.rollback()


REAP = "SELECT pulse_internal.tick_reap('infinity')"


def run(connection: Connection, jobs: int) -> None:
    connection.execute(
        "SELECT FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[%s::int]),"
        " max_attempts => 1)",
        [jobs],
    )
    connection.execute("SELECT pulse.set_lane('default', max_batch => 10000)")
    for _ in range(0, jobs, 10_000):
        connection.execute("SELECT FROM pulse.claim_batch('w', max_jobs => 10000)")


def test_a_tick_ends_all_leases_that_lapsed_at_once(db: Database) -> None:
    """As many as it has time for, and not a thousand or ten thousand a sweep."""
    connection = db.connect()
    run(connection, 12_000)
    connection.execute(
        "UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s'"
    )

    assert one(connection, REAP) == 12_000
    assert one(connection, "SELECT count(*) FROM pulse_internal.lease") == 0
    assert one(connection, "SELECT count(*) FROM pulse.check()") == 0


def test_a_lapsed_lease_is_looked_at_once_however_many_there_are(db: Database) -> None:
    """And not again for each thousand that a tick ends before it."""
    connection = db.connect()
    entries = (
        "SELECT pg_stat_get_xact_tuples_returned("
        "'pulse_internal.lease_for_reap'::regclass)"
    )
    looks = []
    for leases in (2_000, 12_000):
        run(connection, leases)
        connection.execute(
            "UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - "
            "interval '1 s'"
        )
        with connection.transaction():
            assert one(connection, REAP) == leases
            looks.append(one(connection, entries) / leases)
        connection.execute("VACUUM pulse_internal.lease")
    assert looks[1] < 1.2 * looks[0]


def test_a_tick_looks_again_at_all_leases_that_were_extended(db: Database) -> None:
    connection = db.connect()
    run(connection, 2_500)
    one(connection, REAP)
    connection.execute(
        "UPDATE pulse_internal.lease SET reap_at = now() - interval '1 s'"
    )

    assert one(connection, REAP) == 0
    again = "SELECT count(*) FROM pulse_internal.lease WHERE reap_at = lease_until"
    assert one(connection, again) == 2_500


def test_sampling_goes_lane_by_lane_within_its_time(db: Database) -> None:
    connection = db.connect()
    connection.execute(
        "SELECT pulse.enqueue('k', lane => 'lane ' || n)"
        " FROM generate_series(1, 250) AS n"
    )
    samples = [
        one(connection, "SELECT pulse_internal.tick_sample('-infinity')")
        for _ in range(3)
    ]
    assert samples == [100, 100, 50]
    assert one(connection, "SELECT count(DISTINCT lane) FROM pulse.samples") == 250
    assert one(connection, "SELECT sum(ready) FROM pulse.samples") == 250


WAVE = """
DO $do$
BEGIN
    FOR i IN 1..2000 LOOP
        PERFORM pulse.enqueue(
            'urgent', lane => 'lane 0', priority => 9, delay => '1 us'
        );
        COMMIT;
        PERFORM pulse.complete_batch(array(
            SELECT c.lease
            FROM pulse.claim_batch('w', 'lane 0') AS c
            WHERE c.priority = 9
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
    # Marks stay a second and two looks at the horizon behind the last promotion.
    for _ in range(10):
        worker.execute("SELECT pulse.tick()")
        after = cost()
        if after <= 3 * before:
            break
        time.sleep(1)
    pin.rollback()

    print(f"claim {before} -> {after} buffers")
    finished = "SELECT count(*) FROM pulse_internal.finished WHERE kind = 'urgent'"
    assert one(worker, finished) == 2000
    assert after <= 3 * before


def test_idle_claims_write_nothing_while_another_lane_is_busy(db: Database) -> None:
    busy, idle = db.connect(), db.connect(autocommit=False)
    busy.execute("SELECT pulse.enqueue('k', lane => 'idle')")
    busy.execute("SELECT pulse.complete(lease) FROM pulse.claim_batch('w', 'idle')")
    busy.execute("SELECT FROM pulse.tick()")
    wrote = 0
    for _ in range(30):
        busy.execute(
            "SELECT pulse.enqueue_many("
            "'k', array_fill('{}'::jsonb, ARRAY[600]), 'busy')"
        )
        busy.execute("SELECT FROM pulse.claim_batch('w', 'busy', 100)")
        busy.execute(
            "UPDATE pulse_internal.mark SET marked_at = marked_at - interval '1 s'"
        )
        for kinds in ("NULL", "ARRAY['k']"):
            claim = f"SELECT FROM pulse.claim_batch('w', 'idle', kinds => {kinds})"
            assert idle.execute(claim.encode()).fetchall() == []
            wrote += one(idle, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
            idle.rollback()
    assert wrote == 0


def test_lanes_that_are_no_longer_used_cost_a_tick_nothing(db: Database) -> None:
    connection = db.connect()
    connection.execute(
        """
        DO $do$
        BEGIN
            FOR i IN 1..300 LOOP
                PERFORM pulse.enqueue('k', lane => 'lane ' || i);
                PERFORM pulse.enqueue('k', lane => 'lane ' || i, delay => '1 us');
                COMMIT;
                PERFORM pulse.complete_batch(array(
                    SELECT c.lease FROM pulse.claim_batch('w', 'lane ' || i, 9) AS c
                ));
                COMMIT;
            END LOOP;
        END
        $do$
        """
    )
    marks = (
        "SELECT (SELECT count(*) FROM pulse_internal.mark)"
        " + (SELECT count(*) FROM pulse_internal.due_mark)"
    )
    version = "SELECT last_value FROM pulse_internal.version"
    connection.execute(
        "INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at)"
        " SELECT 'lane ' || n, '', '{0}', '{1}', now()"
        " FROM generate_series(1, 300) AS n"
    )
    connection.execute(
        "INSERT INTO pulse_internal.due_mark (lane, run_at, marked_at)"
        " SELECT 'lane ' || n, '2000-01-01', now() FROM generate_series(1, 300) AS n"
    )
    for _ in range(3):
        connection.execute("SELECT FROM pulse_internal.tick_marks()")
    assert one(connection, marks) >= 600
    connection.execute(
        "UPDATE pulse_internal.mark SET dry_at = dry_at - interval '2 minutes'"
    )
    connection.execute(
        "UPDATE pulse_internal.due_mark SET dry_at = dry_at - interval '2 minutes'"
    )
    connection.execute("SELECT pulse.enqueue('k', lane => 'other')")
    before = one(connection, version)
    connection.execute("SELECT FROM pulse_internal.tick_marks()")
    assert one(connection, version) - before < 5
    assert one(connection, marks) <= 1
    assert one(connection, "SELECT count(*) FROM pulse.check()") == 0


def test_a_tick_looks_at_a_hundred_dry_lines_that_are_kept(db: Database) -> None:
    """The dead rows of other lines keep them: that may last, and lanes be many."""
    connection = db.connect()
    connection.execute("SELECT pulse_internal.see_horizon()")
    for table in ("ready", "waiting"):
        connection.execute(
            f"ALTER TABLE pulse_internal.{table}"
            " SET (autovacuum_enabled = off)".encode()
        )
    many = "array_fill('{}'::jsonb, ARRAY[10000])"
    connection.execute(f"SELECT FROM pulse.enqueue_many('k', {many})".encode())
    delay(connection, lanes=1, jobs=10_000)
    connection.execute("DELETE FROM pulse_internal.ready")
    connection.execute("DELETE FROM pulse_internal.waiting")
    connection.execute(
        "INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at, dry_at)"
        " SELECT to_char(n, '0000'), '', '{0}', '{1}', now(), now() - interval '1 h'"
        " FROM generate_series(1, 250) AS n"
    )
    connection.execute(
        "INSERT INTO pulse_internal.due_mark (lane, run_at, marked_at, dry_at)"
        " SELECT to_char(n, '0000'), '2000-01-01', now(), now() - interval '1 h'"
        " FROM generate_series(1, 250) AS n"
    )
    for table in ("ready", "waiting"):
        dead = f"SELECT pg_stat_get_dead_tuples('pulse_internal.{table}'::regclass)"
        end = time.monotonic() + 60
        while one(connection, dead) < 10_000:
            assert time.monotonic() < end, table
            time.sleep(0.05)

    connection.execute("SELECT pulse_internal.see_horizon()")
    walked = []
    for _ in range(3):
        lines = one(connection, "SELECT pulse_internal.tick_marks()")
        state = one(
            connection, "SELECT (pulse_internal.newest_upkeep_run('marks')).state"
        )
        walked.append((lines, state))

    assert walked == [
        (100, {"lane": " 0100", "kind": "", "due": " 0100"}),
        (100, {"lane": " 0200", "kind": "", "due": " 0200"}),
        (50, {}),
    ]


def test_the_backstop_reads_no_line_above_its_mark(db: Database) -> None:
    """A join the other way round takes minutes: every job by every mark."""
    operator = db.connect()
    operator.execute(
        "INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at)"
        " SELECT 'lane ' || n, '', '{0}', '{1}', now()"
        " FROM generate_series(1, 10000) AS n"
    )
    operator.execute(
        "INSERT INTO pulse_internal.due_mark (lane, run_at, ranks, run_ats, marked_at)"
        " SELECT 'lane ' || n, now(), '{0}', '{now}', now()"
        " FROM generate_series(1, 10000) AS n"
    )
    many = "array_fill('{}'::jsonb, ARRAY[20000])"
    operator.execute(f"SELECT count(*) FROM pulse.enqueue_many('k', {many})".encode())
    operator.execute(
        f"SELECT count(*) FROM pulse.enqueue_many('k', {many}, delay => '1 h')".encode()
    )
    operator.execute("ANALYZE")

    with operator.transaction():
        assert (
            one(operator, "SELECT count(*) FROM pulse_internal.below_marks(1000)") == 0
        )
        read = one(
            operator,
            "SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid))"
            " FROM pg_index AS i WHERE i.indrelid IN"
            " ('pulse_internal.ready'::regclass, 'pulse_internal.waiting'::regclass)",
        )

    assert read == 0


def test_a_claim_does_not_take_what_it_promoted_for_dead_rows(db: Database) -> None:
    operator, worker = db.connect(), db.connect()
    operator.execute("SELECT pulse.enqueue('k')")
    operator.execute("SELECT pulse_internal.tick_marks()")
    operator.execute(
        "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[500]),"
        " delay => '1 h')"
    )
    operator.execute(
        "UPDATE pulse_internal.waiting SET run_at = now() - interval '1 s'"
    )

    worker.execute("SET track_functions = 'all'")
    with worker.transaction():
        worker.execute("SELECT FROM pulse.claim_batch('w', max_jobs => 100)")
        assert one(worker, "SELECT count(*) FROM pulse_internal.waiting") < 500
        asked = one(
            worker,
            "SELECT pg_stat_get_xact_function_calls(p.oid) FROM pg_proc AS p"
            " WHERE p.proname = 'ask_for_marks'",
        )

    assert asked is None
