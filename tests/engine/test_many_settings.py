"""What thousands of kinds, lanes and workers cost those who do not use them."""

from __future__ import annotations

from tests.conftest import Database
from tests.engine.buffers import usual

CLAIM = "SELECT * FROM pulse.claim_batch('w', 'idle')"
HEALTH = "SELECT * FROM pulse.health()"


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
