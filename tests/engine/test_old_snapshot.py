"""While an old snapshot is held, nothing on the path of a job steps over the dead.

Vacuum can remove no row that the snapshot may still see, so after 50,000 jobs every
table of the path is full of dead ones. A claim and a completion must touch about as
many buffers as at the start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
import pytest

from tests.conftest import Database
from tests.engine.buffers import touched

Connection = psycopg.Connection[Any]

JOBS = 50_000
BATCH = 100

# One cycle: a batch goes in, is claimed, perhaps beaten or failed and claimed again,
# and completed; each step in a transaction of its own, as from a client.
CYCLES = """
DO $do$
DECLARE
    v_leases bigint [];
BEGIN
    FOR i IN 1..{cycles} LOOP
        PERFORM count(*) FROM pulse.enqueue_many(
            'k1', array_fill('{{}}'::jsonb, ARRAY[100]), lane => 'pinned',
            group_key => {group_key}
        );
        COMMIT;
        v_leases := array(SELECT lease FROM {claim});
        COMMIT;
        {between}
        PERFORM count(*) FROM pulse.complete_batch(v_leases);
        COMMIT;
    END LOOP;
END
$do$
"""
HEARTBEAT = """
        PERFORM count(*) FROM pulse.heartbeat(v_leases);
        COMMIT;
        PERFORM count(*) FROM pulse.heartbeat(v_leases);
        COMMIT;
"""
RETRY = """
        PERFORM count(*) FROM pulse.fail_batch(
            v_leases, retry_in => array_fill(interval '0', ARRAY[100])
        );
        COMMIT;
        v_leases := array(SELECT lease FROM {claim});
        COMMIT;
"""
CLAIM = "pulse.claim_batch('w', 'pinned', 100)"
NEXT_AT = "SELECT pulse.next_at('pinned')"
CLAIM_KIND = "pulse.claim_batch('w', 'pinned', 100, kinds => ARRAY['k1', 'k2'])"


class Case(NamedTuple):
    claim: str = CLAIM
    between: str = ""
    setup: str = "SELECT 1"
    # Times the buffers of a claim before. One that read the dead of its level once
    # would need 1.2 times.
    bound: float = 1.15
    group_key: str = "NULL"


CASES = {
    "a lane without limit": Case(),
    "a lane with max_slots, one of them taken by a long job": Case(
        setup="""
            SELECT pulse.set_lane('pinned', max_slots => 101);
            SELECT pulse.enqueue('k1', lane => 'pinned');
            SELECT pulse.claim_batch('long', 'pinned', lease_for => '1 day');
        """,
        bound=1.3,
    ),
    "a group with slots, in a lane of groups": Case(
        setup="""
            SELECT pulse.set_lane('pinned', group_slots => 101);
            SELECT pulse.enqueue('k1', lane => 'pinned', group_key => 'g');
            SELECT pulse.claim_batch('long', 'pinned', lease_for => '1 day');
        """,
        bound=1.3,
        group_key="'g'",
    ),
    "a priority above every known one": Case(
        setup="""
            SELECT pulse.enqueue('orphan', lane => 'pinned', priority => -1);
            SELECT pulse.tick()
        """
    ),
    "a lane whose jobs heartbeat": Case(between=HEARTBEAT),
    "a lane full of retries": Case(between=RETRY.format(claim=CLAIM), bound=2),
    "a claim that names kinds": Case(claim=CLAIM_KIND),
    "a lane and a kind with a rate": Case(
        claim=CLAIM_KIND,
        setup="""
            SELECT pulse.set_lane('pinned', rate => 1000000, rate_per => '1 day');
            SELECT pulse.set_kind('k1', rate => 1000000, rate_per => '1 day')
        """,
        bound=1.3,
    ),
    "a claim that names kinds behind a job nobody takes": Case(
        claim=CLAIM_KIND,
        setup="SELECT pulse.enqueue('orphan', lane => 'pinned')",
        bound=2,
    ),
}


def measured(worker: Connection, case: Case) -> tuple[int, int]:
    """The buffers of one claim and of one completion, the median of five each."""
    claims, completions = [], []
    for _ in range(5):
        worker.execute(
            b"SELECT pulse.enqueue_many('k1', array_fill('{}'::jsonb, ARRAY[100]),"
            b" lane => 'pinned', group_key => " + case.group_key.encode() + b")"
        )
        claims.append(touched(worker, f"SELECT * FROM {case.claim}"))
        leases = worker.execute(
            "SELECT array_agg(lease) FROM pulse_internal.lease WHERE worker = 'w'"
        ).fetchone()
        assert leases is not None
        assert len(leases[0]) == BATCH
        completions.append(
            touched(worker, "SELECT * FROM pulse.complete_batch(%s)", leases[0])
        )
    return sorted(claims)[2], sorted(completions)[2]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.proves("G8", "R10")
def test_buffers_stay_the_same_under_an_old_snapshot(db: Database, case: Case) -> None:
    worker = db.connect()
    for statement in case.setup.split(";"):
        if statement.strip():
            worker.execute(statement.encode())
    told = {"claim": case.claim, "between": case.between, "group_key": case.group_key}
    worker.execute(CYCLES.format(cycles=2, **told).encode())
    claim_before, completion_before = measured(worker, case)
    next_before = touched(worker, NEXT_AT)

    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")
    # Between two cycles nothing is in line: the statistics of an empty table, as the
    # first autoanalyze finds it, must not change how a claim reads it.
    half = CYCLES.format(cycles=JOBS // BATCH // 2, **told)
    worker.execute(half.encode())
    worker.execute("ANALYZE")
    worker.execute(half.encode())
    claim_after, completion_after = measured(worker, case)
    next_after = touched(worker, NEXT_AT)
    newcomer = measured(db.connect(), case)
    pin.rollback()

    print(
        f"claim {claim_before} -> {claim_after},"
        f" completion {completion_before} -> {completion_after}, newcomer {newcomer},"
        f" next_at {next_before} -> {next_after}"
    )
    assert max(claim_after, newcomer[0]) <= case.bound * claim_before
    assert max(completion_after, newcomer[1]) <= 1.15 * completion_before
    # Of retries, both step over what became due in the last second (rule 5).
    assert next_after - next_before <= max(30, claim_after - claim_before)


def entries_read(session: Connection, index: str, claim: str) -> int:
    """By a claim of one job: what the session has read before may still be counted."""
    looks = "SELECT pg_stat_get_xact_tuples_returned(%s::regclass)"
    with session.transaction():
        before = session.execute(looks, [f"pulse_internal.{index}"]).fetchone()
        assert session.execute(claim.encode()).rowcount == 1
        after = session.execute(looks, [f"pulse_internal.{index}"]).fetchone()
    assert before is not None
    assert after is not None
    return int(after[0] - before[0])


COME_AND_GO = """
DO $do$
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM count(*) FROM pulse.enqueue_many(
            'k1', array_fill('{}'::jsonb, ARRAY[2]), lane => 'pinned', group_key => 'g'
        );
        COMMIT;
        FOR n IN 1..2 LOOP
            PERFORM count(*) FROM pulse.claim_batch('w', 'pinned', 1);
            COMMIT;
        END LOOP;
    END LOOP;
