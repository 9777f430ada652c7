"""SQLAlchemy and Django connections are the caller's, like psycopg's."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import pulse
from pulse import errors
from tests.conftest import Database


def url(db: Database) -> sqlalchemy.URL:
    return sqlalchemy.URL.create(
        "postgresql+psycopg",
        username="postgres",
        database=db.name,
        query={"host": str(db.server.socket), "port": db.server.port},
    )


def count(db: Database) -> int:
    return int(db.psql("-c", "SELECT count(*) FROM pulse.jobs"))


@pytest.fixture
def engine(db: Database) -> Any:
    engine = sqlalchemy.create_engine(url(db), poolclass=sqlalchemy.NullPool)
    yield engine
    engine.dispose()


def test_a_sqlalchemy_session_enqueues_in_its_transaction(
    db: Database, engine: sqlalchemy.Engine
) -> None:
    with orm.Session(engine) as session:
        due = datetime.now(timezone.utc) + timedelta(hours=1)
        pulse.enqueue(session, "greet", {"it's": ":x %s"}, run_at=due, tags=["a"])
        assert session.in_transaction()
        assert count(db) == 0
        session.rollback()
        pulse.enqueue(session, "greet", delay=1.5, max_runtime=timedelta(minutes=1))
        session.commit()
    assert count(db) == 1
    made = orm.scoped_session(orm.sessionmaker(engine))
    pulse.enqueue_many(made, "greet", [{}, {}])
    made.commit()
    made.remove()
    assert count(db) == 3


def test_a_sqlalchemy_connection_gets_errors_by_their_code(
    engine: sqlalchemy.Engine,
) -> None:
    with engine.connect() as connection:
        pulse.enqueue(connection, "once", unique_key="k")
        with pytest.raises(errors.UniqueKeyTaken) as taken:
            pulse.enqueue(connection, "once", unique_key="k", on_conflict="error")
        assert taken.value.detail
    with orm.Session(engine) as session, pytest.raises(errors.InvalidArgument):
        pulse.enqueue(session, "")


def test_an_async_sqlalchemy_session_is_awaited(db: Database) -> None:
    async def main() -> None:
        engine = sqlalchemy_asyncio.create_async_engine(
            url(db), poolclass=sqlalchemy.NullPool
        )
        async with sqlalchemy_asyncio.AsyncSession(engine) as session:
            job = await pulse.enqueue(session, "greet", {"name": "Ada"})
            assert job > 0
            await session.rollback()
            await pulse.enqueue_many(session, "greet", [1, 2])
            await session.commit()
        async with engine.begin() as connection:
            await pulse.enqueue(connection, "greet")
        await engine.dispose()

    asyncio.run(main())
    assert count(db) == 3


@pytest.fixture
def django_connection(db: Database) -> Any:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    connections.databases["default"] = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": db.name,
                "USER": "postgres",
                "HOST": str(db.server.socket),
                "PORT": db.server.port,
            }
        }
    )["default"]
    yield connections["default"]
    connections["default"].close()
    del connections["default"]


def test_a_django_connection_enqueues_inside_atomic(
    db: Database, django_connection: Any
) -> None:
    from django.db import connection, transaction

    with transaction.atomic():
        pulse.enqueue(connection, "greet", {"100%": "%s"}, priority=3)
        assert count(db) == 0
        transaction.set_rollback(True)
    assert count(db) == 0
    with transaction.atomic():
        ids = pulse.enqueue_many(django_connection, "greet", [{}, {}])
    assert len(ids) == count(db) == 2
    with pytest.raises(errors.InvalidArgument):
        pulse.enqueue(connection, "")


def test_something_else_is_refused_with_what_would_do() -> None:
    with pytest.raises(TypeError, match="cannot enqueue on a str"):
        pulse.enqueue("postgresql:///app", "greet")
