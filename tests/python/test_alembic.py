"""Migrations of Alembic install pulse, upgrade it and take it out."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config

from pulse import install
from tests.conftest import Database

ENV = """
import asyncio
from alembic import context
from sqlalchemy import create_engine, pool
from sqlalchemy.ext.asyncio import create_async_engine

url = context.config.get_main_option("sqlalchemy.url")

def migrate(connection):
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()

async def migrate_async():
    engine = create_async_engine(url, poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)

if context.is_offline_mode():
    context.configure(url=url, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
elif "asyncpg" in url:
    asyncio.run(migrate_async())
else:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        migrate(connection)
"""

MIGRATION = """
from alembic import op
import sqlalchemy as sa
import pulse.install
from pulse import alembic as pulse_migration

revision, down_revision = "1", None

def upgrade():
    op.create_table("orders", sa.Column("id", sa.Integer))
    {up}
    op.create_table("later", sa.Column("id", sa.Integer))

def downgrade():
    {down}
    op.drop_table("later")
    op.drop_table("orders")
"""
HELPER = ("pulse_migration.upgrade(op)", "pulse_migration.downgrade(op)")
SCRIPT = (
    "op.execute(pulse.install.sql())",
    "op.execute('DROP SCHEMA pulse, pulse_internal CASCADE')",
)


@pytest.fixture
def empty(new_db: Callable[..., Database]) -> Database:
    return new_db(product=None)


def config(
    db: Database, place: Path, steps: tuple[str, str] = HELPER, driver: str = "psycopg"
) -> Config:
    (place / "versions").mkdir()
    (place / "env.py").write_text(ENV)
    up, down = steps
    (place / "versions/one.py").write_text(MIGRATION.format(up=up, down=down))
    url = sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username="postgres",
        database=db.name,
        query={"host": str(db.server.socket), "port": db.server.port},
    )
    made = Config(output_buffer=io.StringIO())
    made.set_main_option("script_location", str(place))
    made.set_main_option("sqlalchemy.url", url.render_as_string().replace("%", "%%"))
    return made


def installed(db: Database) -> str | None:
    with db.connect() as connection:
        return install.inspect(connection).how


@pytest.mark.parametrize(
    ("steps", "driver", "how"),
    [
        (HELPER, "psycopg", "extension"),
        (HELPER, "asyncpg", "extension"),
        (SCRIPT, "psycopg", "plain"),
    ],
    ids=["helper", "asyncpg", "script"],
)
def test_there_and_back(
    empty: Database, tmp_path: Path, steps: tuple[str, str], driver: str, how: str
) -> None:
    migrations = config(empty, tmp_path, steps, driver)
    command.upgrade(migrations, "head")
    assert installed(empty) == how
    # What came after the script has found its schema.
    assert empty.psql("-c", "SELECT to_regclass('public.later')").strip() == "later"
    empty.psql("-c", "SELECT pulse.enqueue('x')")
    command.downgrade(migrations, "base")
    assert installed(empty) is None
    assert empty.psql("-c", "SELECT to_regclass('public.orders')").strip() == ""


def test_what_is_installed_already_stays(empty: Database, tmp_path: Path) -> None:
    empty.psql("-c", "CREATE EXTENSION pulse", "-c", "SELECT pulse.enqueue('x')")
    command.upgrade(config(empty, tmp_path), "head")
    assert empty.psql("-c", "SELECT count(*) FROM pulse.jobs").strip() == "1"


def test_without_a_connection_it_writes_the_script(
    empty: Database, tmp_path: Path
) -> None:
    migrations = config(empty, tmp_path)
    command.upgrade(migrations, "head", sql=True)
    assert migrations.output_buffer is not None
    (tmp_path / "all.sql").write_text(migrations.output_buffer.getvalue())  # type: ignore[attr-defined]
    empty.psql("-f", str(tmp_path / "all.sql"))
    assert installed(empty) == "plain"
    assert empty.psql("-c", "SELECT version_num FROM alembic_version").strip() == "1"


def test_a_migration_that_used_pulse_before_is_told(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.psql("-c", "CREATE EXTENSION pulse")
    monkeypatch.setattr("pulse.alembic.LOCK_TIMEOUT", "10ms")
    monkeypatch.setattr(install, "TRIES", 2)
    monkeypatch.setattr(install, "LONGEST_PAUSE", 0.01)
    used = "op.execute(\"SELECT pulse.enqueue('x')\"); " + HELPER[1]
    with pytest.raises(install.InstallError, match="a lock was not free"):
        command.upgrade(config(empty, tmp_path, (used, "pass")), "head")
    assert installed(empty) == "extension"
