"""pulse in migrations of Alembic:

    from pulse import alembic as pulse_migration

    def upgrade() -> None:
        pulse_migration.upgrade(op)

    def downgrade() -> None:
        pulse_migration.downgrade(op)

Both do what `pulse install` does, on a connection and in transactions of their own:
an upgrade is tried again when a lock is not free. Repeated, they find all done. With
`alembic upgrade --sql` the plain script is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from pulse import install
from pulse.install import Installed, Plan

# An earlier migration of the same transaction may have used pulse.
LOCK_TIMEOUT = "10s"


def upgrade(op: Any, method: install.Method = "auto") -> None:
    """Install pulse, or bring it to the version of this package.

    Args:
        op: The operations of Alembic.
        method: auto, extension or plain: how to install it where there is none.

    Raises:
        InstallError: It cannot be installed; the message has the reason and the fix.
    """
    if op.get_context().as_sql:
        op.get_context().impl.static_output(install.sql())
        return
    _apply(op, lambda state: install.plan(state, method))


def downgrade(op: Any) -> None:
    """Remove pulse, and every job with it.

    Args:
        op: The operations of Alembic.
    """
    if op.get_context().as_sql:
        op.get_context().impl.static_output(
            "DROP SCHEMA pulse, pulse_internal CASCADE;"
        )
        return
    _apply(op, install.removal)


def _apply(op: Any, decide: Callable[[Installed], Plan]) -> None:
    with psycopg.connect(_conninfo(op.get_bind()), autocommit=True) as connection:
        connection.execute(
            "SELECT set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT]
        )
        install.apply(connection, decide(install.inspect(connection)))


def _conninfo(bind: Any) -> str:
    """Where a connection of SQLAlchemy leads, whatever its driver."""
    driver = bind.connection.driver_connection
    if isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection)):
        return make_conninfo(driver.info.dsn, password=driver.info.password or None)
    url = bind.engine.url
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    given = {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.database,
        **{name: value for name, value in url.query.items() if name in known},
    }
    return make_conninfo(**{name: value for name, value in given.items() if value})
