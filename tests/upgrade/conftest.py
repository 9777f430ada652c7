"""A server that has pulse 1.0 and 1.1, and databases with one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import run_pulse
from tests.conftest import Database
from tests.upgrade import builds as making
from tests.upgrade.builds import Builds
from tools import servers
from tools.servers import Server

__all__ = ["run_pulse"]

LEVELS = ("producer", "worker", "viewer", "approver", "operator", "admin")
Install = Callable[..., Database]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return making.make(tmp_path_factory.mktemp("upgrade"))


@pytest.fixture(scope="session")
def upgrade_server(builds: Builds) -> Iterator[Server]:
    with Server(servers.primary()) as server:
        for name, text in builds.extension_scripts().items():
            (server.extensions / name).write_text(text)
        for level in LEVELS:
            server.psql("postgres", "-c", f"CREATE ROLE a_{level} LOGIN")
        server.psql("postgres", "-c", "CREATE ROLE pulse_owner LOGIN")
        yield server


@pytest.fixture
def install_version(upgrade_server: Server, builds: Builds) -> Iterator[Install]:
    """A database with a version, owned by pulse_owner, with access for six roles."""
    made: list[Database] = []

    def install(version: str, product: str = "extension") -> Database:
        database = Database(upgrade_server, upgrade_server.create())
        made.append(database)
        admin = database.connect()
        admin.execute(
            f"GRANT CREATE ON DATABASE {database.name} TO pulse_owner".encode()
        )
        owner = database.connect("pulse_owner")
        if product == "extension":
            owner.execute(f"CREATE EXTENSION pulse VERSION '{version}'".encode())
        else:
            owner.execute(builds.plain(version).encode())
        for level in LEVELS:
            owner.execute("SELECT pulse.grant_access(%s, %s)", (f"a_{level}", level))
        return database

    yield install
    for database in made:
        database.close()
