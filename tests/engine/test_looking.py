"""What people look at stays cheap, however long the lines are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conftest import Connection, Database
from tests.engine.buffers import touched, usual
from tools.servers import Server

LOAD = int(os.environ.get("PULSE_LOAD", "60000"))
# A row read by its index costs a buffer or two, and a look into body three more.
BUDGET = 60_000


@pytest.fixture(scope="module")
def loaded(server: Server) -> Iterator[Database]:
    """Two long lines of ready jobs, one of delayed ones, and few dead among them."""
    database = Database(server, server.create(product="extension"))
    connection = database.connect()
    connection.execute("SELECT pulse.enqueue_many('rare', ARRAY['{}', '{}']::jsonb[])")
    connection.execute(
        "SELECT pulse.fail(c.lease, 'no', fatal => true)"
        " FROM pulse.claim_batch('w', max_jobs => 2) AS c"
    )
    enqueue = (
        "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[%s]),"
        " lane => %s, delay => %s)"
    )
    for lane, share, delay in (("a", 6, None), ("b", 3, None), ("c", 1, "1 hour")):
        for _ in range(10):
            connection.execute(enqueue, (LOAD * share // 100, lane, delay))
    yield database
    database.close()


def test_a_long_line_is_estimated_and_a_short_one_counted(loaded: Database) -> None:
    connection = loaded.connect()
    connection.execute("SELECT pulse.enqueue('k', lane => 'short')")
    rows = connection.execute(
        "SELECT name, depth, depth_estimated FROM pulse.lanes WHERE depth > 0"
    ).fetchall()
    depths = {name: (depth, estimated) for name, depth, estimated in rows}
    assert depths["short"] == (1, False)
    for lane, share in (("a", 0.6), ("b", 0.3)):
        depth, estimated = depths[lane]
        assert estimated is True
        assert depth == pytest.approx(LOAD * share, rel=0.25)


@pytest.mark.parametrize(
    "look",
    [
        "SELECT * FROM pulse.lanes",
        "SELECT * FROM pulse.find_jobs()",
        'SELECT * FROM pulse.find_jobs(\'{"lane": "b"}\')',
        'SELECT * FROM pulse.find_jobs(\'{"kind": "rare", "state": "ready"}\')',
        'SELECT * FROM pulse.find_jobs(\'{"tag": "nobody has it"}\')',
        'SELECT * FROM pulse.find_jobs(\'{"error_like": "%%never%%"}\')',
        'SELECT * FROM pulse.find_jobs(\'{"error_contains": "never"}\')',
        'SELECT * FROM pulse.find_jobs(\'{"payload": {"never": 1}}\')',
        'SELECT * FROM pulse.find_jobs(\'{"payload_contains": "never"}\')',
    ],
)
def test_a_look_reads_a_bounded_number_of_pages(loaded: Database, look: str) -> None:
    assert touched(loaded.connect(), look) <= BUDGET


def test_a_plain_page_reads_little_more_than_it_shows(loaded: Database) -> None:
    connection = loaded.connect()
    assert usual(connection, "SELECT * FROM pulse.find_jobs()") <= 1000
    find = 'SELECT * FROM pulse.find_jobs(\'{"state": "dead"}\')'
    assert usual(connection, find) <= 1000
    assert connection.execute(find).rowcount == 2


def test_a_page_of_a_long_flow_reads_the_newest_of_it(db: Database) -> None:
    connection = db.connect()
    connection.execute("SELECT pulse.enqueue('rare', flow => 'f')")
    for flow, jobs in (("f", 9999), ("other", 7000), ("f", 10000)):
        connection.execute(
            "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[%s]),"
            " flow => %s)",
            (jobs, flow),
        )
    connection.execute("ANALYZE")
    page = 'SELECT * FROM pulse.find_jobs(\'{"flow": ["f", "f"]}\', max_jobs => 1000)'
    assert usual(connection, page) <= 25_000
    found = connection.execute(page).fetchall()
    assert found == [(27000 - n, None) for n in range(1000)]

    find = """SELECT * FROM pulse.find_jobs('{"flow": "f", "kind": "rare"}', %s)"""
    looks = [connection.execute(find, (None,)).fetchall()]
    while looks[-1] and looks[-1][-1][1] is not None:
        looks.append(connection.execute(find, (looks[-1][-1][1],)).fetchall())
    assert looks == [
        *([(None, 22001)], [(None, 17001)], [(None, 5001)], [(1, None), (None, 1)], []),
    ]


def test_jobs_of_later_flows_are_not_read_to_find_an_old_one(db: Database) -> None:
    connection = db.connect()
    for flow, jobs in (("old", 6000), ("later", 24000)):
        connection.execute(
            "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[%s]),"
            " flow => %s)",
            (jobs, flow),
        )
    connection.execute("ANALYZE pulse_internal.body")
    look = (
        "SELECT count(*), min(j), max(j) FROM "
        "pulse_internal.newest_of_flow('old', %s) AS j"
    )
    assert usual(connection, look, 2**63 - 1) <= 150
    found = connection.execute(look.encode(), (5500,)).fetchall()
    assert found == [(5000, 500, 5499)]


def test_a_page_of_the_audit_reads_the_entries_it_shows(db: Database) -> None:
    connection = db.connect()
    connection.execute(
        "INSERT INTO pulse_internal.audit_entry (who, verb, lane)"
        " SELECT pulse_internal.role_number('someone'), 'retry', 'l' || n"
        " FROM generate_series(1, 20000) AS n"
    )
    connection.execute("ANALYZE pulse_internal.audit_entry")
    first = "SELECT * FROM pulse.audit ORDER BY entry DESC LIMIT 20"
    assert usual(connection, first) <= 200
    # As the page and the command line ask for it.
    later = (
        "SELECT * FROM pulse.audit AS a"
        " WHERE (%s::bigint IS NULL OR a.entry < %s) ORDER BY a.entry DESC LIMIT 20"
    )
    assert usual(connection, later, 9000, 9000) <= 200
    rows = connection.execute(later.encode(), (9000, 9000)).fetchall()
    assert [row[0] for row in rows] == list(range(8999, 8979, -1))


def test_lanes_and_health_read_fewer_groups_of_each_of_many_lanes(
    db: Database,
) -> None:
    connection = db.connect()
    connection.execute(
        "SELECT pulse.set_lane('lane' || n, group_slots => 1)"
        " FROM generate_series(1, 500) AS n"
    )
    group = (
        "INSERT INTO pulse_internal.ready"
        " (lane, rank, kind, job, attempts, failures, keyed, group_key)"
        " SELECT 'lane' || l, 0, 'k', -(1000 * l + g), 0, 0, false, 'g' || g"
        " FROM generate_series(1, 500) AS l, generate_series(%s::integer, %s) AS g"
    )
    connection.execute(group, [1, 210])
    connection.execute("VACUUM ANALYZE pulse_internal.ready")
    looks = ("SELECT * FROM pulse.lanes", "SELECT * FROM pulse.health()")
    few = [usual(connection, look) for look in looks]
    connection.execute(group, [211, 420])
    connection.execute("VACUUM ANALYZE pulse_internal.ready")
    many = [usual(connection, look) for look in looks]
    assert max(m / f for m, f in zip(many, few, strict=True)) <= 1.2


def test_a_lane_is_asked_only_for_the_age_of_what_it_has(db: Database) -> None:
    """Of thousands of lanes most are idle, and few have groups."""
    connection = db.connect()
    connection.execute(
        "SELECT pulse.set_lane('idle' || n, max_slots => 5)"
        " FROM generate_series(1, 20) AS n"
    )
    connection.execute("SELECT pulse.enqueue('k', lane => 'plain')")
    connection.execute("SET track_functions = 'all'")
    with connection.transaction():
        connection.execute("SELECT * FROM pulse.lanes")
        calls = connection.execute(
            "SELECT p.proname, pg_stat_get_xact_function_calls(p.oid) FROM pg_proc AS p"
            " WHERE p.proname IN ('oldest_ready_at', 'oldest_in_groups')"
            " AND p.pronamespace = 'pulse_internal'::regnamespace"
        ).fetchall()
    assert dict(calls) == {"oldest_ready_at": 1, "oldest_in_groups": None}


def listening(database: Database) -> Connection:
    connection = database.connect()
    connection.execute("LISTEN pulse_progress")
    return connection


def heard(connection: Connection) -> list[str]:
    """What was sent before now: it has come when a later answer has."""
    connection.execute("SELECT")
    return [ring.payload for ring in connection.notifies(timeout=0)]


def test_progress_rings_only_while_a_session_watches(db: Database) -> None:
    worker, page = db.connect(), listening(db)
    worker.execute("SELECT pulse.enqueue('k')")
    claimed = worker.execute(
        "SELECT lease, job_id FROM pulse.claim_batch('w')"
    ).fetchone()
    assert claimed is not None
    lease, job = claimed

    def report(fraction: float) -> None:
        worker.execute("SELECT pulse.progress(%s, %s)", (lease, fraction))

    report(0.1)
    assert heard(page) == []
    assert page.execute("SELECT pulse.watch_progress()").fetchone() == (True,)
    report(0.2)
    rings = page.notifies(timeout=20, stop_after=1)
    assert [ring.payload for ring in rings] == [str(job)]
    assert page.execute("SELECT pulse.unwatch_progress()").fetchone() == (True,)
    report(0.3)
    assert heard(page) == []


def test_progress_goes_on_in_silence_where_notify_is_off(db: Database) -> None:
    worker, page = db.connect(), listening(db)
    page.execute("SELECT pulse.watch_progress()")
    worker.execute("SET pulse.notify = off")
    worker.execute("SELECT pulse.enqueue('k')")
    worker.execute(
        "SELECT pulse.progress(c.lease, 0.5) FROM pulse.claim_batch('w') AS c"
    )
    assert heard(page) == []
