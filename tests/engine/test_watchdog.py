"""The watchdog with the real pg_cron: it ticks, it stops, it outlives pulse quietly."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection, Database, cron_settings
from tools import servers
from tools.servers import Server

ENTRIES = "SELECT jobname::text, schedule, username FROM cron.job ORDER BY jobname"
NEWEST_TICK = "SELECT max(taken_at) FROM pulse_internal.upkeep_run WHERE step = 'due'"
NOTHING = "pg_cron has no entries of pulse"
DONE = "SELECT bool_and(end_time IS NOT NULL) FROM cron.job_run_details"
FAILED = """
    SELECT string_agg(return_message, ' ')
    FROM cron.job_run_details
    WHERE status <> 'succeeded'
"""
LOOPS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE query LIKE '%.watchdog\\_loop%' AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="module")
def cron_server() -> Iterator[Server]:
    """A server of its own: what others do to theirs may end pg_cron's launcher."""
    if not servers.primary().has("pg_cron"):
        pytest.skip("pg_cron is not here: `make setup` gets it where apt works")
    with Server(servers.primary(), cron_settings()) as server:
        server.create("cron")
        server.psql("cron", "-c", "CREATE EXTENSION pg_cron")
        yield server


@pytest.fixture
def cron_db(cron_server: Server) -> Iterator[Database]:
    """The one database of the cluster that pg_cron serves, with pulse for a test.

    Neither it nor pg_cron is ever dropped: the launcher might not find the next one.
    """
    database = Database(cron_server, "cron")
    database.psql("-c", "CREATE EXTENSION pulse")
    yield database
    database.psql(
        *("-c", "DROP EXTENSION IF EXISTS pulse CASCADE", "-c", "DELETE FROM cron.job"),
        *("-c", "DELETE FROM cron.job_run_details"),
    )
    database.close(drop=False)


def one(connection: Connection, statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    return row[0] if row else None


def until(seconds: float, condition: Callable[[], Any]) -> Any:
    """Wait for what another process does; fail when it does not."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.1)
    return answer


def refusal(connection: Connection) -> str:
    """What the administrator must run, from the hint of the error."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT pulse.start_watchdog()")
    assert caught.value.sqlstate == "PU010"
    return str(caught.value.diag.message_hint).split("the administrator runs: ")[1]


def test_starting_twice_is_starting_once(cron_db: Database) -> None:
    operator = cron_db.connect()
    for _ in range(2):
        assert one(operator, "SELECT pulse.start_watchdog()").startswith(
            "pg_cron ticks every 10 seconds as postgres"
        )
    names = [name for name, _, _ in operator.execute(ENTRIES).fetchall()]
    assert names == ["pulse watchdog", "pulse watchdog log"]
    audited = (
        "SELECT count(*) FROM pulse_internal.audit_entry WHERE verb = 'start_watchdog'"
    )
    assert one(operator, audited) == 1
    present, active, _ = operator.execute(
        "SELECT * FROM pulse_internal.watchdog()"
    ).fetchone()  # type: ignore[misc]
    assert (present, active) == (True, True)


def test_stopping_removes_the_entries_and_what_was_logged_of_them(
    cron_db: Database,
) -> None:
    operator = cron_db.connect()
    operator.execute("SELECT pulse.start_watchdog()")
    operator.execute(
        """
        INSERT INTO cron.job_run_details (jobid, status)
        SELECT jobid, 'succeeded' FROM cron.job
        """
    )
    operator.execute("SELECT cron.schedule('another entry', '0 0 1 1 *', 'SELECT 1')")
    operator.execute(
        "INSERT INTO cron.job_run_details (jobid, status) VALUES (0, 'failed')"
    )
    assert one(operator, "SELECT pulse.stop_watchdog()") == "pg_cron entries removed: 2"
    assert one(operator, "SELECT pulse.stop_watchdog()") == NOTHING
    assert [name for name, _, _ in operator.execute(ENTRIES)] == ["another entry"]
    assert one(operator, "SELECT count(*) FROM cron.job_run_details") == 1
    audited = (
        "SELECT count(*) FROM pulse_internal.audit_entry WHERE verb = 'stop_watchdog'"
    )
    assert one(operator, audited) == 1


def test_pg_cron_ticks_and_dropping_pulse_breaks_nothing(cron_db: Database) -> None:
    operator = cron_db.connect()
    # pg_cron may overlook an entry that is made while it reads the others (it takes the
    # change in the middle for read): made again, it is found.
    for _ in range(3):
        operator.execute("SELECT pulse.start_watchdog('1 second')")
        with contextlib.suppress(AssertionError):
            first = until(70, lambda: one(operator, NEWEST_TICK))
            break
        operator.execute("SELECT pulse.stop_watchdog()")
    else:
        pytest.fail(cron_db.server.tail(60))
    until(10, lambda: one(operator, NEWEST_TICK) > first)
    until(10, lambda: one(operator, LOOPS))

    # The loop is under way when pulse goes.
    commands = [row[0] for row in operator.execute("SELECT command FROM cron.job")]
    operator.execute("DROP EXTENSION pulse CASCADE")
    until(10, lambda: one(operator, LOOPS) == 0)
    until(10, lambda: one(operator, DONE))
    assert one(operator, FAILED) is None

    # And what pg_cron goes on to run does nothing, without an error.
    assert len(commands) == 2
    for command in commands:
        operator.execute(command)


