"""What every section needs: a server, databases, pgbench, an old snapshot, a ticker."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psycopg

from tools.servers import Server, memory, primary

HERE = Path(__file__).parent
SQL = HERE / "sql"
BATCH = 100


class Run(NamedTuple):
    """What pgbench and the server's processes said."""

    transactions: int
    seconds: float
    # Seconds of processor time that the server's sessions used.
    cpu: float


@dataclass(frozen=True)
class Scale:
    """How much of everything; BENCH_QUICK shrinks it to see that it works."""

    quick: bool
    seconds: int
    rounds: int
    backlog: int
    # Long enough to meet autovacuum and its first ANALYZE several times.
    pinned_seconds: int
    # Long enough for retention, autovacuum and checkpoints to come round many times.
    steady_seconds: int

    @staticmethod
    def from_environment() -> Scale:
        quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
        return Scale(
            quick=quick,
            seconds=int(os.environ.get("BENCH_SECONDS", "10")),
            rounds=int(os.environ.get("BENCH_ROUNDS", "1" if quick else "3")),
            backlog=int(
                os.environ.get("BENCH_BACKLOG", "4000" if quick else "10000000")
            ),
            pinned_seconds=int(
                os.environ.get("BENCH_PINNED_SECONDS", "2" if quick else "300")
            ),
            steady_seconds=int(
                os.environ.get("BENCH_STEADY_SECONDS", "2" if quick else "600")
            ),
        )


# A backend goes to sleep within microseconds of its answer; this many looks are enough.
LOOKS_FOR_SLEEP = 200


