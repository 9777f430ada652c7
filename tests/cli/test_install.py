"""pulse install: says what it does, does it once, and leaves what is not its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pulse import install
from pulse.sql.idle import IDLE_LIMIT
from tests.cli.conftest import Pulse
from tests.conftest import Connection, Database
from tools import release

VERSION = release.control()
PRETEND = "UPDATE pg_extension SET extversion = %s WHERE extname = 'pulse'"


@pytest.fixture
def empty(new_db: Callable[..., Database]) -> Database:
    return new_db(product=None)


def count_jobs(database: Database) -> str:
    return database.psql("-c", "SELECT count(*) FROM pulse.jobs").strip()


def test_the_extension_where_the_server_has_its_files(
    run_pulse: Pulse, empty: Database
) -> None:
    ran = run_pulse("install", "--dsn", empty.dsn)
    assert ran.code == 0
    assert f"done: install pulse {VERSION} as an extension" in ran.out
    assert "grant_access" in ran.out
    again = run_pulse("install", "--dsn", empty.dsn, "--json").json
    assert again["changed"] is False
    assert again["did"] == f"pulse {VERSION} (extension) is installed; nothing to do"


def test_the_plain_script_without_superuser(
    run_pulse: Pulse, empty: Database, server_role: str
) -> None:
    dsn = empty.server.dsn(empty.name, user=server_role)
    ran = run_pulse("install", "--plain", "--dsn", dsn)
    assert ran.code == 0, ran.err
    assert f"done: install pulse {VERSION} as a plain script" in ran.out
    empty.psql("-c", "SELECT pulse.enqueue('x')")
    ran = run_pulse("install", "--dsn", dsn)
    assert f"pulse {VERSION} (plain script) is installed; nothing to do" in ran.out
    assert count_jobs(empty) == "1"


@pytest.fixture
def server_role(empty: Database) -> Iterator[str]:
    role = f"installer_{empty.name}"
    empty.psql("-c", f"CREATE ROLE {role} LOGIN")
    empty.psql("-c", f"GRANT CREATE ON DATABASE {empty.name} TO {role}")
    yield role
    empty.psql("-c", f"DROP OWNED BY {role} CASCADE", "-c", f"DROP ROLE {role}")


def test_without_create_nothing_happens(run_pulse: Pulse, empty: Database) -> None:
    empty.psql("-c", "CREATE ROLE poor_installer LOGIN")
    dsn = empty.server.dsn(empty.name, user="poor_installer")
    ran = run_pulse("install", "--plain", "--dsn", dsn)
    assert ran.code == 5
    assert "permission denied for database" in ran.err
    # Not grant_access: that comes with pulse.
    grant = f"GRANT CREATE ON DATABASE {empty.name} TO poor_installer"
    assert f"Fix: {grant}   (as the database's owner)" in ran.err
    with empty.connect() as connection:
        assert install.inspect(connection).how is None
    empty.psql("-c", grant)
    assert run_pulse("install", "--plain", "--dsn", dsn).code == 0
    empty.psql("-c", "DROP OWNED BY poor_installer CASCADE")
    empty.psql("-c", "DROP ROLE poor_installer")


def test_a_dry_run_prints_what_psql_would_run(
    run_pulse: Pulse, empty: Database, tmp_path: Path
) -> None:
    ran = run_pulse("install", "--plain", "--dry-run", "--dsn", empty.dsn)
    assert ran.code == 0
    assert f"install pulse {VERSION} as a plain script" in ran.err
    with empty.connect() as connection:
        assert install.inspect(connection).how is None
    (tmp_path / "pulse.sql").write_text(ran.out)
    empty.psql("-f", str(tmp_path / "pulse.sql"))
    assert count_jobs(empty) == "0"
    ran = run_pulse("install", "--dry-run", "--dsn", empty.dsn)
    assert ran.out == "\n"


def test_an_older_extension_is_upgraded(
    run_pulse: Pulse, db: Database, connect: Callable[..., Connection]
) -> None:
    connect().execute(PRETEND, ["0.9"])
    step = db.server.extensions / "pulse--0.9--1.0.sql"
    step.write_text("SELECT 1;\n")
    try:
        ran = run_pulse("install", "--dsn", db.dsn)
    finally:
        step.unlink()
    assert ran.code == 0, ran.err
    assert "done: upgrade pulse 0.9 (extension) to 1.0" in ran.out


def test_an_upgrade_without_a_path_says_so(
    run_pulse: Pulse, db: Database, connect: Callable[..., Connection]
) -> None:
    connect().execute(PRETEND, ["0.8"])
    ran = run_pulse("install", "--dsn", db.dsn)
    assert ran.code == 1
    assert f"the server has no upgrade of pulse 0.8 (extension) to {VERSION}" in ran.err
    assert "make install" in ran.err


def test_a_newer_one_is_left_alone(
    run_pulse: Pulse, db: Database, connect: Callable[..., Connection]
) -> None:
    connect().execute(PRETEND, ["9.0"])
    ran = run_pulse("install", "--dsn", db.dsn)
    assert ran.code == 0
    assert "is newer than this package (1.0)" in ran.out
    assert "pip install --upgrade pgpulse" in ran.out


def test_a_schema_of_another_owner_is_left_alone(
    run_pulse: Pulse, empty: Database
) -> None:
    empty.psql("-c", "CREATE SCHEMA pulse")
    ran = run_pulse("install", "--dsn", empty.dsn)
    assert ran.code == 1
    assert "the schema pulse or pulse_internal exists, belongs to postgres" in ran.err
    assert "DROP SCHEMA pulse, pulse_internal CASCADE" in ran.err


def test_a_script_that_fails_leaves_nothing(empty: Database) -> None:
    broken = install.Plan("broken", ("BEGIN; CREATE SCHEMA pulse;", "SELECT 1 / 0;"))
    with empty.connect() as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            install.apply(connection, broken)
        assert install.inspect(connection).owner is None


def test_the_server_ends_a_script_that_is_left_idle(db: Database) -> None:
    limits: list[object] = []
    todo = install.Plan("two parts", ("BEGIN; SELECT 1", "SELECT 2", "COMMIT"))
    with db.connect() as connection:
        show = "SHOW idle_in_transaction_session_timeout"
        install.run(
            connection,
            todo,
            lambda: limits.extend(connection.execute(show).fetchone() or ()),
        )
    assert limits == [IDLE_LIMIT, IDLE_LIMIT, "0"]


COMMITTING = """
import sys
import psycopg
from pulse import install

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    connection.execute("BEGIN")
    connection.execute(
        "SELECT pg_advisory_xact_lock('pulse_internal.hold'::regclass::oid::integer, 0)"
    )
    install.commit(connection)
    input()
"""
LETS_END = """
SELECT a.pid FROM pg_stat_activity AS a
WHERE a.wait_event = 'PgSleep' AND a.datname = current_database()"""
KEEPS_OUT = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"


def test_a_stopped_upgrade_does_not_keep_claims_out(db: Database) -> None:
    watcher, claim = db.connect(), db.connect(autocommit=False)
    # The upgrade waits a second for this transaction, after its own commit.
    claim.execute("SELECT 1")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMITTING, db.dsn], stdin=subprocess.PIPE
    )
    until = time.monotonic() + 20
    try:
        while (found := watcher.execute(LETS_END).fetchone()) is None:
            assert time.monotonic() < until
        process.send_signal(signal.SIGSTOP)
        while watcher.execute(KEEPS_OUT, found).fetchone() is not None:
            assert time.monotonic() < until, "the stopped process keeps its lock"
    finally:
        process.kill()
        process.communicate()


def test_the_parts_are_the_script(run_pulse: Pulse) -> None:
    script = install.plain_script()
    assert "".join(install.parts(script)) == script
    assert len(list(install.parts(script))) > 20
    assert not re.search(r"^\\", script, re.MULTILINE), "psql's own commands"
