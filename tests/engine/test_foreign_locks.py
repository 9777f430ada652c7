"""A stranger takes the advisory locks of pulse: who it is is said, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection, Database
from tools.servers import Server


@pytest.fixture
def stranger(server: Server) -> Iterator[str]:
    server.psql("postgres", "-c", "CREATE ROLE lock_stranger LOGIN")
    yield "lock_stranger"
    server.psql("postgres", "-c", "DROP ROLE lock_stranger")


@pytest.fixture
def owned(server: Server, new_db: Callable[..., Database]) -> Iterator[Database]:
    """A database whose pulse belongs to an ordinary role."""
    server.psql("postgres", "-c", "CREATE ROLE lock_owner LOGIN")
    database = new_db(product=None)
    database.psql("-c", f"ALTER DATABASE {database.name} OWNER TO lock_owner")
    database.psql("-c", "SET ROLE lock_owner; CREATE EXTENSION pulse")
    yield database
    database.close(drop=True)
    server.psql("postgres", "-c", "DROP ROLE lock_owner")


def one(connection: Connection, query: str, *values: Any) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    return row and row[0]


def key(connection: Connection, table: str) -> int:
    """What the first key of a lock is; the catalog tells it to everybody."""
    found = one(
        connection,
        "SELECT c.oid::integer FROM pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'pulse_internal' AND c.relname = %s",
        table,
    )
    assert isinstance(found, int)
    return found


def health(connection: Connection) -> tuple[str, str, str | None]:
    row = connection.execute(
        "SELECT status, figure, advice FROM pulse.health()"
        " WHERE check_name = 'foreign_locks'"
    ).fetchone()
    assert row is not None
    status, figure, advice = row
    return status, figure, advice


@pytest.mark.parametrize("lock", ["pg_advisory_lock", "pg_advisory_lock_shared"])
@pytest.mark.parametrize(
    "table", ["hold", "lane", "roster", "quota", "mark", "upkeep_run", "signal"]
)
def test_health_names_a_stranger_that_holds_a_lock_of_pulse(
    stranger: str, db: Database, table: str, lock: str
) -> None:
    """A shared one stops those who need it alone: upkeep, lanes with slots, pause."""
    operator = db.connect()
    hostile = db.connect(user=stranger)
    hostile.execute(
        f"SELECT {lock}(%s, hashtext('default'))".encode(), [key(hostile, table)]
    )

    status, figure, advice = health(operator)
    pid = hostile.info.backend_pid
    assert (status, figure) == (
        "fail",
        f"backend {pid} of role {stranger} holds pulse_internal.{table}",
    )
    assert f"pg_terminate_backend({pid})" in str(advice)
    hostile.close()


def test_why_names_a_stranger_that_keeps_claims_out(
    stranger: str, db: Database
) -> None:
    operator = db.connect()
    job = one(operator, "SELECT pulse.enqueue('k')")
    hostile = db.connect(user=stranger)
    hostile.execute("SELECT pg_advisory_lock(%s, 0)", [key(hostile, "hold")])
    assert operator.execute("SELECT pulse.claim_batch('w')").fetchall() == []

    reasons = operator.execute("SELECT reason FROM pulse.why(%s)", [job]).fetchall()
    pid = hostile.info.backend_pid
    assert [r for (r,) in reasons if f"backend {pid} of role {stranger}" in r]

    operator.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert len(operator.execute("SELECT pulse.claim_batch('w')").fetchall()) == 1


def test_why_names_a_stranger_that_shares_the_lock_of_a_lane_with_slots(
    stranger: str, db: Database
) -> None:
    operator = db.connect()
    operator.execute("SELECT pulse.set_lane('narrow', max_slots => 1)")
    job = one(operator, "SELECT pulse.enqueue('k', lane => 'narrow')")
    hostile = db.connect(user=stranger)
    for table in ("roster", "lane"):
        hostile.execute(
            "SELECT pg_advisory_lock_shared(%s, hashtext('narrow'))",
            [key(hostile, table)],
        )
    assert operator.execute("SELECT pulse.claim_batch('w', 'narrow')").fetchall() == []
    reasons = operator.execute("SELECT reason FROM pulse.why(%s)", [job]).fetchall()
    # The shared lock of the lane itself keeps set_lane out, and no claim.
    assert len([r for (r,) in reasons if f"of role {stranger}" in r]) == 1


def test_why_names_a_stranger_that_has_the_lock_of_a_kind_with_a_rate(
    stranger: str, db: Database
) -> None:
    operator = db.connect()
    operator.execute("SELECT pulse.set_kind('mail', rate => 5, rate_per => '1 hour')")
    job = one(operator, "SELECT pulse.enqueue('mail')")
    other = one(operator, "SELECT pulse.enqueue('k')")
    hostile = db.connect(user=stranger)
    hostile.execute(
        "SELECT pg_advisory_lock(%s, hashtext('mail'))", [key(hostile, "quota")]
    )
    claim = "SELECT c.job_id FROM pulse.claim_batch('w', max_jobs => 9) AS c"
    why = "SELECT count(*) FROM pulse.why(%s) WHERE reason LIKE %s"
    assert one(operator, why, job, f"%role {stranger}%") == 1
    assert one(operator, why, other, f"%role {stranger}%") == 0
    assert operator.execute(claim.encode()).fetchall() == [(other,)]
    hostile.close()


@pytest.mark.parametrize(
    "lock", ["pg_advisory_xact_lock", "pg_advisory_xact_lock_shared"]
)
def test_health_and_why_name_a_prepared_transaction(db: Database, lock: str) -> None:
    operator = db.connect()
    operator.execute("SELECT pulse.set_lane('narrow', max_slots => 1)")
    job = one(operator, "SELECT pulse.enqueue('k', lane => 'narrow')")
    holder = db.connect(autocommit=False)
    for table, name in (("roster", "narrow"), ("hold", ""), ("signal", "s")):
        holder.execute(
            f"SELECT {lock}(%s, hashtext(%s))".encode(), [key(holder, table), name]
        )
    holder.execute("PREPARE TRANSACTION 'left behind'")
    figure = health(operator)[1]
    reasons = operator.execute("SELECT reason FROM pulse.why(%s)", [job]).fetchall()
    operator.execute("ROLLBACK PREPARED 'left behind'")
    for table in ("roster", "hold", "signal"):
        assert (
            f"prepared transaction left behind holds pulse_internal.{table}" in figure
        )
    assert [r for (r,) in reasons if "by prepared transaction left behind" in r]


def test_health_names_a_worker_that_shares_a_lock_by_hand(
    stranger: str, db: Database
) -> None:
    operator = db.connect()
    operator.execute(f"SELECT pulse.grant_access('{stranger}', 'worker')".encode())
    worker = db.connect(user=stranger)
    worker.execute("SELECT pg_advisory_lock_shared(%s, 0)", [key(worker, "hold")])
    assert health(operator)[1].endswith("holds pulse_internal.hold")
    worker.close()
    operator.execute(f"SELECT pulse.revoke_access('{stranger}', 'worker')".encode())


def test_why_names_a_stranger_that_keeps_a_signal(stranger: str, db: Database) -> None:
    operator = db.connect()
    job = one(operator, "SELECT pulse.enqueue('k')")
    lease = one(operator, "SELECT lease FROM pulse.claim_batch('w')")
    operator.execute("SELECT pulse.wait_for(%s, 'step', '1 day', 'paid')", [lease])
    number = one(
        operator,
        "SELECT pulse_internal.signal_key('paid', w.owner)"
        " FROM pulse_internal.signal_wait AS w",
    )
    hostile = db.connect(user=stranger)
    hostile.execute("SELECT pg_advisory_lock(%s, %s)", [key(hostile, "signal"), number])
    reasons = operator.execute("SELECT reason FROM pulse.why(%s)", [job]).fetchall()
    hostile.close()
    assert [r for (r,) in reasons if f"of role {stranger}" in r]


def test_calls_of_pulse_are_no_strangers(db: Database) -> None:
    operator = db.connect()
    operator.execute("SELECT pulse.set_lane('narrow', max_slots => 1)")
    operator.execute("SELECT pulse.enqueue('k', lane => 'narrow')")
    operator.execute("SELECT pulse.enqueue('k', lane => 'waits')")
    operator.execute("SELECT pulse.claim_batch('w', 'waits')")
    operator.execute("SELECT pulse.set_kind('mail', rate => 5, rate_per => '1 hour')")
    operator.execute("SELECT pulse.enqueue('mail', lane => 'mail')")
    calls = (
        "SELECT pulse.claim_batch('w', 'mail')",
        "SELECT pulse.set_kind('mail', rate => 6)",
        "SELECT pulse.set_kind('mail', rate => 0)",
        "SELECT pulse.claim_batch('w', 'narrow')",
        "SELECT pulse.claim_batch('w', 'empty')",
        "SELECT pulse.signal('paid')",
        "SELECT pulse.wait_for(lease, 'step', '1 day', 'paid') FROM "
        "pulse_internal.lease",
        "SELECT pulse.tick()",
        "SELECT pulse.set_lane('wide', max_batch => 5)",
        "SELECT pulse.pause('me')",
        "SELECT pulse.set_kind('sms', rate => 5, rate_per => '1 hour')",
    )
    for call in calls:
        other = db.connect(autocommit=False)
        other.execute(call.encode())
        held = one(
            operator,
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s",
            other.info.backend_pid,
        )
        assert held, call
        assert health(operator) == ("ok", "none", None), call
        other.rollback()


def test_a_stranger_cannot_stop_set_kind(stranger: str, db: Database) -> None:
    operator = db.connect()
    hostile = db.connect(user=stranger)
    hostile.execute(
        "SELECT pg_advisory_lock(%s, hashtext('k'))", [key(hostile, "kind")]
    )
    operator.execute("SET lock_timeout = '2s'")
    operator.execute("SELECT pulse.set_kind('k', priority => 1)")


def test_with_the_locks_revoked_a_stranger_is_refused_and_pulse_works(
    stranger: str, owned: Database
) -> None:
    admin = owned.connect()
    # As in docs/security.md.
    admin.execute(
        """
        DO $$
        DECLARE
            v_lock regprocedure;
        BEGIN
            FOR v_lock IN
                SELECT p.oid
                FROM pg_proc AS p
                WHERE p.proname ~ '^pg_(try_)?advisory_(xact_)?lock(_shared)?$'
                    AND p.pronargs = 2
            LOOP
                EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', v_lock);
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO lock_owner', v_lock);
            END LOOP;
        END;
        $$
        """
    )
    hostile = owned.connect(user=stranger)
    for call in ("pg_advisory_lock", "pg_try_advisory_xact_lock_shared"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            hostile.execute(f"SELECT {call}(%s, 0)".encode(), [key(hostile, "hold")])

    admin.execute(f"SELECT pulse.grant_access('{stranger}', 'worker')".encode())
    admin.execute("SELECT pulse.enqueue('k')")
    lease = one(hostile, "SELECT (c).lease FROM pulse.claim_batch('w') AS c")
    hostile.execute("SELECT pulse.complete(%s)", [lease])
    hostile.execute("SELECT pulse.tick()")
    admin.execute("SELECT pulse.pause('me')")
    admin.execute(f"SELECT pulse.revoke_access('{stranger}', 'worker')".encode())


def test_a_stranger_that_listens_learns_the_names_of_lanes_and_no_more(
    stranger: str, db: Database
) -> None:
    hostile = db.connect(user=stranger)
    hostile.execute("LISTEN pulse")
    db.connect().execute("SELECT pulse.arm_bell('mail')")
    db.connect().execute("SELECT pulse.enqueue('k', '{\"a\": 1}', lane => 'mail')")
    heard = [n.payload for n in hostile.notifies(timeout=30, stop_after=1)]
    assert heard == ["mail"]


def test_health_names_a_stranger_that_keeps_producers_out(
    stranger: str, db: Database
) -> None:
    """An enqueue waits for it, as long as its own lock_timeout says."""
    operator = db.connect()
    hostile = db.connect(user=stranger)
    hostile.execute(
        "SELECT pg_advisory_lock(%s, hashtext('default') & 255)",
        [key(hostile, "ready_seq")],
    )
    operator.execute("SET lock_timeout = '10ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        operator.execute("SELECT pulse.enqueue('k')")
    status, figure, _ = health(operator)
    assert status == "fail"
    assert f"backend {hostile.info.backend_pid} of role {stranger}" in figure
    hostile.close()
    # Its backend may end a moment later.
    operator.execute("RESET lock_timeout")
    operator.execute("SELECT pulse.enqueue('k')")