def asleep(pid: int) -> bool:
    """Whether the process waits; True when it is gone or the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "S"


def processor(pid: int) -> float:
    """Seconds that a process has run; 0 when it is gone or the system does not tell.

    The kernel adds the time of a process when it stops running. A backend may still
    run when its client has the answer, so this waits until it sleeps.
    """
    for _ in range(LOOKS_FOR_SLEEP):
        if asleep(pid):
            break
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


@dataclass
class Database:
    """One database of a run; connections end with it."""

    server: Server
    name: str
    # Jobs that went through, as the section counts them.
    worked: int = 0
    control: psycopg.Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.control = self.connect()

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self.server.dsn(self.name), **{"autocommit": True, **options}
        )

    def value(self, query: str, *parameters: object) -> Any:
        row = self.control.execute(query.encode(), parameters or None).fetchone()
        assert row is not None
        return row[0]

    def do(self, *statements: str) -> None:
        for statement in statements:
            self.control.execute(statement.encode())

    def finished(self) -> int:
        return int(self.value("SELECT count(*) FROM pulse_internal.finished"))

    def sessions_cpu(self) -> dict[int, float]:
        """Seconds of processor time that each session of pgbench has used so far."""
        pids = self.control.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'"
        )
        return {pid: processor(pid) for (pid,) in pids}

    def claimed(self) -> int:
        """Leases granted so far; costs nothing to ask while a run is on."""
        query = (
            "SELECT last_value - (NOT is_called)::integer FROM pulse_internal.lease_seq"
        )
        return int(self.value(query))


class Bench:
    """A server of its own, and what was learned on it."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.profiling = os.environ.get("BENCH_PROFILE", "") not in ("", "0")
        # On a disk, unless it is only to see that all works.
        where = memory() if scale.quick else None
        self.store = Path(os.environ.get("BENCH_DIR", where or tempfile.gettempdir()))
        # Each with the jobs it worked off and what check() and tick() found.
        self.scenarios: list[dict[str, Any]] = []
        self.server = Server(primary(), self.settings(), store=self.store)

    def settings(self) -> dict[str, str]:
        megabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        settings = {
            "shared_buffers": f"{max(128, min(2048, megabytes // 4))}MB",
            "synchronous_commit": "on",
            "fsync": "off" if self.scale.quick else "on",
            "full_page_writes": "on",
            "max_wal_size": "8GB",
            # One is made before each run, so none falls into it.
            "checkpoint_timeout": "1h",
            "autovacuum": "on",
            # As shipped but for its interval, so that a short run meets it often.
            "autovacuum_naptime": "10s",
        }
        if self.profiling:
            settings["shared_preload_libraries"] = "pg_stat_statements"
            settings["pg_stat_statements.track"] = "all"
        return settings

    def close(self) -> None:
        self.server.close()

    def clients(self, number: int) -> int:
        """A quick run makes do with two: a session needs a while to plan everything."""
        return min(number, 2) if self.scale.quick else number

    def free_gigabytes(self) -> float:
        return shutil.disk_usage(self.store).free / (1 << 30)

    @contextlib.contextmanager
    def database(self, scenario: str) -> Iterator[Database]:
        """A fresh database with pulse and the baseline, checked when it is done."""
        database = Database(self.server, self.server.create(product="extension"))
        try:
            self.server.psql(database.name, "-f", str(HERE / "baseline_one_table.sql"))
            if self.profiling:
                database.do("CREATE EXTENSION pg_stat_statements")
                database.do("SELECT pg_stat_statements_reset()")
            yield database
            if self.profiling:
                self.print_profile(scenario, database)
            self.record(scenario, database)
        finally:
            database.control.close()
            self.server.drop(database.name)

    def record(self, scenario: str, database: Database) -> None:
        """The queue must be sound after every scenario, or its figure means nothing."""
        problems = [
            " ".join(map(str, row))
            for row in database.control.execute("SELECT * FROM pulse.check()")
        ]
        problems += [
            f"{step}: {state}"
            for step, state in database.control.execute(
                "SELECT step, state FROM pulse_internal.upkeep_run WHERE step LIKE "
                "'error:%'"
            )
        ]
        self.scenarios.append(
            {"name": scenario, "jobs": database.worked, "problems": problems}
        )
        for problem in problems:
            print(f"  !! {scenario}: {problem}", flush=True)

    def pgbench(
        self,
        database: Database,
        script: str,
        clients: int,
        seconds: int | None = None,
        transactions: int | None = None,
        ticking: bool = True,
        variables: Mapping[str, object] | None = None,
        rate: float | None = None,
    ) -> Run:
        """Run a script for so many seconds, or so many transactions a client.

        With rate, no more than so many transactions a second.
        """
        if seconds is None and transactions is None:
            seconds = self.scale.seconds
            if self.scale.quick:
                seconds, transactions = None, 2
        clients = self.clients(clients)
        limit = ["-t", str(transactions)] if transactions else ["-T", str(seconds)]
        command = [
            str(self.server.install.program("pgbench")),
            *("-n", "-M", "prepared", "-c", str(clients)),
            *("-j", str(min(clients, os.cpu_count() or 1)), *limit),
            *(f"-D{name}={value}" for name, value in (variables or {}).items()),
            *(["-R", f"{rate:.2f}"] if rate else []),
            *("-f", str(SQL / f"{script}.sql")),
        ]
        database.do("CHECKPOINT")
        used = self.cpu(database)
        with Ticker(database) if ticking else contextlib.nullcontext():
            done = subprocess.run(
                command,
                env=self.server.environ(database.name),
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0 or "aborted" in done.stderr:
            raise RuntimeError(f"pgbench {script} failed:\n{done.stderr[-2000:]}")
        transactions, rate = parsed(done.stdout)
        used = self.cpu(database) - used
        return Run(transactions, transactions / rate, used)

    def cpu(self, database: Database) -> float:
        """Processor seconds of all sessions that have ended; pgbench's are awaited."""
        postmaster = (self.server.data / "postmaster.pid").read_text().splitlines()[0]
        process = Path(f"/proc/{postmaster}")
        children = process / "task" / postmaster / "children"
        if not children.exists():
            return 0.0
        # Their time counts when the postmaster has taken notice of their end.
        for _ in range(500):
            known = database.value(
                "SELECT array_agg(pid) FROM pg_stat_activity"
                " WHERE application_name NOT IN ('pgbench', 'ticker')"
            )
            if set(map(int, children.read_text().split())) <= set(known):
                break
            time.sleep(0.01)
        # utime, stime, cutime and cstime are fields 14 to 17; the name may hold blanks.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def print_profile(self, scenario: str, database: Database) -> None:
        print(f"\n  profile of {scenario}: seconds, calls, ms each, statement")
        for row in database.control.execute(
            """
            SELECT
                round((total_exec_time / 1000)::numeric, 1),
                calls,
                round(mean_exec_time::numeric, 3),
                left(regexp_replace(query, '\\s+', ' ', 'g'), 110)
            FROM pg_stat_statements
            WHERE dbid = (
                SELECT oid FROM pg_database WHERE datname = current_database()
            )
            ORDER BY total_exec_time DESC
            LIMIT 14
            """
        ):
            print(f"  {row[0]:>8} {row[1]:>9} {row[2]:>9}  {row[3]}", flush=True)


def parsed(output: str) -> tuple[int, float]:
    """Transactions, and how many a second, the time to connect left out."""
    found = re.search(r"actually processed: (\d+).*tps = ([\d.]+)", output, re.DOTALL)
    if found is None:
        raise RuntimeError(f"pgbench said no figures:\n{output}")
    return int(found[1]), float(found[2])


class Ticker:
    """What a worker does besides: tick() once a second while the block runs."""

    def __init__(self, database: Database) -> None:
        self.connection = database.connect(application_name="ticker")
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.tick, name="ticker", daemon=True)

    def tick(self) -> None:
        while True:
            self.connection.execute("SELECT pulse.tick()")
            if self.stopped.wait(1):
                return

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()
        self.connection.close()


