"""manage.py migrate installs pulse, upgrades it and takes it out again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulse import install
from tests.django.conftest import Project
from tools import paths, release

VERSION = release.control()


def installed(project: Project) -> install.Installed:
    with project.db.connect() as connection:
        return install.inspect(connection)


@pytest.fixture
def managed(project: Project) -> Iterator[Project]:
    """A server without files of the extension, and a role that is not a superuser."""
    control = project.db.server.extensions / "pulse.control"
    hidden = control.with_suffix(".hidden")
    control.rename(hidden)
    project.user = f"owner_of_{project.db.name}"
    project.db.psql("-c", f"CREATE ROLE {project.user} LOGIN CREATEDB")
    project.db.psql("-c", f"ALTER DATABASE {project.db.name} OWNER TO {project.user}")
    yield project
    hidden.rename(control)
    project.db.psql("-c", f"REASSIGN OWNED BY {project.user} TO postgres")
    project.db.psql("-c", f"DROP OWNED BY {project.user} CASCADE")
    project.db.psql("-c", f"DROP ROLE {project.user}")


def test_migrate_installs_the_extension_and_zero_removes_it(project: Project) -> None:
    out = project.manage("migrate")
    assert "Applying pulse.0001_pulse_1_0... OK" in out
    assert (installed(project).how, installed(project).version) == (
        "extension",
        VERSION,
    )
    project.db.psql("-c", "SELECT pulse.enqueue('x')")
    assert "No migrations to apply" in project.manage("migrate")
    # The shop depends on pulse, so it goes too.
    project.manage("migrate", "pulse", "zero")
    assert installed(project).how is None
    assert project.db.psql("-c", "SELECT to_regnamespace('pulse')").strip() == ""
    project.manage("migrate")
    assert project.db.psql("-c", "SELECT count(*) FROM pulse.jobs").strip() == "0"


def test_a_managed_server_gets_the_plain_script(managed: Project) -> None:
    managed.manage("migrate")
    assert (installed(managed).how, installed(managed).owner) == ("plain", managed.user)
    managed.manage("migrate", "pulse", "zero")
    assert installed(managed).how is None


def test_the_test_database_has_pulse(project: Project) -> None:
    out = project.manage("test", "shop.tests.test_enqueue", "--parallel", "2")
    assert "OK" in out
    assert installed(project).how is None


def test_a_managed_server_runs_tests_too(managed: Project) -> None:
    assert "OK" in managed.manage("test", "shop.tests.test_enqueue")


def test_what_is_installed_already_stays(project: Project) -> None:
    project.db.psql("-c", "CREATE EXTENSION pulse", "-c", "SELECT pulse.enqueue('x')")
    project.manage("migrate")
    assert project.db.psql("-c", "SELECT count(*) FROM pulse.jobs").strip() == "1"


def test_migrate_upgrades_an_older_one(project: Project) -> None:
    project.db.psql("-c", "CREATE EXTENSION pulse")
    project.db.psql(
        "-c", "UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'pulse'"
    )
    step = project.db.server.extensions / f"pulse--0.9--{VERSION}.sql"
    step.write_text("SELECT 1;\n")
    try:
        project.manage("migrate")
    finally:
        step.unlink()
    assert installed(project).version == VERSION


def test_a_schema_of_somebody_else_stops_it_with_a_remedy(project: Project) -> None:
    project.db.psql("-c", "CREATE SCHEMA pulse")
    ran = project.run("migrate", "pulse")
    assert ran.code == 1
    assert (
        "CommandError: the schema pulse or pulse_internal exists, belongs to postgres"
        in ran.out
    )
    assert "DROP SCHEMA pulse, pulse_internal CASCADE" in ran.out
    assert "Traceback" not in ran.out


def test_a_test_database_without_migrations_gets_it_by_hand(project: Project) -> None:
    by_hand = "from pulse.django.testing import install_pulse; install_pulse()"
    for _ in range(2):
        project.manage("shell", "-c", by_hand)
        assert installed(project).how == "extension"


def test_the_data_of_the_project_are_dumped(migrated: Project) -> None:
    for options in ((), ("--all",)):
        assert migrated.manage("dumpdata", *options, "--exclude", "auth").startswith(
            "["
        )


def test_no_migration_is_missing(migrated: Project) -> None:
    assert "No changes detected" in migrated.manage("makemigrations", "--check")


def test_the_newest_migration_installs_the_version_of_the_source() -> None:
    found = sorted((paths.ROOT / "python/pulse/django/migrations").glob("0*.py"))
    assert found[-1].stem == f"{len(found):04}_pulse_{VERSION.replace('.', '_')}"
    assert f'InstallPulse("{VERSION}"' in found[-1].read_text()
