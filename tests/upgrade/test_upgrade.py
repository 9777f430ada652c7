"""fresh == plain == upgraded, and nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from tests.upgrade.builds import Builds
from tests.upgrade.conftest import Install
from tests.upgrade.facts import difference, facts
from tools import paths
from tools.servers import Server

STEPS = [("1.0", "1.1")]


def upgrade(
    database: Database,
    builds: Builds,
    product: str,
    before: str,
    after: str,
    user: str = "pulse_owner",
) -> None:
    connection = database.connect(user)
    if product == "extension":
        connection.execute(f"ALTER EXTENSION pulse UPDATE TO '{after}'".encode())
    else:
        script = builds.tree(after) / f"build/pulse.{before}--{after}.sql"
        connection.execute(script.read_bytes())


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
        connection.execute(f"CREATE EXTENSION pulse VERSION '{version}'".encode())
        connection.execute("ALTER EXTENSION pulse UPDATE")
        assert difference(fresh, facts(connection, True)) == [], version


@pytest.mark.parametrize("product", ["extension", "plain"])
@pytest.mark.parametrize(("before", "after"), STEPS)
@pytest.mark.parametrize("user", ["pulse_owner", "postgres"])
@pytest.mark.proves("G14")
def test_an_upgrade_makes_what_a_fresh_install_makes(
    install_version: Install,
    builds: Builds,
    product: str,
    before: str,
    after: str,
    user: str,
) -> None:
    """Also when a superuser runs it: everything stays with the owner of pulse."""
    packaged = product == "extension"
    fresh = facts(install_version(after, product).connect(), packaged)
    database = install_version(before, product)
    old = facts(database.connect(), packaged)
    upgrade(database, builds, product, before, after, user)
    new = facts(database.connect(), packaged)
    assert difference(fresh, new) == []
    assert difference(old, new), f"{before} is no different from {after}"


def test_an_upgrade_leaves_the_session_as_it_was(
    install_version: Install, builds: Builds
) -> None:
    connection = install_version("1.0").connect()
    with connection.transaction():
        connection.execute("ALTER EXTENSION pulse UPDATE TO '1.1'")
        assert connection.execute("SELECT current_user").fetchone() == ("postgres",)
    plain = install_version("1.0", "plain").connect()
    plain.execute((builds.tree("1.1") / "build/pulse.1.0--1.1.sql").read_bytes())
    row = plain.execute("SELECT current_user, current_setting('lock_timeout')")
    assert row.fetchone() == ("postgres", "0")


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_an_upgrade_drops_what_only_the_old_version_has(
    install_version: Install, builds: Builds, product: str
) -> None:
    """What the user has put beside it stays, and the upgrade says so."""
    database = install_version("1.0", product)
    connection = database.connect("pulse_owner")
    connection.execute(
        """
        CREATE FUNCTION pulse_internal.mine() RETURNS integer LANGUAGE sql
        AS 'SELECT 1';
        CREATE VIEW pulse_internal.my_view AS SELECT 1 AS one
        """
    )
    warnings: list[str] = []
    connection.add_notice_handler(lambda n: warnings.append(n.message_primary or ""))
    if product == "extension":
        connection.execute("ALTER EXTENSION pulse UPDATE TO '1.1'")
    else:
        script = builds.tree("1.1") / "build/pulse.1.0--1.1.sql"
        connection.execute(script.read_bytes())
    left = connection.execute(
        "SELECT to_regproc('pulse_internal.fail_runs') IS NULL,"
        " to_regproc('pulse_internal.end_failed_runs') IS NOT NULL,"
        " pulse_internal.mine(), (SELECT one FROM pulse_internal.my_view)"
    )
    assert left.fetchone() == (True, True, 1, 1)
    assert warnings == [
        "pulse_internal.mine() is not part of pulse and stays",
        "pulse_internal.my_view is not part of pulse and stays",
    ]


@pytest.mark.parametrize("product", ["extension", "plain"])
@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (
            "FUNCTION pulse_internal.end_failed_runs(integer [], text, integer) "
            "RETURNS text LANGUAGE sql AS 'SELECT NULL'",
            "",
        ),
        (
            "FUNCTION pulse.reap(date) RETURNS text LANGUAGE sql AS 'SELECT NULL'",
            "function pulse.reap(date) is not part of pulse",
        ),
        (
            "TABLE pulse_internal.region (region text)",
            "an object that is not part of pulse has the name of a new one",
        ),
    ],
)
def test_an_object_of_the_user_is_neither_replaced_nor_dropped(
    install_version: Install, builds: Builds, product: str, mine: str, said: str
) -> None:
    database = install_version("1.0", product)
    database.connect("pulse_owner").execute(f"CREATE {mine}".encode())
    if not said:
        upgrade(database, builds, product, "1.0", "1.1")
        return
    with pytest.raises(psycopg.errors.Error) as error:
        upgrade(database, builds, product, "1.0", "1.1")
    assert error.value.diag.message_primary == said
    assert "Nothing was changed." in (error.value.diag.message_detail or "")
    version = database.connect().execute("SELECT version FROM pulse.version()")
    assert version.fetchone() == ("1.0",)


def test_the_manifest_names_every_object(new_db: Callable[..., Database]) -> None:
    """Of a fresh install: what the schemas hold is what the build listed."""
    connection = new_db(product="plain").connect()
    missing = connection.execute(
        """
        WITH listed AS (
            SELECT CASE
                WHEN m.line ~ '^(FUNCTION|PROCEDURE) '
                    THEN 'routine ' || to_regprocedure(n.name)::oid
                WHEN m.line ~ '^(TYPE|DOMAIN) ' THEN 'type ' || to_regtype(n.name)::oid
                ELSE 'relation ' || to_regclass(n.name)::oid
            END AS key
            FROM regexp_split_to_table(pulse_internal.manifest(), E'\n') AS m (line)
            CROSS JOIN LATERAL (
                SELECT substr(m.line, strpos(m.line, ' ') + 1) AS name
            ) AS n
            WHERE m.line ~ '^[A-Z]+ '
        ),
        present AS (
            SELECT 'routine ' || p.oid AS key, p.oid::regprocedure::text AS name
            FROM pg_proc AS p
            WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            UNION ALL
            SELECT 'relation ' || c.oid, c.oid::regclass::text
            FROM pg_class AS c
            WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
                AND c.relkind IN ('r', 'v', 'S')
                AND NOT EXISTS (
                    SELECT FROM pg_depend AS d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                        AND d.deptype = 'i' AND c.relkind = 'S'
                )
            UNION ALL
            SELECT 'type ' || t.oid, t.oid::regtype::text
            FROM pg_type AS t
            LEFT JOIN pg_class AS c ON c.oid = t.typrelid
            WHERE t.typnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
                AND t.typelem = 0 AND (c.oid IS NULL OR c.relkind = 'c')
        )
        SELECT coalesce(p.name, 'listed, and not there: ' || l.key)
        FROM present AS p
        FULL JOIN listed AS l ON l.key = p.key
        WHERE p.key IS NULL OR l.key IS NULL
        """
    ).fetchall()
    assert missing == []


def test_a_view_of_the_user_keeps_code_from_being_dropped(
    install_version: Install, builds: Builds
) -> None:
    """Nothing is dropped with CASCADE; the upgrade says what is in the way."""
    database = install_version("1.0", "plain")
    owner = database.connect()
    owner.execute(
        "CREATE VIEW mine AS SELECT pulse_internal.fail_runs(NULL, NULL, NULL, "
        "NULL, NULL)"
    )
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as error:
        upgrade(database, builds, "plain", "1.0", "1.1")
    assert "view public.mine depends on function" in (
        error.value.diag.message_detail or ""
    )
    version = database.connect().execute("SELECT version FROM pulse.version()")
    assert version.fetchone() == ("1.0",)


@pytest.mark.parametrize("product", ["extension", "plain"])
@pytest.mark.parametrize(("before", "after"), STEPS)
@pytest.mark.proves("G14")
def test_jobs_survive_an_upgrade_and_workers_go_on(
    install_version: Install, builds: Builds, product: str, before: str, after: str
) -> None:
    database = install_version(before, product)
    worker = database.connect("a_admin")
    row = worker.execute("SELECT pulse.enqueue('mail', '{\"n\": 1}')").fetchone()
    assert row is not None
    worker.execute("SELECT pulse.enqueue('mail', delay => '1 hour')")
    worker.execute("SELECT pulse.enqueue('mail', requires_approval => true)")
    worker.execute("SELECT pulse.schedule('hourly', 'mail', cron => '0 * * * *')")
    worker.execute("SELECT pulse.tick()")
    lease = worker.execute(
        "SELECT lease, job_id FROM pulse.claim_batch('me')"
    ).fetchone()
    assert lease is not None
    assert lease[1] == row[0]
    worker.execute("SELECT pulse.enqueue('mail', '{\"n\": 2}')")

    upgrade(database, builds, product, before, after)

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
    assert worker.execute("SELECT name FROM pulse.schedules").fetchall() == [
        ("hourly",)
    ]
    assert (
        worker.execute("SELECT * FROM pulse.tick() WHERE error > ''").fetchall() == []
    )
    assert worker.execute("SELECT * FROM pulse.check()").fetchall() == []


@pytest.mark.parametrize("product", ["extension", "plain"])
@pytest.mark.proves("R25")
def test_an_upgrade_gives_up_rather_than_queue_workers_behind_a_lock(
    install_version: Install, builds: Builds, product: str
) -> None:
    database = install_version("1.0", product)
    with database.connect(autocommit=False) as reader:
        reader.execute("SELECT count(*) FROM pulse.jobs")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            upgrade(database, builds, product, "1.0", "1.1")


def test_a_plain_upgrade_refuses_what_it_is_not_made_for(
    install_version: Install, builds: Builds
) -> None:
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as error:
        upgrade(install_version("1.1", "plain"), builds, "plain", "1.0", "1.1")
    assert error.value.diag.message_primary == "this is not the upgrade of pulse 1.1"
    with pytest.raises(psycopg.errors.WrongObjectType) as other:
        upgrade(install_version("1.0"), builds, "plain", "1.0", "1.1")
    assert other.value.diag.message_hint == "ALTER EXTENSION pulse UPDATE."


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_a_superuser_runs_no_trigger_of_the_owner(
    install_version: Install, builds: Builds, product: str
) -> None:
    """Its code could RESET ROLE, and be the superuser."""
    database = install_version("1.0", product)
    owner = database.connect("pulse_owner")
    owner.execute(
        """
        CREATE SCHEMA mine;
        CREATE FUNCTION mine.grab() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RESET ROLE;
            ALTER ROLE pulse_owner SUPERUSER;
            RETURN new;
        END $$;
        CREATE TRIGGER grab BEFORE INSERT OR UPDATE ON pulse_internal.node
        FOR EACH ROW EXECUTE FUNCTION mine.grab()
        """
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
        upgrade(database, builds, product, "1.0", "1.1", "postgres")
    assert "grab on pulse_internal.node" in (error.value.diag.message_detail or "")
    is_super = "SELECT rolsuper FROM pg_roles WHERE rolname = 'pulse_owner'"
    assert owner.execute(is_super).fetchone() == (False,)
    owner.execute("DROP SCHEMA mine CASCADE")
    upgrade(database, builds, product, "1.0", "1.1", "postgres")


def test_the_upgrade_script_refuses_to_be_run_by_psql(
    install_version: Install, upgrade_server: Server
) -> None:
    script = Path(upgrade_server.extensions) / "pulse--1.0--1.1.sql"
    said = install_version("1.0").psql("-f", str(script), check=False)
    assert 'Use "ALTER EXTENSION pulse UPDATE"' in said


def test_pg_tle_is_given_the_upgrade_of_the_extension(builds: Builds) -> None:
    """Debian does not package pg_tle; ALTER EXTENSION runs the text in other tests."""
    build = builds.tree("1.1") / "build"
    _, extension = (build / "pulse--1.0--1.1.sql").read_text().split("\\quit\n")
    tle = (build / "pulse.tle.1.0--1.1.sql").read_text()
    head, payload, tail = tle.split("$_pulse_tle_$")
    assert payload.strip() == extension.strip()
    assert "pgtle.install_update_path(\n    'pulse',\n    '1.0',\n    '1.1'," in head
    assert tail.strip() == ");"
