"""pulse install, health and the rest when package and database are not the same age."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulse import install
from tests.cli.conftest import Pulse
from tests.conftest import Database
from tests.upgrade.builds import Builds
from tests.upgrade.conftest import Install

Carry = Callable[..., None]


@pytest.fixture
def carry(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> Carry:
    """carry("1.1"): from here on the package is the one that carries 1.1."""

    def choose(version: str = "", tree: Path | None = None) -> None:
        monkeypatch.setattr(install, "source", lambda: tree or builds.tree(version))

    return choose


@pytest.fixture
def rebuild(builds: Builds, tmp_path: Path) -> Callable[[str, str], Path]:
    """1.0 again, with something more in one of its parts."""

    def build(part: str, more: str) -> Path:
        tree = tmp_path / "extension"
        shutil.copytree(builds.tree("1.0"), tree)
        with (tree / "sql" / part).open("a") as file:
            file.write(more)
        subprocess.run(["make", "-s", "-C", str(tree)], check=True)
        return tree

    return build


def owner(database: Database) -> str:
    return database.server.dsn(database.name, "pulse_owner")


def version_of(database: Database) -> tuple[str, str]:
    row = database.connect().execute("SELECT version, product FROM pulse.version()")
    return row.fetchone() or ("", "")


@pytest.mark.parametrize("product", ["extension", "plain"])
@pytest.mark.parametrize(("before", "after"), [("1.0", "1.1")])
def test_an_older_install_is_upgraded(
    run_pulse: Pulse,
    install_version: Install,
    carry: Carry,
    product: str,
    before: str,
    after: str,
) -> None:
    database = install_version(before, product)
    carry(after)
    health = run_pulse("health", "--dsn", owner(database), "--json")
    assert f"pulse {before}" in health.err
    found = {row["check_name"]: row for row in health.json}["package"]
    assert found["status"] == "warn"
    assert f"package {after}" in found["figure"]
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 0, ran.err
    assert f"done: upgrade pulse {before}" in ran.out
    assert version_of(database) == (after, product)
    again = run_pulse("install", "--dsn", owner(database), "--json").json
    assert again["changed"] is False
    health = run_pulse("health", "--dsn", owner(database), "--json")
    checks = {row["check_name"]: row for row in health.json}
    assert checks["package"]["status"] == "ok"
    assert checks["version"]["figure"].startswith(f"{after} ({product}), build ")


def test_a_dry_run_prints_an_upgrade_that_psql_runs(
    run_pulse: Pulse, install_version: Install, carry: Carry, tmp_path: Path
) -> None:
    database = install_version("1.0", "plain")
    carry("1.1")
    ran = run_pulse("install", "--dry-run", "--dsn", owner(database))
    assert "upgrade pulse 1.0 (plain script) to 1.1" in ran.err
    assert version_of(database) == ("1.0", "plain")
    script = tmp_path / "upgrade.sql"
    script.write_text(ran.out)
    assert database.psql("-f", str(script)).strip() == ""
    assert version_of(database) == ("1.1", "plain")


def test_a_path_that_nobody_knows_is_refused_with_the_remedy(
    run_pulse: Pulse,
    install_version: Install,
    carry: Carry,
    builds: Builds,
    tmp_path: Path,
) -> None:
    database = install_version("1.0", "plain")
    tree = shutil.copytree(builds.tree("1.1"), tmp_path / "extension")
    (tree / "build/pulse.1.0--1.1.sql").unlink()
    carry(tree=tree)
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 1
    assert "this package has no upgrade of pulse 1.0 (plain script) to 1.1" in ran.err
    assert "docs/upgrading.md" in ran.err


def test_a_newer_database_is_left_alone_and_serves_the_older_package(
    run_pulse: Pulse, install_version: Install, carry: Carry
) -> None:
    database = install_version("1.1", "plain")
    carry("1.0")
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 0
    assert "pulse 1.1 (plain script) is newer than this package (1.0)" in ran.out
    ran = run_pulse("enqueue", "mail", "--dsn", owner(database))
    assert ran.code == 0
    assert "older" not in ran.out + ran.err
    ran = run_pulse("jobs", "--dsn", owner(database))
    assert "mail" in ran.out


def test_other_code_of_the_same_version_is_put_in(
    run_pulse: Pulse,
    install_version: Install,
    carry: Carry,
    rebuild: Callable[[str, str], Path],
) -> None:
    database = install_version("1.0", "plain")
    carry(
        tree=rebuild(
            "common/bell.sql", "COMMENT ON FUNCTION pulse.tick() IS 'Other.';\n"
        )
    )
    health = run_pulse("health", "--dsn", owner(database), "--json")
    found = {row["check_name"]: row for row in health.json}["package"]
    assert found["status"] == "warn"
    assert "The same version from other code" in found["advice"]
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 0, ran.err
    assert "done: replace the code of pulse 1.0 (plain script)" in ran.out
    ran = run_pulse("install", "--dsn", owner(database))
    assert "pulse 1.0 (plain script) is installed; nothing to do" in ran.out


def test_what_users_put_into_the_schema_stays(
    run_pulse: Pulse, install_version: Install, carry: Carry
) -> None:
    database = install_version("1.0", "plain")
    connection = database.connect("pulse_owner")
    connection.execute(
        """
        CREATE FUNCTION pulse.my_report() RETURNS integer LANGUAGE sql AS 'SELECT 1';
        COMMENT ON FUNCTION pulse.my_report() IS 'Mine.';
        CREATE VIEW pulse.my_view AS SELECT 1 AS one;
        """
    )
    carry("1.1")
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 0, ran.err
    row = connection.execute(
        "SELECT pulse.my_report(), one,"
        " obj_description('pulse.my_report()'::regprocedure) FROM pulse.my_view"
    )
    assert row.fetchone() == (1, 1, "Mine.")


def test_a_strangers_schema_is_read_and_never_run(
    run_pulse: Pulse, new_db: Callable[..., Database]
) -> None:
    database = new_db(product=None)
    connection = database.connect()
    connection.execute(
        """
        CREATE TABLE run AS SELECT 0 AS times;
        CREATE SCHEMA pulse;
        CREATE FUNCTION pulse.version(OUT version text, OUT build text)
        LANGUAGE plpgsql AS
        $$ BEGIN UPDATE run SET times = times + 1; END $$
        """
    )
    run_pulse("install", "--dry-run", "--dsn", database.dsn)
    run_pulse("install", "--dsn", database.dsn)
    row = connection.execute("SELECT times FROM run").fetchone()
    assert row == (0,)


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_other_tables_of_the_same_version_are_refused(
    run_pulse: Pulse,
    install_version: Install,
    carry: Carry,
    rebuild: Callable[[str, str], Path],
    product: str,
) -> None:
    database = install_version("1.0", product)
    carry(tree=rebuild("schema/records.sql", "CREATE TABLE pulse.more (n integer);\n"))
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 1
    assert "has the version of this package and other tables" in ran.err


def test_other_code_of_an_extension_needs_another_version(
    run_pulse: Pulse,
    install_version: Install,
    carry: Carry,
    rebuild: Callable[[str, str], Path],
) -> None:
    database = install_version("1.0")
    carry(tree=rebuild("common/bell.sql", "-- more\n"))
    ran = run_pulse("install", "--dsn", owner(database))
    assert ran.code == 1
    assert "ALTER EXTENSION pulse UPDATE needs another version" in ran.err


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_of_two_upgrades_at_once_the_later_one_finds_it_done(
    install_version: Install, carry: Carry, product: str
) -> None:
    database = install_version("1.0", product)
    carry("1.1")
    errors: list[BaseException] = []
    meet = threading.Barrier(3)

    def upgrade() -> None:
        with database.connect("pulse_owner") as connection:
            todo = install.plan(install.inspect(connection))
            meet.wait(10)
            try:
                install.apply(connection, todo)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert version_of(database) == ("1.1", product)


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_settings_of_the_session_do_not_stop_an_upgrade(
    install_version: Install, carry: Carry, product: str
) -> None:
    database = install_version("1.0", product)
    carry("1.1")
    with database.connect("pulse_owner") as connection:
        todo = install.plan(install.inspect(connection))
        connection.execute("SET default_transaction_isolation = 'repeatable read'")
        connection.execute("SET statement_timeout = '50ms'")
        install.apply(connection, todo)
    assert version_of(database) == ("1.1", product)


def test_a_role_that_may_not_ask_learns_whose_pulse_it_is(
    run_pulse: Pulse, install_version: Install, carry: Carry
) -> None:
    database = install_version("1.0", "plain")
    database.psql("-c", "CREATE ROLE stranger LOGIN")
    carry("1.1")
    ran = run_pulse("install", "--dsn", database.server.dsn(database.name, "stranger"))
    database.psql("-c", "DROP ROLE stranger")
    assert ran.code == 1
    assert "belongs to pulse_owner" in ran.err
