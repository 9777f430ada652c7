"""The contents of an embedded server: pulse, its role and its database.

server.py calls it after it has started the server.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pulse import install
from pulse.embedded.binaries import EmbeddedError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

Connection = psycopg.Connection[Any]


def write_share(directory: Path) -> None:
    """A copy of control file and scripts, which the server's user can read."""
    target = directory / "share" / "extension"
    target.mkdir(mode=0o755, parents=True, exist_ok=True)
    for source in install.extension_files():
        making = target / f"{source.name}.making"
        shutil.copyfile(source, making)
        making.chmod(0o644)
        making.rename(target / source.name)
    for path in (directory / "share", target):
        path.chmod(0o755)


def require_version(cluster: Path, major: int) -> None:
    found = (cluster / "PG_VERSION").read_text().strip()
    if found != str(major):
        raise EmbeddedError(
            f"{cluster} was made by PostgreSQL {found}, this is {major}.\n"
            "Move the directory away to start with an empty database, or dump it "
            "with that version."
        )


def prepare(admin: str, owner: str, password: str) -> None:
    """The role pulse, the database it owns, and pulse in it, as new as the package."""
    database = str(conninfo_to_dict(owner)["dbname"])
    with psycopg.connect(admin, autocommit=True) as connection:
        if not exists(connection, "SELECT FROM pg_roles WHERE rolname = %s", "pulse"):
            connection.execute(
                sql.SQL("CREATE ROLE pulse LOGIN CREATEDB PASSWORD {}").format(password)
            )
            connection.execute("GRANT pg_read_all_stats TO pulse")
        if not exists(
            connection, "SELECT FROM pg_database WHERE datname = %s", database
        ):
            made = sql.SQL("CREATE DATABASE {} OWNER pulse")
            connection.execute(made.format(sql.Identifier(database)))
    with psycopg.connect(owner, autocommit=True) as connection:
        state = install.inspect(connection)
        if state.how is None:
            connection.execute("CREATE EXTENSION pulse")
        elif state.is_older:
            install.apply(connection, install.plan(state))


def exists(connection: Connection, query: "LiteralString", name: str) -> bool:
    return connection.execute(query, [name]).fetchone() is not None
