"""Large flows cost what their jobs cost: no verb goes over the same edges again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Connect, Connection
from tests.engine.buffers import explained, touched

PARTS = 500


def fan_in(connection: Connection, parts: int) -> None:
    """A root, parts behind it, and one job behind them all."""
    connection.execute(
        "SELECT pulse.enqueue('end', flow => 'f', after => array_agg(p.job))"
        " FROM pulse.enqueue_many('part', array_fill('1'::jsonb, ARRAY[%s]),"
        "  flow => 'f', after => ARRAY[pulse.enqueue('root', flow => 'f')])"
        " AS p (job)",
        [parts],
    )


def end(connection: Connection, kind: str, how: str) -> None:
    connection.execute(
        f"SELECT count(pulse.{how}) FROM pulse.claim_batch("
        "'w', max_jobs => 100, kinds => %s) AS c".encode(),
        [[kind]],
    )


def count(connection: Connection, query: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {query}".encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("order", ["b.job", "b.job DESC"])
def test_a_retry_of_all_parts_does_not_look_at_all_of_them_each_time(
    connect: Connect, order: str
) -> None:
    alice = connect()
    fan_in(alice, PARTS)
    end(alice, "root", "complete(c.lease)")
    alice.execute("SELECT pulse_internal.tick_flows()")
    for _ in range(PARTS // 100):
        end(alice, "part", "fail(c.lease, fatal => true)")
    assert count(alice, "pulse.jobs WHERE state = 'dead'") == PARTS

    if order == "b.job":
        retry = """SELECT * FROM pulse.retry_where('{"state": "dead"}')"""
    else:
        retry = (
            "SELECT pulse.retry(j.job) FROM (SELECT b.job FROM pulse_internal.body AS b"
            f" WHERE b.kind = 'part' ORDER BY {order} OFFSET 0) AS j"
        )
    assert touched(alice, retry) < 200 * PARTS
    assert count(alice, "pulse.jobs WHERE state = 'ready'") == PARTS
    assert count(alice, "pulse.jobs WHERE state = 'blocked'") == 1
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_a_cascade_leaves_no_doubt_about_each_job_that_it_cancels(
    connect: Connect,
) -> None:
    alice = connect()
    fan_in(alice, 4000)
    end(alice, "root", "fail(c.lease, fatal => true)")
    assert count(alice, "pulse_internal.doubt") <= 1001

    # Ticks that have time for one page each.
    for _ in range(5):
        alice.execute("SELECT pulse_internal.tick_flows('-infinity')")
        assert count(alice, "pulse_internal.doubt") <= 1001
    assert count(alice, "pulse_internal.blocked") == 0
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []


@pytest.mark.parametrize("order", ["c.lease", "c.lease DESC"])
def test_looks_at_a_large_fan_in_read_its_edges_a_few_times_in_all(
    connect: Connect, order: str
) -> None:
    alice = connect()
    alice.execute(
        "SELECT pulse.enqueue('end', after => array_agg(p.job)) FROM"
        " pulse.enqueue_many('part', array_fill('1'::jsonb, ARRAY[4000])) AS p (job)"
    )
    for _ in range(40):
        alice.execute("SELECT pulse.claim_batch('w', max_jobs => 100)")
    leases = alice.execute(
        f"SELECT array_agg(c.lease ORDER BY {order}) FROM "
        "pulse_internal.lease AS c".encode()
    ).fetchone()
    assert leases is not None
    reports = [
        f"SELECT * FROM pulse.complete_batch(ARRAY{leases[0][n : n + 100]})"
        for n in range(0, 4000, 100)
    ]
    assert sum(touched(alice, report) for report in reports) < 30 * 4000
    assert count(alice, "pulse_internal.blocked") == 0


def test_a_job_that_waits_for_a_row_of_spawned_jobs_is_not_looked_through(
    connect: Connect,
) -> None:
    """Each of them spawns the next one and ends: a crawl, page by page."""
    alice = connect()
    alice.execute("SELECT pulse.enqueue('end', after => ARRAY[pulse.enqueue('page')])")
    spawn = """SELECT pulse.spawn(%s, 'next', '[{"kind": "page"}]')"""
    costs = []
    for _ in range(400):
        lease = claim_one(alice)
        alice.execute(spawn, [lease])
        costs.append(touched(alice, "SELECT pulse.complete(%s)", lease))
    # Beyond the first page of a look.
    assert sum(costs[110:]) < 150 * len(costs[110:])
    alice.execute("SELECT pulse.complete(%s)", [claim_one(alice)])
    assert count(alice, "pulse_internal.ready WHERE kind = 'end'") == 1


def claim_one(connection: Connection) -> int:
    row = connection.execute(
        "SELECT c.lease FROM pulse.claim_batch('w') AS c"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_names_of_a_list_are_not_looked_for_in_all_of_it(connect: Connect) -> None:
    alice = connect()
    chain = [
        {"kind": "k", "name": f"n{n}", "after": [f"n{n - 1}"] if n else []}
        for n in range(5000)
    ]
    plans = explained(
        alice, "SELECT pulse_internal.list_edges(%s::jsonb)", json.dumps(chain)
    )
    rows = [node["Actual Rows"] * node["Actual Loops"] for node in nodes(plans)]
    assert len(plans) >= 5
    assert max(rows) <= 2 * len(chain)


def test_edges_that_were_met_are_not_stepped_over_by_each_report(
    connect: Connect,
) -> None:
    """Where any end counts, a retry rewrites them: dead rows under an old snapshot."""
    alice = connect()
    old = connect(autocommit=False)
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM pulse.jobs")
    alice.execute(
        "SELECT count(*) FROM pulse.enqueue_many('next', array_fill('1'::jsonb,"
        "  ARRAY[8]), lane => 'later', after_failed => 'run', after => array("
        "  SELECT pulse.enqueue_many('k', array_fill('1'::jsonb, ARRAY[%s]))))",
        [PARTS],
    )
    leases = [
        lease
        for _ in range(PARTS // 100)
        for (lease,) in alice.execute(
            "SELECT c.lease FROM pulse.claim_batch('w', max_jobs => 100) AS c"
        ).fetchall()
    ]
    alice.execute(
        "SELECT count(*) FROM pulse.fail_batch(%s::bigint[], fatal => %s)",
        [leases[: PARTS // 2], [True] * (PARTS // 2)],
    )
    alice.execute("""SELECT * FROM pulse.retry_where('{"state": "dead"}')""")
    assert count(alice, "pulse_internal.dependency WHERE met") == 8 * PARTS // 2

    report = "SELECT count(*) FROM pulse.complete_batch(%s)"
    with alice.transaction():
        alice.execute(report, [leases[-1:]])
        row = alice.execute(
            "SELECT pg_stat_get_xact_tuples_returned("
            "'pulse_internal.dependency_is_one_per_pair'::regclass)"
        ).fetchone()
    assert row is not None
    # A page of a hundred for each, and the first ten edges.
    assert row[0] < 8 * 150
    old.rollback()


def test_the_steps_of_jobs_that_end_are_not_asked_one_by_one(connect: Connect) -> None:
    """Each watcher would be compared with 1,000 steps of each of 500 jobs."""
    alice = connect()
    alice.execute(
        "SELECT pulse.enqueue('next', lane => 'later', after => ARRAY[j.job]) FROM"
        " pulse.enqueue_many('k', array_fill('1'::jsonb, ARRAY[5])) AS j (job)"
    )
    row = alice.execute(
        "SELECT array_agg(c.lease) FROM pulse.claim_batch('w', max_jobs => 5) AS c"
    ).fetchone()
    assert row is not None
    alice.execute(
        "SELECT pulse.save_step(l, 's' || n)"
        " FROM unnest(%s::bigint[]) AS l CROSS JOIN generate_series(1, 20) AS n",
        row,
    )
    plans = explained(alice, "SELECT pulse.complete_batch(%s)", row[0])
    lists = [
        node
        for node in nodes(plans)
        if node.get("Parent Relationship") == "InitPlan"
        and any(n.get("Relation Name") == "job_step" for n in nodes([node]))
    ]
    assert [node["Actual Rows"] for node in lists] == [5]
    assert count(alice, "pulse_internal.ready WHERE lane = 'later'") == 5


def nodes(plans: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for plan in plans:
        yield plan
        yield from nodes(plan.get("Plans", []))
