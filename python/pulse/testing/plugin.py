"""A plugin for pytest: pytest_plugins = ["pulse.testing.plugin"] in conftest.py.

pulse_dsn           the test database; override it, or set PULSE_TEST_DSN. Without
                    either an embedded server is started (pgpulse[embedded])
pulse_database      the same, with pulse in it: installed or upgraded once a session
pulse_connection    a connection in a transaction that is rolled back after the test
pulse_work_off      pulse.testing.work_off
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pulse import install
from pulse.testing.work import Done, work_off


@pytest.fixture(scope="session")
def pulse_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the tests of this session have their database."""
    named = os.environ.get("PULSE_TEST_DSN")
    if named:
        yield named
        return
    from pulse.embedded import EmbeddedServer

    with EmbeddedServer(tmp_path_factory.mktemp("pulse")) as server:
        yield server.dsn


@pytest.fixture(scope="session")
def pulse_database(pulse_dsn: str) -> str:
    """The DSN of a database that has the pulse of this package."""
    with psycopg.connect(pulse_dsn, autocommit=True) as connection:
        install.apply(connection, install.plan(install.inspect(connection)))
    return pulse_dsn


@pytest.fixture
def pulse_connection(pulse_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that ends with the test, and with it all that was enqueued."""
    with psycopg.connect(pulse_database) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def pulse_work_off() -> Callable[..., list[Done]]:
    """pulse.testing.work_off as a fixture."""
    return work_off
