"""Workers in threads, and ways to wait for what they do without sleeping."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pulse
from tests.conftest import Connection, Database
from tools import paths, servers
from tools.servers import Server

PATIENCE = 20.0

ARMED = """
SELECT count(*) FROM pg_locks AS l INNER JOIN pg_database AS d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objsubid = 2
    AND l.classid = 'pulse_internal.ready'::regclass
        AND d.datname = current_database()"""

CONNECTED = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name LIKE 'pulse %%' AND datname = current_database()"""


class Running:
    """A worker in a thread of its own."""

    def __init__(self, worker: pulse.Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    def wait_ready(self) -> None:
        assert self.worker.ready.wait(PATIENCE), self.error

    def stop(self, grace: float | None = None, within: float = PATIENCE) -> float:
        """Stop, and say how long that took."""
        started = time.monotonic()
        self.worker.stop(grace)
        self.join(within)
        return time.monotonic() - started

    def join(self, within: float = PATIENCE) -> None:
        self.thread.join(within)
        assert not self.thread.is_alive(), "the worker did not stop"
        if self.error is not None:
            raise self.error


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(worker) runs it in a thread; it is stopped after the test."""
    started: list[Running] = []

    def run(worker: pulse.Worker, ready: bool = True) -> Running:
        running = Running(worker)
        started.append(running)
        if ready:
            running.wait_ready()
        return running

    yield run
    for running in started:
        running.worker.stop(0)
    for running in started:
        running.thread.join(PATIENCE)


class Queue:
    """The queue as a test sees it."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.connection: Connection = db.connect()

    def enqueue(self, kind: str, payload: Any = None, **options: Any) -> int:
        return pulse.enqueue(self.connection, kind, payload, **options)

    def one(self, query: str, *values: Any) -> Any:
        row = self.connection.execute(query.encode(), values).fetchone()
        assert row is not None
        return row[0]

    def job(self, job: int) -> dict[str, Any]:
        cursor = self.connection.execute(
            "SELECT to_jsonb(j) FROM pulse.jobs AS j WHERE j.job_id = %s", (job,)
        )
        row = cursor.fetchone()
        assert row is not None
        return dict(row[0])

    def state(self, job: int) -> str:
        return str(self.one("SELECT state FROM pulse.jobs WHERE job_id = %s", job))

    def states(self) -> dict[str, int]:
        rows = self.connection.execute(
            "SELECT state, count(*) FROM pulse.jobs GROUP BY state"
        )
        return dict(rows.fetchall())

    def until(
        self, true: Callable[[], Any], what: str = "", within: float = 20
    ) -> None:
        """Ask again and again; the only clock in these tests is patience."""
        deadline = time.monotonic() + within
        while not true():
            assert time.monotonic() < deadline, f"{what or true} did not come true"
            threading.Event().wait(0.01)

    def until_state(self, job: int, state: str, within: float = 20) -> None:
        self.until(lambda: self.state(job) == state, f"{job} {state}", within)

    def check(self) -> None:
        """What must hold after any test: every job in one place, no slot leaked."""
        assert self.connection.execute("SELECT * FROM pulse.check()").fetchall() == []


@pytest.fixture
def queue(db: Database) -> Iterator[Queue]:
    queue = Queue(db)
    yield queue
    queue.check()


class Own(Queue):
    """A queue on a server of its own, which may be stopped and started."""

    def __init__(self, server: Server) -> None:
        self.server = server
        super().__init__(Database(server, server.create(product="extension")))


@pytest.fixture
def own(new_server: Callable[..., Server]) -> Iterator[Own]:
    own = Own(new_server())
    yield own
    own.db.close(drop=False)


@pytest.fixture
def bouncer(db: Database) -> Iterator[str]:
    """A DSN that leads through PgBouncer in transaction mode, with few servers."""
    with pgbouncer(db, "transaction") as dsn:
        yield dsn


@pytest.fixture
def session_bouncer(db: Database) -> Iterator[str]:
    """The same in session mode: a client keeps its server until it leaves."""
    with pgbouncer(db, "session") as dsn:
        yield dsn


@contextlib.contextmanager
def pgbouncer(db: Database, mode: str) -> Iterator[str]:
    program = servers.pgbouncer()
    if program is None:
        pytest.skip("PgBouncer is not here: `make setup` gets it where apt works")
    directory = Path(db.server.socket).parent / f"bouncer-{mode}-{db.name}"
    directory.mkdir()
    (directory / "users.txt").write_text('"postgres" ""\n')
    (directory / "pgbouncer.ini").write_text(
        f"""
        [databases]
        * = host={db.server.socket} port={db.server.port} user=postgres
        [pgbouncer]
        listen_addr =
        listen_port = 6432
        unix_socket_dir = {directory}
        auth_type = any
        auth_file = {directory}/users.txt
        pool_mode = {mode}
        default_pool_size = {3 if mode == "transaction" else 10}
        logfile = {directory}/log
        pidfile = {directory}/pid
        """.replace("        ", "")
    )
    user = paths.server_user()
    if user is not None:
        shutil.chown(directory, user)
        for file in directory.iterdir():
            shutil.chown(file, user)
    command = [str(program), str(directory / "pgbouncer.ini")]
    if user is not None:
        command += ["-u", user]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    dsn = f"host={directory} port=6432 user=postgres dbname={db.name}"
    until = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(dsn).close()
            break
        except psycopg.OperationalError:
            assert time.monotonic() < until, (directory / "log").read_text()
            threading.Event().wait(0.02)
    try:
        yield dsn
    finally:
        process.terminate()
        process.wait()
