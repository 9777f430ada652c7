"""fresh == plain == upgraded, and nothing is lost on the way.

While 1.0 is the only version, 0.9 is made from it here: a column, an index, a view and
a function are missing, one function has another body, one an argument less.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from tests.upgrade.facts import difference, facts
from tools import paths, servers
from tools.servers import Server

LEVELS = ("producer", "worker", "viewer", "approver", "operator", "admin")

# 0.9 is 1.0 with these at the end of its script.
AGED = """
ALTER TABLE pulse.node DROP COLUMN set_at;
DROP INDEX pulse.finished_for_retention;
DROP VIEW pulse.dead;
DROP FUNCTION pulse.delete_job;
DROP FUNCTION pulse.snooze(bigint, interval);
CREATE FUNCTION pulse.snooze(lease bigint) RETURNS void
LANGUAGE sql AS 'SELECT NULL::void';
CREATE OR REPLACE FUNCTION pulse.check()
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql AS 'SELECT NULL::text, NULL::bigint, NULL::text';
COMMENT ON FUNCTION pulse.check() IS 'Old.';
"""

# What a person would write into extension/upgrades/0.9--1.0.sql.
BY_HAND = """
ALTER TABLE pulse.node ADD COLUMN set_at timestamptz NOT NULL DEFAULT clock_timestamp();
ALTER TABLE pulse.node ALTER COLUMN set_at DROP DEFAULT;
CREATE INDEX finished_for_retention ON pulse.finished (lane, state, finished_at);
-- An added argument would make an overload, and calls of old workers ambiguous.
DROP FUNCTION pulse.snooze(bigint);
"""


def test_the_plain_script_makes_what_the_extension_makes(
    new_db: Callable[..., Database],
) -> None:
    extension = new_db(product="extension").connect()
    plain = new_db(product="plain").connect()
    assert difference(facts(extension, False), facts(plain, False)) == []


def test_every_release_upgrades_to_what_a_fresh_install_makes(
    new_db: Callable[..., Database],
) -> None:
    """Of released/: none yet while 1.0 is being made, then each of them."""
    fresh = facts(new_db().connect(), True)
    for script in sorted((paths.EXTENSION / "released").glob("pulse--*.sql")):
        version = script.stem.removeprefix("pulse--")
        connection = new_db(product=None).connect()
        connection.execute(f"CREATE EXTENSION pulse VERSION '{version}'")
        connection.execute("ALTER EXTENSION pulse UPDATE")
        assert difference(fresh, facts(connection, True)) == [], version


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with pulse 0.9 and the upgrade from it, built by the Makefile."""
    source = tmp_path_factory.mktemp("upgrade") / "extension"
    shutil.copytree(paths.EXTENSION, source, ignore=shutil.ignore_patterns("build"))
    (source / "upgrades").mkdir(exist_ok=True)
    (source / "upgrades/0.9--1.0.sql").write_text(BY_HAND)
    subprocess.run(["make", "-s", "-C", str(source)], check=True)
    build = source / "build"
    script = (build / "pulse--1.0.sql").read_text()
    (build / "pulse--0.9.sql").write_text(script + AGED)
    with Server(servers.primary(), build=build) as server:
        for level in LEVELS:
            server.psql("postgres", "-c", f"CREATE ROLE a_{level} LOGIN")
        yield server


@pytest.fixture
def old(old_server: Server) -> Iterator[Database]:
    """A database with 0.9, and access given to six roles."""
    database = Database(old_server, old_server.create())
    connection = database.connect()
    connection.execute("CREATE EXTENSION pulse VERSION '0.9'")
    for level in LEVELS:
        connection.execute("SELECT pulse.grant_access(%s, %s)", (f"a_{level}", level))
    yield database
    database.close()


def test_an_upgrade_makes_what_a_fresh_install_makes(
    old: Database, old_server: Server
) -> None:
    fresh = Database(old_server, old_server.create())
    other = fresh.connect()
    other.execute("CREATE EXTENSION pulse")
    for level in LEVELS:
        other.execute("SELECT pulse.grant_access(%s, %s)", (f"a_{level}", level))
    connection = old.connect()
    before = facts(connection, True)
    connection.execute("ALTER EXTENSION pulse UPDATE")
    after = facts(connection, True)
    assert difference(facts(other, True), after) == []
    assert difference(before, after), "0.9 was no different from 1.0"
    fresh.close()


def test_jobs_survive_an_upgrade_and_workers_go_on(old: Database) -> None:
    worker = old.connect()
    row = worker.execute("SELECT pulse.enqueue('mail', '{\"n\": 1}')").fetchone()
    assert row is not None
    worker.execute("SELECT pulse.enqueue('mail', delay => '1 hour')")
    worker.execute("SELECT pulse.enqueue('mail', requires_approval => true)")
    lease = worker.execute(
        "SELECT lease, job_id FROM pulse.claim_batch('me')"
    ).fetchone()
    assert lease is not None
    assert lease[1] == row[0]
    worker.execute("SELECT pulse.enqueue('mail', '{\"n\": 2}')")

    old.connect().execute("ALTER EXTENSION pulse UPDATE")

    # The session of the old worker, with its plans and its lease, goes on.
    worker.execute("SELECT pulse.complete(%s)", (lease[0],))
    again = worker.execute("SELECT payload FROM pulse.claim_batch('me')").fetchall()
    assert again == [({"n": 2},)]
    states = worker.execute(
        "SELECT state, count(*) FROM pulse.jobs GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert states == [
        ("awaiting_approval", 1),
        ("completed", 1),
        ("running", 1),
        ("scheduled", 1),
    ]
    assert worker.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_an_upgrade_gives_up_rather_than_queue_workers_behind_a_lock(
    old: Database,
) -> None:
    with old.connect(autocommit=False) as reader:
        reader.execute("SELECT count(*) FROM pulse.node")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            old.connect().execute("ALTER EXTENSION pulse UPDATE")


def test_the_upgrade_script_refuses_to_be_run_by_psql(
    old: Database, old_server: Server
) -> None:
    script = Path(old_server.extensions) / "pulse--0.9--1.0.sql"
    said = old.psql("-f", str(script), check=False)
    assert 'Use "ALTER EXTENSION pulse UPDATE"' in said
