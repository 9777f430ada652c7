"""The verbs of flows keep their plans too, whatever the statistics say of their tables.

As test_pinned_plans.py: tables of flows that were analysed empty, have grown since, are
full, were emptied since, have all that waits waiting for one job, and are full of dead
rows that an old snapshot keeps; in sessions that planned before and after.
"""

from __future__ import annotations

import re
from collections import defaultdict

from tests.conftest import Connection, Database
from tests.engine.test_pinned_plans import Access, Watch, judge

LEASE = (
    "(SELECT lease FROM pulse_internal.lease WHERE lane = 'v' ORDER BY lease LIMIT 1)"
)
CLAIM = "SELECT pulse.claim_batch('w', 'v', 100)"
COMPLETE = (
    "SELECT pulse.complete_batch(array(SELECT lease FROM "
    "pulse_internal.lease WHERE lane = 'v'))"
)
LIST = """[
    {"kind": "k", "lane": "v", "name": "a", "flow": "v"},
    {"kind": "k", "lane": "v", "name": "b", "flow": "v", "after": ["a"]},
    {"kind": "k", "lane": "v", "name": "c", "flow": "v", "after": ["a", "b"]},
    {"kind": "k", "lane": "v", "flow": "v", "after": ["b"], "after_failed": "run"},
    {"kind": "k", "lane": "v", "flow": "v", "after": ["b"], "after_failed": "hold"},
    {"kind": "k", "lane": "v", "flow": "v", "after": ["a", "c"], "delay": "1 hour"}]"""
VERBS = [
    f"SELECT pulse.enqueue_many('{LIST}')",
    CLAIM,
    f'SELECT pulse.spawn({LEASE}, \'s\', \'[{{"kind": "k", "lane": "v"}}]\')',
    COMPLETE,
    # b and what was spawned; b waits, is told, waits again, and dies.
    CLAIM,
    f"SELECT pulse.upstream({LEASE})",
    f"SELECT pulse.save_step({LEASE}, 'one', '1')",
    f"SELECT pulse.save_step({LEASE}, 'one', '1')",
    f"SELECT pulse.steps({LEASE})",
    f"SELECT pulse.wait_for({LEASE}, 'two', '1 day',"
    " 'go ' || (SELECT max(job) FROM pulse_internal.lease))",
    "SELECT pulse.signal('go ' || substr(max(signal), 4)) FROM "
    "pulse_internal.signal_wait"
    " WHERE signal LIKE 'go %'",
    CLAIM,
    f"SELECT pulse.wait_for({LEASE}, 'three', '0', 'never')",
    "SELECT pulse.fail_batch(array(SELECT lease FROM pulse_internal.lease WHERE "
    "lane = 'v'),"
    " fatal => '{true,true,true,true}')",
    "SELECT pulse.retry((SELECT max(job) FROM pulse_internal.finished WHERE lane = 'v'"
    " AND state = 'dead'))",
    CLAIM,
    COMPLETE,
    CLAIM,
    COMPLETE,
    # A doubt, and a claim that finds nothing to do.
    "SELECT pulse.enqueue('k', lane => 'v', flow => 'v')",
    "SELECT pulse.enqueue('k', lane => 'v', flow => 'v', name => 'n', after => array("
    " SELECT job FROM pulse_internal.ready WHERE lane = 'v' LIMIT 3))",
    "SELECT pulse.claim_batch('w', 'idle')",
    CLAIM,
    COMPLETE,
    # Many upstreams: all of a row, and some of it.
    "SELECT pulse.enqueue('k', lane => 'v', after => array_agg(m)),"
    " pulse.enqueue('k', lane => 'v', after => array_agg(m) FILTER (WHERE m % 2 = 0))"
    " FROM pulse.enqueue_many('k', array_fill('1'::jsonb, ARRAY[30]), lane => 'v')"
    " AS m",
    CLAIM,
    COMPLETE,
    # Several small fan-ins in one report.
    "SELECT pulse.enqueue('k', lane => 'v', after => array(SELECT pulse.enqueue_many("
    " 'k', array_fill('1'::jsonb, ARRAY[2]), lane => 'v') WHERE n > 0))"
    " FROM generate_series(1, 8) AS n",
    CLAIM,
    COMPLETE,
    CLAIM,
    COMPLETE,
    # More than a report looks at.
    "SELECT count(*) FROM pulse.enqueue_many('k', array_fill('1'::jsonb, ARRAY[1300]),"
    " lane => 'v', after => ARRAY[pulse.enqueue('k', lane => 'v')])",
    CLAIM,
    COMPLETE,
    CLAIM,
    "SELECT pulse_internal.tick_flows()",
    "DELETE FROM pulse_internal.ready WHERE lane = 'v'",
    f"SELECT pulse.enqueue_many('{LIST}')",
    "SELECT pulse.cancel((SELECT max(job) FROM pulse_internal.blocked WHERE lane "
    "= 'v'))",
    "SELECT pulse.tick()",
]
TABLES = (
    *("blocked", "dependency", "doubt", "wake", "job_step", "signal", "signal_wait"),
    *("ready", "lease", "waiting", "finished", "body", "note_mark"),
    *("mark", "due_mark", "horizon", "failure", "tally", "job_key", "upkeep_run"),
)
EMPTY = "TRUNCATE " + ", ".join(f"pulse_internal.{table}" for table in TABLES)


