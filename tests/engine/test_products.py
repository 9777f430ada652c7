"""The three products: who can install them, what they refuse, what they contain."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from tools import paths, plpgsql, release
from tools.servers import Server

SCRIPT = paths.BUILD / f"pulse--{release.control()}.sql"
PLAIN = paths.BUILD / "pulse.sql"
TLE = paths.BUILD / "pulse.tle.sql"


def parts(script: Path) -> list[str]:
    return re.findall(r"^-- part: (\w+/\w+|finish)$", script.read_text(), re.MULTILINE)


def test_every_product_has_every_part_once() -> None:
    sql = paths.EXTENSION / "sql"
    source = [str(p.relative_to(sql).with_suffix("")) for p in sql.rglob("*.sql")]
    assert parts(SCRIPT) == parts(PLAIN) == parts(TLE)
    # The build writes the manifest.
    assert sorted(parts(SCRIPT)) == sorted([*source, "build/manifest"])
    assert parts(SCRIPT)[0] == "schema/schema"
    assert parts(SCRIPT)[-1] == "finish"


@pytest.mark.parametrize(
    "unlisted", ["schema/later.sql", "later/later.sql", "later.sql"]
)
def test_the_build_stops_at_a_file_in_no_list(unlisted: str, tmp_path: Path) -> None:
    tree = tmp_path / "extension"
    shutil.copytree(paths.EXTENSION, tree, ignore=shutil.ignore_patterns("build"))
    added = tree / "sql" / unlisted
    added.parent.mkdir(exist_ok=True)
    added.write_text("SELECT 1;\n")
    done = subprocess.run(
        ["make", "-s", "-C", str(tree)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"sql/{unlisted}" in done.stderr


def test_the_extension_script_refuses_to_be_run_by_psql(db: Database) -> None:
    said = db.psql("-f", str(SCRIPT), check=False)
    assert 'Use "CREATE EXTENSION pulse" to load this file.' in said
    assert "ERROR" not in said


SCHEMAS = pytest.mark.parametrize("schema", ["pulse", "pulse_internal"])


@SCHEMAS
def test_the_plain_script_refuses_a_schema_that_exists(
    schema: str, new_db: Callable[..., Database]
) -> None:
    database = new_db(product=None)
    database.connect().execute(f"CREATE SCHEMA {schema}".encode())
    with pytest.raises(psycopg.errors.DuplicateSchema) as error:
        database.connect().execute(PLAIN.read_text().encode())
    assert (
        error.value.diag.message_primary
        == f"schema {schema} already exists in this database"
    )
    assert error.value.diag.message_hint


@SCHEMAS
def test_the_extension_refuses_a_schema_that_exists(
    schema: str, new_db: Callable[..., Database]
) -> None:
    connection = new_db(product=None).connect()
    connection.execute(f"CREATE SCHEMA {schema}".encode())
    with pytest.raises(psycopg.errors.DuplicateSchema):
        connection.execute("CREATE EXTENSION pulse")


def test_drop_extension_leaves_nothing_behind(db: Database) -> None:
    connection = db.connect()
    connection.execute("DROP EXTENSION pulse")
    row = connection.execute(
        "SELECT to_regnamespace('pulse'), to_regnamespace('pulse_internal')"
    ).fetchone()
    assert row == (None, None)


@pytest.fixture
def ordinary(server: Server) -> Iterator[str]:
    """A role that may create in a database and is nothing more."""
    server.psql("postgres", "-c", "CREATE ROLE ordinary LOGIN")
    yield "ordinary"
    server.psql("postgres", "-c", "DROP ROLE ordinary")


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_an_ordinary_role_with_create_on_the_database_can_install(
    product: str, server: Server, ordinary: str
) -> None:
    name = server.create()
    try:
        server.psql(name, "-c", f"GRANT CREATE ON DATABASE {name} TO {ordinary}")
        with psycopg.connect(server.dsn(name, ordinary), autocommit=True) as connection:
            connection.execute(
                b"CREATE EXTENSION pulse"
                if product == "extension"
                else PLAIN.read_bytes()
            )
            connection.execute("SELECT pulse.enqueue('hello')")
            claimed = connection.execute("SELECT kind FROM pulse.claim_batch('me')")
            assert claimed.fetchall() == [("hello",)]
    finally:
        server.drop(name)


def test_the_pg_tle_script_registers_the_extension_script(
    new_db: Callable[..., Database],
) -> None:
    """pg_tle is not packaged for Debian: a stand-in takes what it would be given."""
    connection = new_db(product=None).connect()
    connection.execute(
        """
        CREATE SCHEMA pgtle;
        CREATE TABLE pgtle.taken (name text, version text, description text, ext text);
        CREATE FUNCTION pgtle.install_extension(
            name text, version text, description text, ext text,
            requires text [] DEFAULT NULL
        )
        RETURNS boolean LANGUAGE sql
        AS 'INSERT INTO pgtle.taken VALUES ($1, $2, $3, $4) RETURNING true'
        """
    )
    connection.execute(TLE.read_bytes())
    row = connection.execute("SELECT name, version, ext FROM pgtle.taken").fetchone()
    assert row is not None
    script = SCRIPT.read_text().split("\\quit\n")[1]
    assert (row[0], row[1]) == ("pulse", release.control())
    assert row[2].strip() == script.strip()


def test_steps_that_do_not_lead_to_the_version_are_refused(tmp_path: Path) -> None:
    tree = tmp_path / "extension"
    shutil.copytree(paths.EXTENSION, tree, ignore=shutil.ignore_patterns("build"))
    (tree / "upgrades/0.7--0.8.sql").touch()
    done = subprocess.run(
        ["make", "-s", "-C", str(tree)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "upgrades/ ends with 0.7--0.8, which does not lead to 1.0" in done.stderr


def test_the_versions_agree() -> None:
    control = (paths.EXTENSION / "pulse.control").read_text()
    found = re.search(r"^default_version = '(.+)'$", control, re.MULTILINE)
    assert found is not None
    meta = json.loads((paths.ROOT / "META.json").read_text())
    assert meta["version"] == meta["provides"]["pulse"]["version"] == f"{found[1]}.0"


def test_pgspot_finds_nothing_in_the_extension_script(tmp_path: Path) -> None:
    """Nobody can make an installation or a function run his own code."""
    script = tmp_path / SCRIPT.name
    script.write_text(plpgsql.readable(SCRIPT.read_text()))
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "pgspot"),
            # A procedure that COMMITs cannot have a SET clause.
            "--proc-without-search-path=pulse_internal.watchdog_loop(every integer)",
            "--proc-without-search-path=pulse_internal.watchdog_tick()",
            str(script),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "Errors: 0 Warnings: 0 Unknown: 0", done.stdout


CODE = re.compile(r"\bPU\d\d\d\b")


def codes(*files: Path) -> set[str]:
    return {code for file in files for code in CODE.findall(file.read_text())}


def test_every_error_code_is_documented_and_every_documented_one_exists() -> None:
    raised = codes(*(paths.EXTENSION / "sql").rglob("*.sql"))
    assert codes(paths.ROOT / "docs/errors.md") == raised


def test_every_error_code_is_asserted_by_some_test() -> None:
    raised = codes(*(paths.EXTENSION / "sql").rglob("*.sql"))
    tests = paths.ROOT / "tests"
    asserted = codes(
        *tests.glob("sql/**/*.sql"),
        *tests.glob("isolation/expected/*.out"),
        *tests.glob("isolation/specs/*.spec"),
        *tests.glob("engine/*.py"),
    )
    # A bug in pulse cannot be provoked.
    assert {c for c in raised - asserted if not c.startswith("PU9")} == set()