def test_health_says_when_pg_cron_does_not_run_its_entry(cron_db: Database) -> None:
    """It overlooks one that is made while it reads the others, or is not there."""
    operator = cron_db.connect()
    health = "SELECT status || ': ' || figure FROM pulse.health() AS h"
    health += " WHERE check_name = 'watchdog'"
    # What start_watchdog makes, but never due.
    operator.execute("SELECT cron.schedule('pulse watchdog', '0 0 1 1 *', 'SELECT 1')")
    operator.execute("SELECT pulse_internal.note_watchdog()")
    assert one(operator, health) == "ok: pg_cron runs it: 0 0 1 1 *"
    operator.execute(
        "UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '6 "
        "minutes'"
        " WHERE step = 'watchdog'"
    )
    assert one(operator, health) == "warn: pg_cron has not run it for 6 min"
    operator.execute("SELECT pulse.start_watchdog()")
    assert one(operator, health).startswith("ok: ")


def test_the_loop_ends_when_the_watchdog_is_stopped(cron_db: Database) -> None:
    operator = cron_db.connect()
    operator.execute("SELECT pulse.start_watchdog('5 seconds')")
    runner = cron_db.connect()
    loop = threading.Thread(
        target=runner.execute, args=["CALL pulse_internal.watchdog_loop(5)"]
    )
    loop.start()
    until(10, lambda: one(operator, NEWEST_TICK))
    operator.execute("SELECT pulse.stop_watchdog()")
    loop.join(5)
    assert not loop.is_alive()


def test_a_failing_entry_is_not_called_active(cron_db: Database) -> None:
    operator = cron_db.connect()
    operator.execute("SELECT pulse.start_watchdog()")
    operator.execute(
        """
        INSERT INTO cron.job_run_details (jobid, username, status, return_message)
        SELECT jobid, username, 'failed', 'connection failed' FROM cron.job
        """
    )
    assert operator.execute("SELECT * FROM pulse_internal.watchdog()").fetchone() == (
        True,
        False,
        "the last run failed: connection failed",
    )
    operator.execute("UPDATE cron.job SET active = false")
    assert operator.execute("SELECT * FROM pulse_internal.watchdog()").fetchone() == (
        True,
        False,
        "the entry in pg_cron is switched off",
    )


def test_another_database_learns_what_its_administrator_runs(
    cron_db: Database, new_db: Callable[..., Database]
) -> None:
    db = new_db(on=cron_db.server)
    place, statement = refusal(db.connect()).split(": ", 1)
    assert place == f"in {cron_db.name}"
    administrator = cron_db.connect()
    administrator.execute(statement.encode())
    command, database = administrator.execute(
        "SELECT command, database FROM cron.job"
    ).fetchone()  # type: ignore[misc]
    assert database == db.name
    assert "CALL pulse_internal.watchdog_loop(10)" in command
    administrator.execute("DELETE FROM cron.job")


@pytest.fixture
def owner(cron_db: Database) -> Iterator[str]:
    """pulse of the cron database belongs to a role that is no superuser."""
    administrator = cron_db.connect()
    administrator.execute("DROP EXTENSION pulse CASCADE")
    administrator.execute("CREATE ROLE watchdog_owner LOGIN")
    administrator.execute(f"GRANT CREATE ON DATABASE {cron_db.name} TO watchdog_owner")
    cron_db.connect(user="watchdog_owner").execute("CREATE EXTENSION pulse")
    yield "watchdog_owner"
    administrator.execute("DELETE FROM cron.job")
    administrator.execute("DROP OWNED BY watchdog_owner CASCADE")
    administrator.execute("DROP ROLE watchdog_owner")


def test_an_owner_without_rights_learns_which(cron_db: Database, owner: str) -> None:
    administrator = cron_db.connect()
    operator = cron_db.connect(user=owner)
    assert one(operator, "SELECT pulse.stop_watchdog()") == NOTHING

    statement = refusal(operator)
    assert statement == f"GRANT USAGE ON SCHEMA cron TO {owner};"
    administrator.execute(statement.encode())

    administrator.execute(f"ALTER ROLE {owner} NOLOGIN")
    statement = refusal(operator)
    assert statement == f"ALTER ROLE {owner} LOGIN;"
    administrator.execute(statement.encode())

    schedule = "cron.schedule(text, text, text)"
    administrator.execute(f"REVOKE ALL ON FUNCTION {schedule} FROM PUBLIC")
    statement = refusal(operator)
    assert statement.startswith("SELECT cron.schedule_in_database('pulse watchdog', ")
    administrator.execute(f"GRANT EXECUTE ON FUNCTION {schedule} TO PUBLIC")

    operator.execute("SELECT pulse.start_watchdog()")
    assert [user for _, _, user in administrator.execute(ENTRIES)] == [owner, owner]
    assert one(operator, "SELECT pulse.stop_watchdog()") == "pg_cron entries removed: 2"
