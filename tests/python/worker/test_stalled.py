"""A worker that stalls keeps no transaction open, and so no lock of maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from pulse import Job, Worker
from pulse.sql import worker as sql
from pulse.sql.idle import IDLE_LIMIT, UNREAD_LIMIT
from pulse.worker.connection import Connector
from tests.conftest import Connection
from tests.python.worker.conftest import PATIENCE, Queue, Start
from tools.servers import Server

GATE = 7_350_001
"""An advisory lock. The test holds it to keep a tick inside the server."""

GATED_TICK = f"""
ALTER FUNCTION pulse.tick() RENAME TO real_tick;
CREATE FUNCTION pulse.tick()
RETURNS TABLE (step text, did bigint, error text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = 0
AS 'BEGIN
    RETURN QUERY SELECT t.step, t.did, t.error FROM pulse.real_tick() AS t;
    PERFORM pg_advisory_xact_lock({GATE});
END'
"""

AT_THE_GATE = f"""
SELECT l.pid FROM pg_locks AS l INNER JOIN pg_database AS d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.objid = {GATE} AND NOT l.granted
    AND d.datname = current_database()"""

STATE = "SELECT state FROM pg_stat_activity WHERE pid = %s"

LISTENERS = """
SELECT pid FROM pg_stat_activity
WHERE application_name LIKE 'pulse listener %%' AND datname = current_database()"""

WORKER = """
import sys
from pulse import Job, Worker

worker = Worker(sys.argv[1])

@worker.handle("x")
def x(job: Job) -> None: ...

worker.run()
"""


class Gate:
    """Keeps the next tick of a worker in the server, after all of its steps."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        queue.connection.execute(GATED_TICK.encode())
        self.holder: Connection = queue.db.connect()
        self.holder.execute("SELECT pg_advisory_lock(%s)", (GATE,))

    def wait_for_tick(self) -> int:
        """Wait until a tick has all its locks; return the pid of its session."""
        found = self.queue.connection
        self.queue.until(lambda: found.execute(AT_THE_GATE).fetchone(), "a tick")
        return int(self.queue.one(AT_THE_GATE))

    def open(self) -> None:
        self.holder.execute("SELECT pg_advisory_unlock(%s)", (GATE,))

    def require_commit(self, pid: int) -> None:
        """The tick of this session ends without its client, and others can tick."""
        self.queue.until(lambda: self.queue.one(STATE, pid) != "active", "the tick")
        assert self.queue.one(STATE, pid) == "idle"
        tick = "SELECT count(*) FROM pulse.real_tick() AS t WHERE t.step = 'promote'"
        self.queue.until(lambda: self.queue.one(tick) == 1, "a tick elsewhere", 5)


@pytest.fixture
def gate(queue: Queue) -> Iterator[Gate]:
    gate = Gate(queue)
    yield gate
    gate.open()


@pytest.mark.parametrize("way", ["directly", "through a pooler"])
def test_a_stopped_process_keeps_no_lock_of_its_tick(
    queue: Queue, gate: Gate, request: pytest.FixtureRequest, way: str
) -> None:
    dsn = queue.db.dsn if way == "directly" else str(request.getfixturevalue("bouncer"))
    process = subprocess.Popen([sys.executable, "-c", WORKER, dsn])
    try:
        pid = gate.wait_for_tick()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        gate.open()
        gate.require_commit(pid)
    finally:
        process.kill()
        process.wait()


def test_a_blocked_event_loop_keeps_no_lock_of_its_tick(
    queue: Queue, gate: Gate, start: Start
) -> None:
    worker = Worker(queue.db.dsn)
    began, end = threading.Event(), threading.Event()

    @worker.handle("block")
    async def block(job: Job) -> None:
        began.set()
        until = time.monotonic() + PATIENCE
        while not end.is_set() and time.monotonic() < until:
            time.sleep(0.01)

    start(worker)
    pid = gate.wait_for_tick()
    job = queue.enqueue("block")
    assert began.wait(PATIENCE)
    gate.open()
    try:
        gate.require_commit(pid)
    finally:
        end.set()
    queue.until_state(job, "completed")


def test_a_failed_tick_leaves_the_session_usable(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse.worker.wakeup.TICK_SELDOM", 0.05)
    connection = queue.connection
    connection.execute("CREATE SEQUENCE public.ticks")
    connection.execute("""
        CREATE OR REPLACE FUNCTION pulse.tick()
        RETURNS TABLE (step text, did bigint, error text) LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp
        AS 'BEGIN
            RAISE ''tick %'', nextval(''public.ticks'');
        END'
    """)
    worker = Worker(queue.db.dsn)

    @worker.handle("x")
    async def x(job: Job) -> None: ...

    start(worker)
    ticks = "SELECT last_value FROM public.ticks WHERE is_called"
    queue.until(lambda: connection.execute(ticks).fetchone(), "a failed tick")
    before = connection.execute(LISTENERS).fetchall()
    queue.until(lambda: queue.one(ticks) > 8, "more ticks than it takes to prepare")
    assert connection.execute(LISTENERS).fetchall() == before


# -- the backstop -------------------------------------------------------------------

LARGE_ANSWER = f"""
SELECT pg_advisory_xact_lock({GATE}), repeat('x', 1000000)
FROM generate_series(1, 100)"""
"""More than the buffers of two sockets hold."""

SHOW = "SELECT current_setting('idle_in_transaction_session_timeout')"


def test_the_server_ends_a_transaction_that_a_worker_leaves_idle(queue: Queue) -> None:
    with Connector(queue.db.dsn, "w").open("heartbeat") as connection:
        assert connection.execute(SHOW).fetchone() == (IDLE_LIMIT,)
        connection.execute("SET idle_in_transaction_session_timeout = '50ms'")
        connection.execute("BEGIN")
        threading.Event().wait(0.2)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            connection.execute("SELECT")


def test_the_server_ends_a_session_that_leaves_its_answer_unread(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    new_server(listen_addresses="127.0.0.1", port=str(port))
    dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    assert sql.SESSION_SETTINGS["tcp_user_timeout"] == UNREAD_LIMIT
    monkeypatch.setitem(sql.SESSION_SETTINGS, "tcp_user_timeout", "500ms")
    with (
        contextlib.closing(Connector(dsn, "w").open("coordinator")) as stalled,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        stalled.pgconn.send_query(LARGE_ANSWER.encode())
        stalled.pgconn.flush()
        held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s"
        pids = [(stalled.info.backend_pid,)]
        until = time.monotonic() + PATIENCE
        while other.execute(held, (GATE,)).fetchall() != pids:
            assert time.monotonic() < until, "it never got its lock"
        while other.execute(held, (GATE,)).fetchall() == pids:
            assert time.monotonic() < until, "it keeps its lock"


@pytest.mark.parametrize("way", ["directly", "through a pooler"])
def test_a_session_of_a_pooler_keeps_its_own_idle_limit(
    queue: Queue, request: pytest.FixtureRequest, way: str
) -> None:
    pooled = way == "through a pooler"
    dsn = str(request.getfixturevalue("bouncer")) if pooled else queue.db.dsn
    expected = queue.one(SHOW) if pooled else IDLE_LIMIT

    async def shown() -> str:
        async with await Connector(dsn, "w").open_async("listener") as connection:
            row = await (await connection.execute(SHOW)).fetchone()
            assert row is not None
            return str(row[0])

    assert asyncio.run(shown()) == expected != ""