class Sample(NamedTuple):
    at: float
    claimed: int
    # Seconds of processor time that the sessions of pgbench have used.
    cpu: float


class Sampler:
    """Jobs claimed and processor time used by which moment, while the block runs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.samples: list[Sample] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.sample, name="sampler", daemon=True)

    def sample(self) -> None:
        # A session that has ended keeps what it used.
        used: dict[int, float] = {}
        while not self.stopped.is_set():
            claimed = self.database.claimed()
            for pid, cpu in self.database.sessions_cpu().items():
                used[pid] = max(cpu, used.get(pid, 0.0))
            self.samples.append(Sample(time.monotonic(), claimed, sum(used.values())))
            self.stopped.wait(0.1)

    def __enter__(self) -> Sampler:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def windows(self, length: float) -> tuple[Window, Window, Window]:
        """The first and the last window, and the whole run."""
        begun, ended = self.samples[0].claimed, self.samples[-1].claimed
        busy = [s for s in self.samples if begun < s.claimed < ended and s.cpu]
        busy = busy or self.samples
        start, end = busy[0], busy[-1]
        first = [s for s in busy if s.at <= start.at + length][-1]
        last = next(s for s in busy if s.at >= end.at - length)
        return Window(start, first), Window(last, end), Window(start, end)


class Window(NamedTuple):
    start: Sample
    end: Sample

    @property
    def jobs(self) -> int:
        return self.end.claimed - self.start.claimed

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / max(self.end.at - self.start.at, 0.001)

    @property
    def cost(self) -> float:
        """Microseconds of processor time for a job."""
        return 1e6 * (self.end.cpu - self.start.cpu) / max(self.jobs, 1)


@contextlib.contextmanager
def old_snapshot(database: Database) -> Iterator[None]:
    """A transaction that has read once and then sits there: vacuum removes nothing."""
    connection = database.connect(autocommit=False)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT count(*) FROM pulse.jobs")
    try:
        yield
    finally:
        connection.close()


def middle(values: list[float]) -> float:
    return float(median(values))
