"""What thousands of kinds, lanes and workers cost those who do not use them."""

from __future__ import annotations

from tests.conftest import Database
from tests.engine.buffers import usual

CLAIM = "SELECT * FROM pulse.claim_batch('w', 'idle')"
HEALTH = "SELECT * FROM pulse.health()"
ENQUEUE = (
    "SELECT pulse.enqueue('k', lane => %s || n)"
    " FROM generate_series(%s::integer, %s) AS n"
)


def test_a_claim_does_not_read_the_settings_of_all_kinds(db: Database) -> None:
    connection = db.connect()
    plain = usual(connection, CLAIM)
    connection.execute(
        "INSERT INTO pulse_internal.kind (kind, max_attempts)"
        " SELECT 'k' || n, 5 FROM generate_series(1, 50000) AS n"
    )
    for analysed in (False, True):
        if analysed:
            connection.execute("ANALYZE pulse_internal.kind")
        assert usual(db.connect(), CLAIM) <= plain + 5
    # One of them has a say in leases: then each job looks for its own, by key.
    connection.execute("SELECT pulse.set_kind('k7', max_runtime => '1 minute')")
    connection.execute("SELECT pulse.enqueue('k7'), pulse.enqueue('k8')")
    deadlines = connection.execute(
        "SELECT kind, deadline IS NOT NULL FROM pulse.claim_batch('w', max_jobs => 2)"
    ).fetchall()
    assert dict(deadlines) == {"k7": True, "k8": False}


def test_health_reads_lanes_and_workers_once_not_lanes_times_workers(
    db: Database,
) -> None:
    connection = db.connect()
    connection.execute(
        "SELECT pulse.enqueue('k', lane => 'lane' || n)"
        " FROM generate_series(1, 500) AS n"
    )
    connection.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '3 minutes'"
    )
    hello = (
        "SELECT pulse.hello('w' || n, ARRAY['lane' || n, 'lane' || n + 1])"
        " FROM generate_series(%s::integer, %s) AS n"
    )
    connection.execute(hello, [1, 10])
    connection.execute("ANALYZE")
    few = usual(connection, HEALTH)
    connection.execute(hello, [11, 1000])
    pages = connection.execute(
        "SELECT pg_relation_size('pulse_internal.worker') / 8192"
    ).fetchone()
    assert pages is not None
    assert usual(connection, HEALTH) <= few + 10 * pages[0] + 100
    unhandled = connection.execute(
        "SELECT figure FROM pulse.health() WHERE check_name = 'unhandled_kinds'"
    ).fetchone()
    assert unhandled == ("none",)


def test_health_reads_a_bounded_number_of_lanes(db: Database) -> None:
    connection = db.connect()
    connection.execute(ENQUEUE, ["lane", 1, 2000])
    connection.execute("ANALYZE")
    two_thousand = usual(connection, HEALTH)
    connection.execute(ENQUEUE, ["lane", 2001, 4000])
    connection.execute("ANALYZE")
    # unhandled_kinds asks the index once for each kind of each lane, up to 10,000.
    assert usual(connection, HEALTH) <= two_thousand + 4 * 2000


def test_health_finds_the_lanes_whose_jobs_have_waited_longest(db: Database) -> None:
    """Wherever they stand by name, and the figures say that it does not read all."""
    connection = db.connect()
    figures = (
        "SELECT status, figure FROM pulse.health()"
        " WHERE check_name IN ('oldest_ready_job', 'stuck_lanes')"
        " ORDER BY check_name"
    )
    connection.execute(ENQUEUE, ["stuck", 1, 1])
    connection.execute(ENQUEUE, ["zz-paused", 1, 1])
    connection.execute("SELECT pulse.pause_lane('zz-paused1')")
    connection.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '10.5 minutes'"
    )
    connection.execute(ENQUEUE, ["lane", 1, 900])
    waiting = [("warn", "10 min in lane stuck1"), ("fail", "stuck1")]
    assert connection.execute(figures).fetchall() == waiting

    connection.execute(ENQUEUE, ["lane", 901, 2000])
    more = (
        "; more than 1000 lanes have ready jobs:"
        " only those whose jobs have waited longest are looked at"
    )
    assert connection.execute(figures).fetchall() == [
        (status, figure + more) for status, figure in waiting
    ]
    held = connection.execute(
        "SELECT figure FROM pulse.health() WHERE check_name = 'held_lanes'"
    ).fetchone()
    assert held == ("zz-paused1 for 10 min" + more,)


def test_health_finds_a_lane_where_ready_jobs_are_sampled(db: Database) -> None:
    """A sample misses lanes: those that come first by name are looked at as well."""
    connection = db.connect()
    connection.execute(ENQUEUE, ["lane", 1, 1000])
    connection.execute(
        "INSERT INTO pulse_internal.ready"
        " (lane, rank, kind, job, attempts, failures, keyed)"
        " SELECT 'busy', 0, 'k', -n, 0, 0, false FROM generate_series(1, 150000) AS n"
    )
    connection.execute("DELETE FROM pulse_internal.ready WHERE job < -1")
    connection.execute(ENQUEUE, ["a-stuck", 1, 1])
    connection.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '10.5 minutes'"
        " WHERE lane = 'a-stuck1'"
    )
    stuck = connection.execute(
        "SELECT figure FROM pulse.health() WHERE check_name = 'stuck_lanes'"
    ).fetchone()
    assert stuck == (
        "a-stuck1; more than 1000 lanes have ready jobs: only those whose jobs have"
        " waited longest in a sample, and the first 1000 by name, are looked at",
    )


def test_a_declaration_that_changes_nothing_reads_each_item_twice(
    db: Database,
) -> None:
    """Before the locks, and after them."""
    connection = db.connect()
    declare = """
        SELECT verdict, count(*)
        FROM pulse.reconcile(
            'app',
            (
                SELECT jsonb_object_agg('k' || n, '{"max_attempts": 4}'::jsonb)
                FROM generate_series(1, 50) AS n
            ),
            (
                SELECT jsonb_object_agg('s' || n, '{"kind": "k", "every": "1h"}'::jsonb)
                FROM generate_series(1, 50) AS n
            )
        )
        GROUP BY verdict
    """
    assert connection.execute(declare).fetchall() == [("created", 100)]
    connection.execute("SET track_functions = 'all'")
    with connection.transaction():
        assert connection.execute(declare).fetchall() == [("unchanged", 100)]
        calls = connection.execute(
            "SELECT pg_stat_get_xact_function_calls("
            "'pulse_internal.declared_facts(text, text)'::regprocedure)"
        ).fetchone()
    assert calls == (200,)