def fill(connection: Connection, skewed: bool) -> None:
    """Flows of three jobs, or one of 10,000; steps; signals sent and waited for."""
    if skewed:
        connection.execute(
            "SELECT pulse.enqueue('k', lane => 'f', after => array_agg(p.job)) FROM"
            " pulse.enqueue_many('k', array_fill('1'::jsonb, ARRAY[10000]),"
            " lane => 'f', after => ARRAY[pulse.enqueue('k', lane => 'f')]) AS p (job)"
        )
    else:
        connection.execute(
            "SELECT count(pulse.enqueue('k', lane => 'f', after => ARRAY[pulse.enqueue("
            " 'k', lane => 'f', after => ARRAY[f.job])])) FROM (SELECT pulse.enqueue("
            " 'k', lane => 'f') AS job FROM generate_series(1, 3000)) AS f"
        )
    connection.execute(
        "INSERT INTO pulse_internal.job_step (job, step, result, saved_at)"
        " SELECT b.job, 'kept', '1', now() FROM pulse_internal.body AS b"
    )
    connection.execute(
        "INSERT INTO pulse_internal.signal (signal, owner, expires_at)"
        " SELECT 'sent ' || n, 0, now() + '1 day' FROM generate_series(1, 5000) AS n"
    )
    connection.execute(
        "INSERT INTO pulse_internal.signal_wait (job, lease, signal, owner, step)"
        " SELECT -n, n, 'awaited ' || n %% %s, 1, 's' FROM generate_series(1, 5000)"
        " AS n",
        [1 if skewed else 5000],
    )
    # Marks are behind: nothing was settled yet.
    connection.execute(
        "INSERT INTO pulse_internal.doubt (job) SELECT r.job FROM "
        "pulse_internal.ready AS r"
    )


def drain(connection: Connection) -> None:
    connection.execute(
        "DO $$ BEGIN FOR i IN 1..300 LOOP PERFORM pulse.complete_batch(array("
        "SELECT lease FROM pulse.claim_batch('w', 'f', 100))); COMMIT; END LOOP; END $$"
    )


def test_no_statistics_change_how_a_statement_of_flows_reads(db: Database) -> None:
    seen: dict[str, dict[Access, set[str]]] = defaultdict(dict)
    admin = db.connect()
    old = Watch(db, seen, VERBS)

    def both(regime: str) -> None:
        admin.execute("DELETE FROM pulse_internal.upkeep_run")
        Watch(db, seen, VERBS).run(f"{regime}, planned after")
        admin.execute("DELETE FROM pulse_internal.upkeep_run")
        old.run(f"{regime}, planned before")

    for _ in range(3):
        old.run("as installed")
    admin.execute(EMPTY)
    admin.execute("VACUUM ANALYZE")
    both("analysed empty")
    fill(admin, skewed=False)
    both("grown since")
    admin.execute("VACUUM ANALYZE")
    both("full")
    admin.execute(EMPTY)
    both("emptied since")
    fill(admin, skewed=True)
    admin.execute("VACUUM ANALYZE")
    both("skewed")
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse_internal.blocked")
    drain(admin)
    admin.execute("VACUUM ANALYZE")
    both("dead rows")
    pin.rollback()

    touching = re.compile(
        r"pulse_internal\.(blocked|dependency|doubt|wake|job_step|signal)"
    )
    assert sum(1 for query in seen if touching.search(query)) > 40
    judge(seen)
