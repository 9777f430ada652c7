"""Enqueue on the caller's connection, and wait for what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row

import pulse
from pulse import errors
from pulse.job import Job
from tests.conftest import Connect, Connection, Database


def one(connection: Connection, query: str, *values: Any) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def complete(connection: Connection, kind: str, result: str = '{"sum": 3}') -> None:
    connection.execute(
        "SELECT pulse.complete(c.lease, %s::jsonb) "
        "FROM pulse.claim_batch('me', kinds => ARRAY[%s]) AS c",
        (result, kind),
    )


def test_enqueue_commits_and_rolls_back_with_the_caller(db: Database) -> None:
    writer = db.connect(autocommit=False)
    reader = db.connect()
    job = pulse.enqueue(writer, "greet", {"name": "Ada"})
    assert writer.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert one(reader, "SELECT count(*) FROM pulse.jobs") == 0
    writer.commit()
    assert one(reader, "SELECT payload->>'name' FROM pulse.jobs") == "Ada"
    pulse.enqueue(writer, "greet")
    writer.rollback()
    assert one(reader, "SELECT array_agg(job_id) FROM pulse.jobs") == [job]


def test_no_time_is_enough_for_a_result_that_is_there(connect: Connect) -> None:
    connection = connect()
    client = pulse.Client(connection)
    job = pulse.enqueue(connection, "greet")
    with pytest.raises(errors.ResultTimeout):
        client.result(job, 0)
    complete(connection, "greet", "1")
    assert client.result(job, 0) == 1


def test_every_option_arrives(connect: Connect) -> None:
    connection = connect()
    due = datetime.now(timezone.utc) + timedelta(hours=2)
    pulse.enqueue(
        connection,
        "report",
        [1, "two"],
        lane="slow",
        priority=-3,
        run_at=due,
        max_attempts=7,
        unique_key="monthly",
        unique_for="1 hour",
        on_conflict="error",
        group_key="acme",
        tags=["a", "b"],
        max_runtime=90,
        headers={"tenant": 7},
        expires_in="1 hour",
    )
    row = connection.execute(
        "SELECT lane, priority, payload, run_at, max_attempts, unique_key, group_key, "
        "tags, max_runtime, state, headers, start_by FROM pulse.jobs"
    ).fetchone()
    assert row == (
        *("slow", -3, [1, "two"], due, 7, "monthly", "acme", ["a", "b"]),
        *(timedelta(seconds=90), "scheduled", {"tenant": 7}, due + timedelta(hours=1)),
    )


def test_headers_and_start_by_arrive_by_the_list_too(connect: Connect) -> None:
    connection = connect()
    late = datetime.now(timezone.utc) + timedelta(hours=1)
    common: Any = {"headers": {"n": 1}, "start_by": late}
    pulse.enqueue_many(connection, "one", [1], **common)
    pulse.enqueue_many(connection, [{"kind": "two"}], **common)
    rows = connection.execute("SELECT headers, start_by FROM pulse.jobs").fetchall()
    assert rows == [({"n": 1}, late)] * 2
    with pytest.raises(errors.InvalidArgument, match="start_by must have a time zone"):
        pulse.enqueue(connection, "k", start_by=datetime.now())


@pytest.mark.parametrize("delay", ["90 minutes", 5400, timedelta(hours=1.5)])
def test_a_delay_is_text_seconds_or_a_timedelta(connect: Connect, delay: Any) -> None:
    connection = connect()
    pulse.enqueue(connection, "later", delay=delay)
    due = one(connection, "SELECT run_at - enqueued_at FROM pulse.jobs")
    assert timedelta(minutes=89) < due < timedelta(minutes=91)


def test_the_row_factory_of_the_connection_does_not_matter(db: Database) -> None:
    connection = db.connect(row_factory=dict_row, cursor_factory=psycopg.RawCursor)
    assert isinstance(pulse.enqueue(connection, "greet"), int)


def test_many_jobs_of_one_kind_keep_their_order(connect: Connect) -> None:
    connection = connect()
    ids = pulse.enqueue_many(
        connection, "n", [{"n": n} for n in range(100)], priority=2
    )
    rows = connection.execute("SELECT job_id, payload FROM pulse.jobs").fetchall()
    assert rows == [(job, {"n": n}) for n, job in enumerate(ids)]


def test_a_mixed_list_has_options_of_its_own(connect: Connect) -> None:
    connection = connect()
    ids = pulse.enqueue_many(
        connection,
        [
            {"kind": "a", "payload": {"n": 1}, "priority": 5},
            {"kind": "b", "delay": timedelta(minutes=5), "lane": "slow"},
        ],
        group_key="both",
    )
    rows = connection.execute(
        "SELECT job_id, kind, priority, lane, state, group_key FROM pulse.jobs"
    ).fetchall()
    assert rows == [
        (ids[0], "a", 5, "default", "ready", "both"),
        (ids[1], "b", 0, "slow", "scheduled", "both"),
    ]


def test_errors_come_by_their_code_with_detail_and_hint(connect: Connect) -> None:
    connection = connect()
    pulse.enqueue(connection, "once", unique_key="k")
    with pytest.raises(errors.UniqueKeyTaken) as taken:
        pulse.enqueue(connection, "once", unique_key="k", on_conflict="error")
    assert taken.value.sqlstate == "PU102"
    assert taken.value.detail
    assert isinstance(taken.value.__cause__, psycopg.Error)
    with pytest.raises(errors.InvalidArgument, match="kind must be a name"):
        pulse.enqueue(connection, "")
    with pytest.raises(errors.TooLarge):
        pulse.enqueue(connection, "big", "x" * 9_000_000)


def test_a_job_that_runs_is_followed_by_one(connect: Connect) -> None:
    connection = connect()
    first = pulse.enqueue(connection, "sync", [1], unique_key="k")
    connection.execute("SELECT pulse.claim_batch('me')")
    second = pulse.enqueue(
        connection, "sync", [2], unique_key="k", on_conflict="follow"
    )
    assert second != first
    rest = [
        {"kind": "sync", "payload": [3], "unique_key": "k", "on_conflict": "follow"},
        {"kind": "sync", "payload": [4], "unique_key": "k", "on_conflict": "follow"},
    ]
    assert pulse.enqueue_many(connection, rest) == [second, second]
    assert one(
        connection, "SELECT payload FROM pulse.jobs WHERE state = 'blocked'"
    ) == [4]


def test_what_is_no_json_is_refused_before_it_is_sent(connect: Connect) -> None:
    for payload in (object(), float("nan"), {"at": b"bytes"}):
        with pytest.raises(errors.InvalidArgument, match="JSON"):
            pulse.enqueue(connect(), "greet", payload)


def test_a_time_without_a_zone_is_refused(connect: Connect) -> None:
    with pytest.raises(errors.InvalidArgument, match="time zone"):
        pulse.enqueue(connect(), "greet", run_at=datetime(2030, 1, 1))


def test_an_unknown_option_is_named(connect: Connect) -> None:
    with pytest.raises(TypeError, match="prioritty"):
        pulse.enqueue(connect(), "greet", prioritty=3)  # type: ignore[call-overload]


def test_a_database_without_pulse_says_how_to_install_it(
    new_db: Callable[..., Database],
) -> None:
    with pytest.raises(errors.NotInstalled, match="CREATE EXTENSION pulse"):
        pulse.enqueue(new_db(product=None).connect(), "greet")


def test_a_server_older_than_the_package_says_how_to_update(
    new_db: Callable[..., Database],
) -> None:
    connection = new_db(product=None).connect()
    connection.execute("CREATE SCHEMA pulse")
    with pytest.raises(errors.VersionTooOld, match="ALTER EXTENSION pulse UPDATE"):
        pulse.enqueue(connection, "greet")


def test_a_role_without_access_says_what_grants_it(db: Database) -> None:
    db.psql("-c", "CREATE ROLE stranger LOGIN")
    try:
        with pytest.raises(errors.PermissionDenied, match="grant_access"):
            pulse.enqueue(db.connect(user="stranger"), "greet")
    finally:
        db.psql("-c", "DROP ROLE stranger")


def test_errors_of_the_callers_own_statements_stay_what_they_are() -> None:
    class Undefined(psycopg.Error):
        sqlstate = "42883"

    assert errors.translate(Undefined("function my_own() does not exist")) is None


# -- async ------------------------------------------------------------------------


def test_an_async_connection_is_awaited_and_left_in_its_transaction(
    db: Database,
) -> None:
    async def main() -> None:
        connection = await psycopg.AsyncConnection.connect(db.dsn)
        async with connection:
            job = await pulse.enqueue(connection, "greet")
            both = await pulse.enqueue_many(connection, "greet", [1, 2])
            assert job < both[0] < both[1]
            with pytest.raises(errors.InvalidArgument):
                await pulse.enqueue(connection, "")
            await connection.rollback()

    asyncio.run(main())
    assert one(db.connect(), "SELECT count(*) FROM pulse.jobs") == 0


# -- clients ----------------------------------------------------------------------


def test_a_client_over_a_dsn_waits_for_a_result(db: Database) -> None:
    with pulse.Client(db.dsn) as client:
        job = client.enqueue("add", {"a": 1})
        with pytest.raises(errors.ResultTimeout, match=r"pulse\.why"):
            client.result(job, timeout=0.05)
        complete(db.connect(), "add")
        assert client.result(job, timeout=5) == {"sum": 3}


def test_a_client_tells_dead_cancelled_and_unknown_jobs_apart(db: Database) -> None:
    connection = db.connect()
    with pulse.Client(db.dsn) as client:
        dead = client.enqueue("die")
        connection.execute(
            "SELECT pulse.fail(c.lease, 'no luck', fatal => true) "
            "FROM pulse.claim_batch('me') AS c"
        )
        with pytest.raises(errors.JobDead, match="no luck"):
            client.result(dead, timeout=5)
        job = client.enqueue("cancel-me")
        assert client.cancel(job, "changed my mind") == "cancelled"
        with pytest.raises(errors.JobCancelled, match="changed my mind"):
            client.result(job, timeout=5)
        with pytest.raises(errors.NoSuchJob):
            client.result(0, timeout=5)


def test_a_client_over_a_dsn_survives_a_lost_connection(db: Database) -> None:
    with pulse.Client(db.dsn) as client:
        client.enqueue("greet")
        db.connect().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with pytest.raises(psycopg.OperationalError):
            client.enqueue("greet")
        assert client.enqueue("greet")


def test_a_client_over_a_connection_never_commits(db: Database) -> None:
    connection = db.connect(autocommit=False)
    client = pulse.Client(connection)
    client.enqueue_many("greet", [{}, {}])
    client.close()
    assert not connection.closed
    connection.rollback()
    assert one(connection, "SELECT count(*) FROM pulse.jobs") == 0


def test_a_client_over_a_pool_borrows_for_each_call(db: Database) -> None:
    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, max_size=1) as pool:
        client = pulse.Client(pool)
        job = client.enqueue("add")
        complete(db.connect(), "add")
        assert client.result(job, timeout=5) == {"sum": 3}


def test_the_async_client_does_the_same(db: Database) -> None:
    async def main() -> None:
        async with pulse.AsyncClient(db.dsn) as client:
            job = await client.enqueue("add")
            waiting = asyncio.create_task(client.result(job, timeout=10))
            await asyncio.to_thread(complete, db.connect(), "add")
            assert await waiting == {"sum": 3}
            ids = await client.enqueue_many("add", [{}, {}])
            assert await client.cancel(ids[0]) == "cancelled"
        pool = psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1, open=False)
        await pool.open()
        assert await pulse.AsyncClient(pool).enqueue("add")
        await pool.close()

    asyncio.run(main())


# -- tasks ------------------------------------------------------------------------


@pulse.task("send-email", priority=4)
def send_email(job: Job, to: str, subject: str = "hi") -> str:
    return f"{to}: {subject}"


def test_a_task_is_enqueued_with_the_arguments_of_its_function(
    connect: Connect,
) -> None:
    connection = connect()
    send_email.enqueue(connection, "a@b.c", subject="ho")
    send_email.using(lane="bulk", priority=-1).enqueue(connection, to="x@y.z")
    rows = connection.execute(
        "SELECT kind, payload, priority, lane FROM pulse.jobs"
    ).fetchall()
    assert rows == [
        ("send-email", {"to": "a@b.c", "subject": "ho"}, 4, "default"),
        ("send-email", {"to": "x@y.z"}, -1, "bulk"),
    ]


def test_a_task_is_enqueued_on_an_async_connection(db: Database) -> None:
    async def main() -> pulse.AsyncHandle[str]:
        async with await psycopg.AsyncConnection.connect(db.dsn) as connection:
            return await send_email.enqueue(connection, "a@b.c")

    handle = asyncio.run(main())
    assert handle.id > 0
    assert handle.new


def test_a_task_is_still_the_function() -> None:
    job = Job(lease=1, id=1, lane="default", kind="send-email", payload={"to": "me"})
    assert send_email(job, "you") == "you: hi"
    assert send_email.run(job) == "me: hi"
    assert vars(send_email)["__name__"] == "send_email"


def test_arguments_that_do_not_fit_are_refused_at_enqueue(connect: Connect) -> None:
    with pytest.raises(TypeError, match="to"):
        send_email.enqueue(connect(), subject="nobody")  # type: ignore[call-overload]