END
$do$
"""


def test_a_group_that_comes_and_goes_leaves_few_dead_versions(db: Database) -> None:
    worker = db.connect()
    worker.execute("SELECT pulse.set_lane('pinned', fair => true)")
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")
    worker.execute(COME_AND_GO)
    worker.execute("SELECT pulse.enqueue('k1', lane => 'pinned', group_key => 'g')")
    read = entries_read(
        worker,
        "group_state_is_versioned",
        "SELECT * FROM pulse.claim_batch('w', 'pinned')",
    )
    pin.rollback()
    # Its row is kept once in sixteen times on average, and from then on.
    assert read <= 100


def test_idle_claims_of_an_emptied_lane_write_nothing(db: Database) -> None:
    worker = db.connect()
    worker.execute("SELECT pulse.set_lane('pinned', max_batch => 1000)")
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")
    worker.execute(
        "SELECT pulse.enqueue_many('k1', array_fill('{}'::jsonb, ARRAY[1000]),"
        " lane => 'pinned')"
    )
    claimed = worker.execute("SELECT * FROM pulse.claim_batch('w', 'pinned', 1000)")
    assert claimed.rowcount == 1000
    # The first ones move the mark, not more often than every 20 ms.
    for _ in range(10):
        worker.execute(
            "UPDATE pulse_internal.mark SET marked_at = marked_at - interval '1 s'"
        )
        with worker.transaction():
            worker.execute("SELECT * FROM pulse.claim_batch('w', 'pinned')")
            written = worker.execute("SELECT pg_current_xact_id_if_assigned()")
    pin.rollback()
    assert written.fetchone() == (None,)


ONE_BY_ONE = """
DO $do$
BEGIN
    FOR i IN 1..3000 LOOP
        PERFORM pulse.enqueue('k1', lane => 'pinned');
        COMMIT;
        PERFORM pulse.claim_batch('w', 'pinned', kinds => '{k1,k2}');
        COMMIT;
    END LOOP;
END
$do$
"""


def test_single_claims_that_name_kinds_step_over_few_dead(db: Database) -> None:
    worker = db.connect()
    worker.execute("SELECT pulse.enqueue('orphan', lane => 'pinned')")
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")
    worker.execute(ONE_BY_ONE)
    worker.execute("SELECT pulse.enqueue('k1', lane => 'pinned')")
    read = entries_read(
        worker,
        "ready_for_claim_by_kind",
        "SELECT * FROM pulse.claim_batch('w', 'pinned', kinds => '{k1,k2}')",
    )
    pin.rollback()
    assert read <= 1500
