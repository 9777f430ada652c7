"""One runner for everything: pgTAP files, isolation specs and Python tests.

Servers start when the first test asks for them and end with the run, also when it is
killed (tools/guard.py). A database is made afresh for each test from a template.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import isolation, summary, tap
from tools import majors, paths, requirements, servers
from tools.servers import Server

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]


class Pool:
    """The servers of this run, by major version."""

    def __init__(self) -> None:
        self.running: dict[int, Server] = {}

    def __call__(self, major: int) -> Server:
        if major not in self.running:
            install = servers.installs().get(major)
            if install is None:
                pytest.skip(f"PostgreSQL {major} is not here: run `make setup`")
            settings = cron_settings() if install.has("pg_cron") else {}
            server = self.running[major] = Server(install, settings)
            if settings:
                server.create("cron")
        return self.running[major]

    def close(self) -> None:
        for server in self.running.values():
            server.close()


def cron_settings() -> dict[str, str]:
    """pg_cron lives in one database of a cluster; here it is called cron."""
    return {"shared_preload_libraries": "pg_cron", "cron.database_name": "cron"}


pool = Pool()
paths.keep_bytecode()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--summary", action="store_true", help="end with a summary")
    parser.addoption("--times", help="write seconds of CPU and of the clock by file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left to `make test-slow`")
    config.pluginmanager.register(summary.Summary(pool.running.values))


def pytest_sessionstart() -> None:
    """Build once; the workers of a parallel run find it done."""
    try:
        missing = requirements.missing()
        majors.beside()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if missing:
        raise pytest.UsageError(
            f"{requirements.SWITCH} asks for {', '.join(missing)}: not here. "
            "`make setup` says what it could not get."
        )
    subprocess.run(["make", "-s", "-C", str(paths.EXTENSION)], check=True)


def pytest_sessionfinish() -> None:
    pool.close()


# Seconds of the files that take long. A parallel run begins with them: whoever got one
# last would be waited for.
LONG = {
    "tests/chaos/test_chaos.py": 75,
    "tests/cli/test_demo.py": 90,
    "tests/chaos/test_checker.py": 80,
    "tests/project/test_example_projects.py": 100,
    "tests/engine/test_watchdog.py": 60,
    "tests/project/test_bench.py": 60,
    "tests/engine/test_groups_stress.py": 40,
    "tests/model/test_models.py": 40,
    "tests/web/test_openapi.py": 40,
    "tests/python/test_wheel.py": 45,
    "tests/engine/test_state_machine.py": 60,
    "tests/engine/test_verbs_and_lanes.py": 60,
    "tests/engine/test_old_snapshot.py": 30,
    "tests/isolation/specs/pause-times-out.spec": 30,
    "tests/sql/enqueue/enqueue.sql": 30,
    "tests/engine/test_flows_stress.py": 25,
    "tests/engine/test_fuzz.py": 25,
    "tests/engine/test_marks_stress.py": 25,
    "tests/engine/test_node.py": 25,
    "tests/django/test_worker.py": 25,
    "tests/engine/test_pinned_plans.py": 20,
    "tests/django/test_tasks.py": 20,
    "tests/engine/test_failover.py": 20,
    "tests/chaos/test_soak.py": 20,
    "tests/web/test_scale.py": 20,
    "tests/engine/test_identity.py": 15,
    "tests/project/test_add_a_verb.py": 15,
}
SHORT = 0.3

# What `make test-slow` runs and `make test` leaves out, by the beginning of its name.
# Chaos, races and upgrades stay in `make test`: here is what makes a venv, measures,
# breaks the engine on purpose to test the checker, or runs for the load alone.
SLOW = (
    "tests/chaos/test_checker.py::test_the_checker_notices_of_flows_without",
    "tests/chaos/test_checker.py::test_the_checker_notices_without",
    "tests/chaos/test_soak.py",
    "tests/cli/test_demo.py::test_make_demo_from_a_fresh_clone",
    "tests/model/test_models.py::test_protocol_holds_in_larger_bounds",
    "tests/project/test_bench.py",
    "tests/project/test_example_projects.py",
    "tests/python/test_wheel.py",
    "tests/python/worker/test_statement.py::test_the_oldest_and_the_newest_psycopg",
    "tests/upgrade/test_live.py::test_nothing_is_lost_and_nobody_sees_an_error",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
    if not hasattr(config, "workerinput"):
        return
    files = [item.nodeid.partition("::")[0] for item in items]
    tests = Counter(files)
    takes = {file: LONG.get(file, SHORT * tests[file]) for file in tests}
    items.sort(key=lambda item: -takes[item.nodeid.partition("::")[0]])


def pytest_report_header() -> list[str]:
    known = servers.installs()
    return [
        "servers: " + (", ".join(str(known[m]) for m in sorted(known)) or "none"),
    ]


def is_pgtap(path: Path) -> bool:
    """Every SQL file below tests/sql, except the helpers that run before each."""
    folder = paths.ROOT / "tests/sql"
    return path.suffix == ".sql" and folder in path.parents and path != tap.HELPERS


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    if is_pgtap(file_path):
        return tap.File.from_parent(parent, path=file_path, pool=pool)
    if file_path.suffix == ".spec":
        return isolation.File.from_parent(parent, path=file_path, pool=pool)
    return None


@pytest.fixture(scope="session")
def server() -> Server:
    """The distribution's PostgreSQL, with pg_cron where there is one."""
    return pool(servers.primary().major)


@pytest.fixture(scope="session")
def server16() -> Server:
    return pool(16)


@pytest.fixture(scope="session")
def server18() -> Server:
    return pool(18)


@pytest.fixture
def new_server() -> Iterator[Callable[..., Server]]:
    """Start servers of one's own: new_server(major=18, wal_level="logical")."""
    started: list[Server] = []

    def start(major: int | None = None, **settings: str) -> Server:
        install = servers.installs()[major] if major else servers.primary()
        started.append(Server(install, settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


class Database:
    """A fresh database with pulse, and connections that end with the test."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self._open: list[Connection] = []

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(
        self, user: str = "postgres", autocommit: bool = True, **options: Any
    ) -> Connection:
        dsn = self.server.dsn(self.name, user)
        connection = psycopg.connect(dsn, autocommit=autocommit, **options)
        self._open.append(connection)
        return connection

    def psql(self, *arguments: str, check: bool = True) -> str:
        return self.server.psql(self.name, *arguments, check=check)

    def close(self, drop: bool = True) -> None:
        for connection in self._open:
            connection.close()
        if drop:
            self.server.drop(self.name)


@pytest.fixture
def new_db(server: Server) -> Iterator[Callable[..., Database]]:
    """Make databases: new_db(), new_db(product="plain"), new_db(on=server18)."""
    made: list[Database] = []

    def make(product: str | None = "extension", on: Server = server) -> Database:
        made.append(Database(on, on.create(product=product)))
        return made[-1]

    yield make
    for database in made:
        database.close()


@pytest.fixture
def db(new_db: Callable[..., Database]) -> Database:
    """A fresh database with the extension; db.connect(), db.dsn, db.psql()."""
    return new_db()


@pytest.fixture
def connect(db: Database) -> Connect:
    """Open autocommit connections to db; they are closed after the test."""
    return db.connect
