"""The cost of a claim depends on the batch, not on what else the queue holds.

PULSE_LOAD is how many ready, how many not-due and how many finished jobs there are:
1000000 is the load of the contract, the default is a smaller one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from tests.engine.buffers import explained, touched, usual
from tools.servers import Server

Connection = psycopg.Connection[Any]

LOAD = int(os.environ.get("PULSE_LOAD", "30000"))
KINDS = ["k0", "k1", "k2", "k3", "k4"]

# A claim reads, for each job: its place in two indexes and the heap, its body, the
# kind's settings, and writes a lease. From a queue at rest it takes 34 to 39 buffers
# for one job and 1,432 to 1,627 for 100, with or without kinds.
PER_JOB = 20
PER_CLAIM = 60


def load(connection: Connection, jobs: int) -> None:
    """Jobs in three piles: ready (five kinds, three priorities), not due, finished."""
    connection.execute(
        """
        WITH job AS (
            INSERT INTO pulse_internal.body (kind, payload, max_attempts, owner)
            SELECT 'k' || n % 5, '{"n": 1}', 3,
                (SELECT pulse_internal.role_number('loader'))
            FROM generate_series(1, 3 * %(jobs)s) AS n
            RETURNING job, kind
        ), numbered AS (
            SELECT job, kind, row_number() OVER (ORDER BY job) AS n FROM job
        ), ready AS (
            INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts,
                failures, keyed)
            SELECT 'busy', n %% 3, kind, job, 0, 0, false
            FROM numbered WHERE n <= %(jobs)s ORDER BY job
        ), waiting AS (
            INSERT INTO pulse_internal.waiting
                (lane, run_at, job, kind, rank, attempts, failures, keyed, retrying)
            SELECT 'busy', clock_timestamp() + n * interval '1 minute', job, kind,
                0, 0, 0, false, false
            FROM numbered WHERE n > %(jobs)s AND n <= 2 * %(jobs)s
        )
        INSERT INTO pulse_internal.finished
            (job, lane, kind, rank, state, ended_by, attempts, failures, keyed)
        SELECT job, 'busy', kind, 0, 'completed', 'complete', 1, 0, false
        FROM numbered WHERE n > 2 * %(jobs)s
        """.replace("n % 5", "n %% 5"),
        {"jobs": jobs},
    )


@pytest.fixture(scope="module")
def loaded(server: Server) -> Iterator[Database]:
    database = Database(server, server.create(product="extension"))
    connection = database.connect()
    # While it analyses a table, claims step over the rows that the last ones took.
    for table in ("body", "ready", "waiting", "lease", "finished"):
        connection.execute(
            f"ALTER TABLE pulse_internal.{table}"
            " SET (autovacuum_enabled = off)".encode()
        )
    load(connection, LOAD)
    yield database
    database.close()


def settle(connection: Connection) -> None:
    """Bring the queue to rest: no dead rows, new marks, no lane noted as patchy.

    A claim of an earlier case leaves dead rows, marks and that note behind, and tick()
    skips a step that ran within the last second.
    """
    connection.execute("VACUUM pulse_internal.ready, pulse_internal.lease")
    connection.execute("DELETE FROM pulse_internal.mark")
    connection.execute("DELETE FROM pulse_internal.upkeep_run")
    connection.execute("SELECT pulse.tick()")
    noted = "SELECT count(*), count(patchy_at) FROM pulse_internal.mark"
    assert connection.execute(noted).fetchone() == (1, 0)


CLAIM = "SELECT * FROM pulse.claim_batch('w', 'busy', %s, kinds => %s)"


@pytest.mark.parametrize("batch", [1, 10, 100])
@pytest.mark.parametrize("kinds", [None, ["k3"], ["k1", "k2"], KINDS])
@pytest.mark.proves("G8")
def test_a_claim_touches_buffers_in_proportion_to_its_batch(
    loaded: Database, batch: int, kinds: list[str] | None
) -> None:
    connection = loaded.connect()
    settle(connection)
    buffers = usual(connection, CLAIM, batch, kinds)
    assert buffers <= PER_CLAIM + PER_JOB * batch


def test_a_pile_of_another_kind_ahead_does_not_matter(db: Database) -> None:
    connection = db.connect()
    connection.execute(
        "SELECT pulse.enqueue_many('theirs', array_fill('{}'::jsonb, ARRAY[20000]))"
    )
    connection.execute(
        "SELECT pulse.enqueue_many('ours', array_fill('{}'::jsonb, ARRAY[200]))"
    )
    claim = (
        "SELECT * FROM pulse.claim_batch('w', max_jobs => 10, kinds => ARRAY['ours'])"
    )
    assert usual(connection, claim) <= PER_CLAIM + PER_JOB * 10
    assert connection.execute(claim).rowcount == 10


def test_a_claim_of_large_payloads_does_not_read_the_queue_again(db: Database) -> None:
    """What is not compressed fits by the size it is stored with."""
    connection = db.connect()
    costs = []
    for parts in (1, 20_000):
        connection.execute(
            "SELECT pulse.enqueue('k', to_jsonb(string_agg(md5(n::text), '')))"
            " FROM generate_series(1, 15) AS job"
            " CROSS JOIN generate_series(1, %s::integer) AS n GROUP BY job",
            [parts],
        )
        claim = "SELECT * FROM pulse.claim_batch('w', max_jobs => 3)"
        costs.append(usual(connection, claim))
    assert connection.execute(
        "SELECT count(*) FROM pulse_internal.lease"
    ).fetchone() == (30,)
    assert costs[1] <= costs[0] + 5


def test_an_idle_claim_writes_nothing(loaded: Database) -> None:
    connection = loaded.connect()
    connection.execute("SELECT pulse.tick()")
    connection.execute("SELECT pulse.claim_batch('w', 'nobody')")
    explain = """
        EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON)
        SELECT * FROM pulse.claim_batch('w', 'nobody')
    """
    row = connection.execute(explain).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["WAL Records"] == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 40


def test_a_completion_touches_buffers_in_proportion_to_its_batch(
    loaded: Database,
) -> None:
    connection = loaded.connect()
    claimed = connection.execute(
        "SELECT array_agg(lease) FROM pulse.claim_batch('w', 'busy', 100)"
    ).fetchone()
    assert claimed is not None
    buffers = touched(connection, "SELECT * FROM pulse.complete_batch(%s)", claimed[0])
    assert buffers <= PER_CLAIM + PER_JOB * 100


REPORTS = [
    "complete_batch(%s)",
    "complete_batch(%s, array_fill('1'::jsonb, ARRAY[6]))",
    "fail_batch(%s)",
    "fail_batch(%s, '{a,b}', '{1 s}', '{t}')",
    "release(%s)",
    "heartbeat(%s)",
]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_looks_for_no_lease_in_a_whole_list(db: Database, report: str) -> None:
    """Each of a batch by each of it: 100,000 leases would take a minute."""
    worker = db.connect()
    load(worker, 5)
    leases = worker.execute(
        "SELECT array_agg(lease) FROM pulse.claim_batch('w', 'busy', 5)"
    ).fetchone()
    assert leases is not None
    some = [*leases[0][:3], 10**12, 1, 2]
    assert walked(worker, f"SELECT * FROM pulse.{report}", some) == []


def test_a_retry_looks_for_no_watcher_in_a_whole_list(db: Database) -> None:
    """With 200,000 of them it took more than a minute."""
    operator = db.connect()
    operator.execute(
        """
        SELECT pulse.enqueue_many(
            'k', array_fill('1'::jsonb, ARRAY[5]),
            after => ARRAY[u.job], after_failed => 'run'
        ) FROM pulse.enqueue('up') AS u (job)
        """
    )
    operator.execute(
        "SELECT pulse.fail(c.lease, fatal => true) FROM pulse.claim_batch('w') AS c"
    )
    dead = "SELECT pulse.retry(job) FROM pulse_internal.finished WHERE state = 'dead'"
    assert walked(operator, dead) == []


BULK = [
    ("cancel_where(%s)", '{"state": "ready"}'),
    ("cancel_where(%s)", '{"state": "scheduled"}'),
    ("discard_where(%s)", '{"state": "completed"}'),
]


@pytest.mark.parametrize(("verb", "wanted"), BULK)
def test_a_bulk_verb_looks_for_no_job_in_a_whole_list(
    db: Database, verb: str, wanted: str
) -> None:
    """A session that planned while there was little keeps no scan for 100,000."""
    operator = db.connect()
    load(operator, 20)
    operator.execute("VACUUM ANALYZE")
    call = f"SELECT * FROM pulse.{verb}".replace(")", ", max_jobs => 1)")
    for _ in range(8):
        operator.execute(call.encode(), [wanted])
    # A loop over the three states of an end is none over jobs.
    assert [walk for walk in walked(operator, call, wanted) if "job" in walk] == []


def walked(connection: Connection, statement: str, *parameters: object) -> list[str]:
    """The lists that a statement, and all that it calls, reads whole for each row."""
    plans = explained(connection, statement, *parameters)
    assert len(plans) >= 3
    return [walk for plan in plans for walk in list_walks(plan)]


def list_walks(plan: dict[str, Any]) -> list[str]:
    """What a plan computes of a whole array, or of all rows of a list, for each row."""
    below = plan.get("Plans", [])
    computed = [*plan.get("Output", []), plan.get("Filter", "")]
    walks = [part for part in computed if re.search(r"= ANY \(\$|array_position", part)]
    if plan["Node Type"] == "Nested Loop":
        walks.extend(
            f"a loop over {inner['Alias']}"
            for inner in below
            if inner["Node Type"] == "Function Scan"
            and inner["Parent Relationship"] == "Inner"
        )
    return walks + [walk for child in below for walk in list_walks(child)]


@pytest.mark.parametrize("analyzed", [False, True])
def test_plans_made_on_a_small_queue_are_right_for_a_large_one(
    db: Database, analyzed: bool
) -> None:
    """A session that claimed while there was little to do keeps its plans."""
    worker = db.connect()
    if analyzed:
        load(worker, 10)
        worker.execute("VACUUM ANALYZE")
    for _ in range(10):
        worker.execute(
            "SELECT pulse.claim_batch('w', 'busy', 10, kinds => ARRAY['k1'])"
        )
        worker.execute("SELECT pulse.complete_batch(ARRAY[1, 2]::bigint[])")
        worker.execute("SELECT pulse.heartbeat(ARRAY[1, 2]::bigint[])")
    load(db.connect(), 5000)
    assert usual(worker, CLAIM, 10, ["k1"]) <= PER_CLAIM + PER_JOB * 10
    assert usual(worker, CLAIM, 10, None) <= PER_CLAIM + PER_JOB * 10
    leases = worker.execute(
        "SELECT array_agg(lease) FROM pulse_internal.lease"
    ).fetchone()
    assert leases is not None
    some = leases[0][:10]
    beat = "SELECT * FROM pulse.heartbeat(%s)"
    assert usual(worker, beat, some) <= PER_CLAIM + PER_JOB * 10
    fail = "SELECT * FROM pulse.fail_batch(%s)"
    assert touched(worker, fail, some) <= 600 + PER_JOB * 10
    job = worker.execute("SELECT max(job) FROM pulse_internal.ready").fetchone()
    assert job is not None
    assert usual(worker, "SELECT pulse.cancel(%s)", job[0]) <= PER_CLAIM


def test_a_tick_does_not_read_the_lines_of_all_lanes(db: Database) -> None:
    """Finding the lanes is a jump from one to the next."""
    connection = db.connect()
    for lane in range(20):
        connection.execute(
            "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[500]),"
            " lane => %s)",
            (f"lane {lane}",),
        )
        connection.execute(
            "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[500]),"
            " lane => %s, delay => '1 hour')",
            (f"lane {lane}",),
        )
    marks = usual(connection, "SELECT pulse_internal.tick_marks()")
    lanes = usual(connection, "SELECT count(*) FROM pulse_internal.waiting_lanes()")
    assert marks <= 20 * 60
    assert lanes <= 20 * 10
