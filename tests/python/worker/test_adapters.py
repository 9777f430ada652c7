"""SQLAlchemy and Django connections are the caller's, like psycopg's."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import asyncpg
import psycopg_pool
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
        connection.rollback()
        pulse.enqueue(connection, "once", unique_key="k")
        newest = pulse.enqueue(connection, "once", unique_key="k", on_conflict="cancel")
        assert newest == pulse.enqueue(connection, "once", unique_key="k")
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


def complete(db: Database, result: str) -> None:
    db.psql(
        "-c",
        f"SELECT pulse.complete(c.lease, '{result}') FROM pulse.claim_batch('me') AS c",
    )


RESULTS = ['{"a": [1, null]}', '"text"', '"[1]"', "null", "1.5"]


@pytest.mark.parametrize("result", RESULTS)
def test_a_client_on_a_sqlalchemy_session_cancels_and_waits(
    db: Database, engine: sqlalchemy.Engine, result: str
) -> None:
    with orm.Session(engine) as session:
        client = pulse.Client(session)
        job, other = client.enqueue("greet"), client.enqueue("greet")
        assert client.cancel(other, "not needed: 100%") == "cancelled"
        assert "no live worker" in client.why(job)[0]
        with pytest.raises(errors.NoSuchJob):
            client.why(4711)
        session.rollback()
        job, other = client.enqueue("greet"), client.enqueue("greet")
        assert client.cancel(other, "not needed: 100%") == "cancelled"
        session.commit()
        complete(db, result)
        assert client.result(job, 5) == json.loads(result)
        with pytest.raises(errors.JobCancelled, match="not needed: 100%"):
            client.result(other, 5)
        with pytest.raises(errors.NoSuchJob):
            client.result(4711, 5)
        with pytest.raises(errors.NoSuchJob):
            client.cancel(4711)


def test_an_async_client_on_an_async_session_cancels_and_waits(db: Database) -> None:
    async def main() -> None:
        engine = sqlalchemy_asyncio.create_async_engine(
            url(db), poolclass=sqlalchemy.NullPool
        )
        async with sqlalchemy_asyncio.AsyncSession(engine) as session:
            client = pulse.AsyncClient(session)
            job, other = await client.enqueue("greet"), await client.enqueue("greet")
            assert await client.cancel(other) == "cancelled"
            assert "cancelled" in (await client.why(other))[0]
            await session.commit()
            complete(db, '{"a": 1}')
            assert await client.result(job, 5) == {"a": 1}
            with pytest.raises(TypeError, match=r"an AsyncSession needs .*AsyncClient"):
                pulse.Client(session)
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("result", RESULTS)
def test_a_client_on_a_django_connection_cancels_and_waits(
    db: Database, django_connection: Any, result: str
) -> None:
    client = pulse.Client(django_connection)
    job, other = client.enqueue("greet"), client.enqueue("greet")
    assert client.cancel(other, None) == "cancelled"
    assert client.why(other)
    complete(db, result)
    assert client.result(job, 5) == json.loads(result)
    with pytest.raises(errors.JobCancelled):
        client.result(other, 5)


def test_each_client_says_which_one_a_source_needs(
    db: Database, engine: sqlalchemy.Engine
) -> None:
    with (
        orm.Session(engine) as session,
        pytest.raises(TypeError, match=r"pulse.Client$"),
    ):
        pulse.AsyncClient(session)
    pool = psycopg_pool.AsyncConnectionPool(db.dsn, open=False)
    with pytest.raises(TypeError, match=r"pulse.AsyncClient$"):
        pulse.Client(pool)


def test_a_raw_connection_of_asyncpg_learns_what_to_do(db: Database) -> None:
    async def main() -> None:
        where = {"host": str(db.server.socket), "port": db.server.port}
        pool = asyncpg.create_pool(**where, user="postgres", database=db.name)
        async with pool, pool.acquire() as connection:
            for act in (
                lambda: pulse.enqueue(connection, "greet"),
                lambda: pulse.enqueue_many(connection, "greet", [1]),
                lambda: pulse.enqueue(pool, "greet"),
                lambda: pulse.Client(connection).cancel(1),
                lambda: pulse.AsyncClient(connection),
            ):
                with pytest.raises(TypeError, match="is one of asyncpg") as refused:
                    act()
            # The first advice can be taken as it is.
            advice = re.search(r"await (.*\)\)), or", str(refused.value))
            assert advice is not None
            names = {"connection": connection, "kind": "greet", "payload": {"a": 1}}
            await eval(advice[1], {"json": json, **names})

    asyncio.run(main())
    assert count(db) == 1


def test_asyncpg_below_sqlalchemy_works(db: Database) -> None:
    async def main() -> None:
        engine = sqlalchemy_asyncio.create_async_engine(
            url(db).set(drivername="postgresql+asyncpg"), poolclass=sqlalchemy.NullPool
        )
        async with sqlalchemy_asyncio.AsyncSession(engine) as session:
            client = pulse.AsyncClient(session)
            job = await client.enqueue("greet", {"a": 1}, delay=0)
            other = await client.enqueue("greet")
            assert await client.cancel(other, "enough") == "cancelled"
            await session.commit()
            complete(db, '"text"')
            assert await client.result(job, 5) == "text"
            with pytest.raises(errors.NoSuchJob):
                await client.cancel(4711)
        await engine.dispose()

    asyncio.run(main())


def test_something_else_is_refused_with_what_would_do() -> None:
    with pytest.raises(TypeError, match="cannot enqueue on a str"):
        pulse.enqueue("postgresql:///app", "greet")
