"""The page reads a bounded number of rows, however many jobs wait.

PULSE_LOAD is how many are ready, PULSE_LANES and PULSE_KINDS in how many lanes and of
how many kinds; half as many have finished. Bounds are by lanes and kinds, never by
jobs, so a load of 10000000 has to keep to the same ones. With PULSE_TIMES=1 the times
of every answer are printed.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from pulse.cli import queries as cli
from pulse.sql import operator
from pulse.web import queries
from tests.conftest import Connection
from tests.web.browser.seeds import ADD_TOTALS
from tests.web.conftest import API, Site

LOAD = int(os.environ.get("PULSE_LOAD", "50000"))
LANES = int(os.environ.get("PULSE_LANES", "1000"))
KINDS = int(os.environ.get("PULSE_KINDS", "500"))

# Each lane is looked up a few times, and jobs are counted until they are 100,000 in
# all. A search reads 10000 jobs of a table at most, here of two, each with a look at
# its body where the filter asks: 3 or 4 buffers.
GLANCE = 3_000 + 80 * LANES
# Each kind of each lane is looked up once, up to 10,000 of them.
PAIRS = 55_000
SEARCH = 100_000
# Dead letters are counted off an index: here a hundredth of the load.
DEAD = 2_000
# Each series has its newest row, and one before it.
SERIES = 40_000
ONE = 500
CHART = 5_000

DEATH = {"before": None, "before_job": None}
ALL = {"since": None, "lane": None, "kind": None}
HOUR = ALL | {"since": "1 hour", "step": "1 minute"}
WEEK = ALL | {"since": "7 days", "step": "1 hour"}


@pytest.fixture
def loaded(connection: Connection) -> int:
    """LOAD ready jobs, half of them in one lane, every kind in every lane; half as many
    finished, some of them dead; the oldest id."""
    spread = {
        "kind": f"'k' || (hashint4(n) & 2147483647) % {KINDS}",
        "lane": "CASE WHEN n % 2 = 0 THEN 'busy' ELSE 'l' ||"
        f" (hashint4(n * 7) & 2147483647) % {LANES} END",
    }
    role = connection.execute("SELECT pulse_internal.role_number('loader')").fetchone()
    assert role is not None
    for statement in (
        "INSERT INTO pulse_internal.body (job, kind, payload, max_attempts, "
        "owner, tags)"
        f" SELECT n, {{kind}}, '{{{{\"n\": 1}}}}', 3, {role[0]}, ARRAY['t' || n % 1000]"
        f" FROM generate_series(1, {LOAD + LOAD // 2}) AS n",
        "INSERT INTO pulse_internal.ready"
        " (lane, rank, kind, job, attempts, failures, keyed, ready_at)"
        " SELECT {lane}, n % 3, {kind}, n, 0, 0, false, now() - interval '10 minutes'"
        f" FROM generate_series(1, {LOAD}) AS n",
        "INSERT INTO pulse_internal.finished (job, lane, kind, rank, state, "
        "ended_by, attempts,"
        " failures, keyed, error, claimed_at)"
        " SELECT n, {lane}, {kind}, 0,"
        " CASE WHEN n % 50 = 0 THEN 'dead' ELSE 'completed' "
        "END::pulse_internal.outcome,"
        " 'complete', 1, 0, false, CASE WHEN n % 50 = 0 THEN 'no' END, now()"
        f" FROM generate_series({LOAD + 1}, {LOAD + LOAD // 2}) AS n",
        f"SELECT setval('pulse_internal.job_id', {LOAD + LOAD // 2})",
    ):
        connection.execute(statement.format_map(spread).encode())
    connection.execute("SELECT pulse.claim_batch('w1', 'busy', 50)")
    connection.execute(
        "UPDATE pulse_internal.lease SET claimed_at = now() - interval '9 min'"
    )
    connection.execute(
        """
        INSERT INTO pulse_internal.stat
        SELECT
            'l' || n % %(lanes)s, 'k' || n % %(kinds)s,
            date_trunc('minute', now()) - m * interval '1 minute',
            60 - m, 60 - m, 60 - m, 0, 0, 0, 0, 0, 0,
            array_fill(1, ARRAY[16])::bigint [], 0, array_fill(1, ARRAY[16])::bigint []
        FROM generate_series(1, least(2 * %(lanes)s, 2000)) AS n,
            generate_series(0, 59, 3) AS m
        ON CONFLICT DO NOTHING
        """.replace("% ", "%% "),
        {"lanes": LANES, "kinds": KINDS},
    )
    connection.execute(ADD_TOTALS)
    connection.execute(
        "UPDATE pulse_internal.stat SET ready = 3, running = 1 WHERE total"
    )
    connection.execute("VACUUM ANALYZE")
    row = connection.execute("SELECT min(job_id) FROM pulse.jobs").fetchone()
    assert row is not None
    return int(row[0])


def find(**filter: Any) -> dict[str, Any]:
    return {"filter": Jsonb(filter), "before": None, "limit": 50}


def touched(connection: Connection, query: str, values: dict[str, Any]) -> int:
    """Buffers, those of the functions it calls included; the second time around."""
    for _ in range(2):
        row = connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}".encode(), values
        ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_no_query_of_the_page_reads_the_whole_queue(
    connection: Connection, loaded: int
) -> None:
    newest = connection.execute(
        operator.FIND, {"filter": Jsonb({}), "before": None, "limit": 200}
    ).fetchall()
    ids = [row[0] for row in newest]
    one = {"job_id": loaded}
    costs = {
        f"{name} {values.get('filter', '')}": (touched(connection, query, values), most)
        for name, query, values, most in (
            ("lanes", queries.LANES, {"lane": None}, GLANCE),
            ("overview", queries.OVERVIEW, {"lane": None}, GLANCE),
            ("running", queries.RUNNING, {}, ONE),
            ("workers", queries.WORKERS, {}, ONE),
            ("health", operator.HEALTH, {}, GLANCE + PAIRS + DEAD),
            ("counters", operator.COUNTERS, {}, SERIES),
            ("gauges", operator.GAUGES, {}, 2 * GLANCE),
            ("counts", "SELECT FROM pulse.counts()", {}, SEARCH),
            ("summary", queries.SUMMARY, queries.SUMMARY_VALUES, SEARCH + GLANCE),
            ("pulse lanes", cli.LANES, {}, GLANCE),
            ("pulse stats", cli.COUNTED, ALL, SERIES),
            ("pulse stats", cli.COUNTED_SINCE, ALL | {"since": "1 hour"}, SERIES),
            ("pulse stats", cli.COUNTED_SINCE, ALL | {"since": "1 day"}, SERIES),
            ("pulse kinds", cli.KINDS, {}, PAIRS),
            ("is there this lane", operator.LANE_IS_KNOWN, {"lane": "typo"}, GLANCE),
            ("kinds", queries.KINDS, {"kind": None}, PAIRS),
            ("gauges of kinds", queries.KIND_GAUGES, {}, PAIRS),
            ("history", queries.HISTORY, HOUR, ONE),
            ("history of a lane", queries.HISTORY, HOUR | {"lane": "l1"}, ONE),
            ("history of a kind", queries.HISTORY, HOUR | {"kind": "k1"}, ONE),
            ("history of a week", queries.HISTORY, WEEK, CHART),
            ("find dead", queries.FIND_DEAD, find() | DEATH, ONE),
            ("find dead", queries.FIND_DEAD, find(kind="nothing") | DEATH, SEARCH),
            ("groups", queries.DEAD_GROUPS, queries.SUMMARY_VALUES, SEARCH),
            ("audit", queries.AUDIT, {"before": None, "limit": 50}, ONE),
            ("jobs", queries.JOBS, {"job_ids": ids}, 20 * len(ids)),
            ("job", queries.JOB, one, ONE),
            ("why", operator.WHY, one, GLANCE),
            ("watched", queries.WATCHED, {"job_ids": ids}, 20 * len(ids)),
            ("find", operator.FIND, find(), ONE),
            ("find", operator.FIND, find(state="ready", lane="l7"), ONE),
            ("find", operator.FIND, find(state="dead"), ONE),
            ("find", operator.FIND, find(state=["dead", "cancelled"]), ONE),
            ("find", operator.FIND, find(state="running"), ONE),
            ("find", operator.FIND, find(kind="k3"), ONE),
            ("find", operator.FIND, find(kind="nothing"), SEARCH),
            ("find", operator.FIND, find(tag="t7"), SEARCH),
            ("find", operator.FIND, find(error_like="%no such%"), SEARCH),
            ("find", operator.FIND, find(error_contains="no such"), SEARCH),
            ("find", operator.FIND, find(payload={"n": 2}), SEARCH),
            ("find", operator.FIND, find(payload_contains="zwei"), SEARCH),
            ("find", operator.FIND, find(worker="nobody"), SEARCH),
            ("find", operator.FIND, find(older_than="1 day"), SEARCH),
        )
    }
    for name, (cost, most) in costs.items():
        print(f"{cost:>7} of {most:>6} {name}")
    assert not {name: cost for name, (cost, most) in costs.items() if cost > most}


def test_every_page_answers_on_a_long_queue(
    connection: Connection, loaded: int, site: Site
) -> None:
    viewer = site.client("viewer")
    paths = [
        *("me", "lanes", "status", "jobs", "dead", "workers", "health", "audit"),
        *("summary", "history", "history?range=7d&kind=k1", "kinds", "dead/groups"),
        *(f"jobs/{loaded}", f"jobs/{loaded}/why", "jobs?state=ready&lane=l7"),
        *("jobs?kind=nothing", "jobs?tag=t7", "jobs?error_like=%25x%25"),
        *("jobs?state=dead&older_than=1 second", "jobs?state=dead"),
        f"jobs?before={loaded + 1000}",
    ]
    took: dict[str, float] = {}
    for path in [*(f"{API}/{path}" for path in paths), "/metrics"]:
        for _ in range(3):
            start = time.perf_counter()
            answer = viewer.get(path)
            took[path] = min(took.get(path, 1e9), time.perf_counter() - start)
            assert answer.status_code == 200, f"{path}: {answer.text}"
    if os.environ.get("PULSE_TIMES"):
        print(*(f"{1000 * s:8.1f} ms  {path}" for path, s in took.items()), sep="\n")
    lanes = {x["name"]: x for x in viewer.get(f"{API}/lanes").json()["lanes"]}
    busy = lanes["busy"]["depth"]
    assert lanes["busy"]["depth_estimated"]
    assert busy == pytest.approx(LOAD / 2, rel=0.2)
    kinds = viewer.get(f"{API}/kinds").json()["kinds"]
    assert len(kinds) == KINDS
    assert sum(kind["ready"] for kind in kinds) == pytest.approx(LOAD, rel=0.2)
    assert all(kind["ready_estimated"] for kind in kinds)
    # A search for nothing says how far it came, and that it can go on.
    page = viewer.get(f"{API}/jobs?kind=nothing").json()
    assert page["jobs"] == []
    assert page["next"] == page["searched_to"] is not None
