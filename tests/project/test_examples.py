"""The examples work as they stand: workers in bash and Node, lanes of a platform."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Connection, Database
from tools import paths, servers

EXAMPLES = paths.ROOT / "examples"
Start = Callable[..., "subprocess.Popen[str]"]

# What an attacker might hope a worker pastes into SQL or a shell.
HOSTILE = [
    "'); DROP TABLE pulse_internal.body; --",
    "$(touch pwned) `touch pwned` ; touch pwned",
    "\\'\"; \\! touch pwned\n\\q\n:'me' :lease %s",
    "two\nlines\tand a tab, ü, 漢字, \u2028, 🐘",
]


def one(connection: Connection, query: str, *values: Any) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def enqueue(connection: Connection, kind: str, payload: Any = None, **more: Any) -> int:
    named = "".join(f", {name} => %s" for name in more)
    query = f"SELECT pulse.enqueue(%s, %s{named})"
    job = one(connection, query, kind, json.dumps(payload or {}), *more.values())
    assert isinstance(job, int)
    return job


def until(connection: Connection, job: int, state: str, seconds: float = 20) -> None:
    """Wait for a state: what another process does has no better sign."""
    end = time.monotonic() + seconds
    while True:
        now = one(connection, "SELECT state FROM pulse.jobs WHERE job_id = %s", job)
        if now == state:
            return
        assert time.monotonic() < end, f"job {job} is {now}, not {state}"
        time.sleep(0.05)


def job_of(connection: Connection, job: int) -> dict[str, Any]:
    query = "SELECT to_jsonb(j) FROM pulse.jobs AS j WHERE job_id = %s"
    found = one(connection, query, job)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def start(db: Database, tmp_path: Path) -> Iterator[Start]:
    """Start a program against db; it is asked to stop after the test and does."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*command: str | Path, **environ: str) -> subprocess.Popen[str]:
        begun.append(
            subprocess.Popen(
                [str(word) for word in command],
                cwd=tmp_path,
                env={**db.server.environ(db.name), **environ},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.terminate()
    for process in begun:
        assert process.wait(timeout=20) == 0, process.communicate()[1]
        assert process.stderr is not None
        process.stderr.close()


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0


# -- bash -------------------------------------------------------------------------


BASH = EXAMPLES / "worker.sh"


def test_the_bash_worker_completes_jobs_whatever_is_in_them(
    db: Database, start: Start, tmp_path: Path
) -> None:
    connection = db.connect()
    jobs = [
        enqueue(connection, f"kind {text}", {"text": text}, lane="it's")
        for text in HOSTILE
    ]
    start(BASH, "it's", "cat")
    for job, text in zip(jobs, HOSTILE, strict=True):
        until(connection, job, "completed")
        seen = json.loads(job_of(connection, job)["result"])
        assert seen["job_id"] == str(job)
        assert seen["kind"] == f"kind {text}"
        assert seen["payload"] == {"text": text}
        assert seen["attempt"] == 1
    assert not list(tmp_path.glob("pwned"))
    assert one(connection, "SELECT worker IS NOT NULL FROM pulse.workers")


def test_the_bash_worker_reports_the_error_text(db: Database, start: Start) -> None:
    connection = db.connect()
    job = enqueue(connection, "broken", max_attempts=1)
    program = (
        r"""printf 'it'\''s "broken"\n%s \000 \377 $HOME\n' '`date`' >&2; exit 3"""
    )
    start(BASH, "default", "sh", "-c", program)
    until(connection, job, "dead")
    assert job_of(connection, job)["last_error"] == 'it\'s "broken"\n`date`   $HOME'


def test_the_bash_worker_takes_any_bytes_as_a_result(
    db: Database, start: Start
) -> None:
    connection = db.connect()
    job = enqueue(connection, "bytes")
    start(
        BASH,
        "default",
        "sh",
        "-c",
        r"""printf 'a\000b\377c'; head -c 300000 /dev/zero""",
    )
    until(connection, job, "completed")
    assert job_of(connection, job)["result"] == "abc"


def test_the_bash_worker_keeps_the_lease_of_a_long_job(
    db: Database, start: Start
) -> None:
    connection = db.connect()
    job = enqueue(connection, "long")
    start(BASH, "default", "sleep", "5", HEARTBEAT="1")
    until(connection, job, "running")
    lease_for = one(connection, "SELECT lease_until - started_at FROM pulse.running")
    assert lease_for.total_seconds() <= 4
    while one(connection, "SELECT count(*) FROM pulse.running"):
        assert one(connection, "SELECT pulse.reap()") == 0
        time.sleep(0.2)
    found = job_of(connection, job)
    assert (found["state"], found["attempts"]) == ("completed", 1)


def test_the_bash_worker_stops_a_job_that_is_cancelled(
    db: Database, start: Start
) -> None:
    connection = db.connect()
    job = enqueue(connection, "endless")
    start(BASH, "default", "sh", "-c", "sleep 600; sleep 600", HEARTBEAT="1")
    until(connection, job, "running")
    one(connection, "SELECT pulse.cancel(%s, 'not needed')", job)
    until(connection, job, "cancelled", seconds=10)
    after = enqueue(connection, "endless")
    until(connection, after, "running")


def test_the_bash_worker_gives_its_job_back_on_term(
    db: Database, start: Start, tmp_path: Path
) -> None:
    connection = db.connect()
    job = enqueue(connection, "endless")
    program = "echo $$ > made; mv made pid; sleep 600; true"
    worker = start(BASH, "default", "sh", "-c", program)
    until(connection, job, "running")
    while not (tmp_path / "pid").exists():
        time.sleep(0.02)
    pid = (tmp_path / "pid").read_text().strip()
    stop(worker)
    found = job_of(connection, job)
    assert (found["state"], found["attempts"], found["failures"]) == ("ready", 1, 0)
    assert not Path(f"/proc/{pid}").exists()


def test_the_bash_worker_stops_at_once_when_idle(db: Database, start: Start) -> None:
    connection = db.connect()
    worker = start(BASH, "default", "cat")
    job = enqueue(connection, "first")
    until(connection, job, "completed")
    stop(worker)


# -- Node -------------------------------------------------------------------------


HANDLERS = """
import { readFileSync } from 'node:fs'
export const echo = async (job) => job
export const broken = async () => { throw new Error("it's broken") }
export const long = (job, signal) => new Promise((resolve, reject) => {
  setTimeout(resolve, job.payload.seconds * 1000)
  signal.addEventListener('abort', () => reject(signal.reason))
})
export const deaf = () => new Promise(() => {})
"""


@pytest.fixture(scope="session")
def node_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node example beside what its package.json asks for."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not here: install them to run the Node example")
    home = tmp_path_factory.mktemp("node")
    shutil.copy(EXAMPLES / "package.json", home)
    shutil.copy(EXAMPLES / "worker.mjs", home)
    modules = paths.cache() / "node_modules"
    if not modules.exists():
        done = subprocess.run(
            ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"],
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"npm could not get pg, it needs a registry: {done.stdout}")
        making = modules.with_name(f"node_modules.{os.getpid()}")
        shutil.copytree(home / "node_modules", making, symlinks=True)
        with contextlib.suppress(OSError):
            making.rename(modules)
    else:
        (home / "node_modules").symlink_to(modules)
    return home


@pytest.fixture
def node(start: Start, node_home: Path, tmp_path: Path) -> Start:
    (tmp_path / "handlers.mjs").write_text(HANDLERS)

    def begin(lane: str = "default", slots: int = 4, **environ: str) -> Any:
        worker = node_home / "worker.mjs"
        return start("node", worker, lane, "./handlers.mjs", str(slots), **environ)

    return begin


def test_the_node_worker_completes_jobs_whatever_is_in_them(
    db: Database, node: Start
) -> None:
    connection = db.connect()
    jobs = [
        enqueue(connection, "echo", {"text": text}, lane="it's") for text in HOSTILE
    ]
    node("it's")
    for job, text in zip(jobs, HOSTILE, strict=True):
        until(connection, job, "completed")
        seen = job_of(connection, job)["result"]
        assert seen["job_id"] == str(job)
        assert seen["payload"] == {"text": text}
        assert isinstance(seen["lease"], str)
        assert int(seen["lease"]) > 0


def test_the_node_worker_handles_leases_that_a_number_would_round(
    db: Database, node: Start
) -> None:
    connection = db.connect()
    one(connection, "SELECT setval('pulse_internal.lease_seq', 1::bigint << 44)")
    jobs = [enqueue(connection, "echo") for _ in range(20)]
    node()
    for job in jobs:
        until(connection, job, "completed")
        assert int(job_of(connection, job)["result"]["lease"]) > 2**53


def test_the_node_worker_reports_the_error_text(db: Database, node: Start) -> None:
    connection = db.connect()
    job = enqueue(connection, "broken", max_attempts=1)
    node()
    until(connection, job, "dead")
    assert "it's broken" in job_of(connection, job)["last_error"]


def test_the_node_worker_leaves_kinds_alone_that_it_cannot_run(
    db: Database, node: Start
) -> None:
    connection = db.connect()
    foreign = enqueue(connection, "foreign")
    job = enqueue(connection, "echo")
    node()
    until(connection, job, "completed")
    assert job_of(connection, foreign)["state"] == "ready"


def test_the_node_worker_keeps_leases_and_hears_of_a_cancel(
    db: Database, node: Start
) -> None:
    connection = db.connect()
    kept = enqueue(connection, "long", {"seconds": 5})
    doomed = enqueue(connection, "long", {"seconds": 600})
    node(LEASE="3")
    until(connection, kept, "running")
    until(connection, doomed, "running")
    one(connection, "SELECT pulse.cancel(%s)", doomed)
    until(connection, doomed, "cancelled", seconds=10)
    assert job_of(connection, doomed)["ended_by"] == "ack_cancel"
    while job_of(connection, kept)["state"] == "running":
        assert one(connection, "SELECT pulse.reap()") == 0
        time.sleep(0.2)
    found = job_of(connection, kept)
    assert (found["state"], found["attempts"]) == ("completed", 1)


def test_the_node_worker_gives_its_jobs_back_on_term(db: Database, node: Start) -> None:
    connection = db.connect()
    polite = enqueue(connection, "long", {"seconds": 600})
    deaf = enqueue(connection, "deaf")
    worker = node(GRACE="1")
    until(connection, polite, "running")
    until(connection, deaf, "running")
    stop(worker)
    for job in (polite, deaf):
        found = job_of(connection, job)
        assert (found["state"], found["failures"]) == ("ready", 0)


def test_an_enqueue_rings_the_sleeping_node_worker(db: Database, node: Start) -> None:
    connection = db.connect()
    connection.execute("LISTEN pulse")
    node()
    # Armed: a shared lock on the lane's bell stands in pg_locks.
    end = time.monotonic() + 20
    bell = "classid = 'pulse_internal.ready'::regclass AND locktype = 'advisory'"
    while not one(connection, f"SELECT count(*) FROM pg_locks WHERE {bell}"):
        assert time.monotonic() < end
        time.sleep(0.01)
    rings = []
    for _ in range(20):
        job = enqueue(connection, "echo")
        until(connection, job, "completed")
        rings += [n.payload for n in connection.notifies(timeout=0.2)]
        if "default" in rings:
            break
    assert "default" in rings


# -- behind PgBouncer ---------------------------------------------------------------


@pytest.fixture
def pooled(db: Database, tmp_path: Path) -> Iterator[dict[str, str]]:
    """PgBouncer in transaction mode before db; PG* that lead there."""
    program = servers.pgbouncer()
    if program is None:
        pytest.skip("pgbouncer is not here: `make setup` gets it where apt works")
    home = Path(tempfile.mkdtemp(prefix="pulse.", dir="/tmp"))
    (home / "ini").write_text(
        f"[pgbouncer]\nunix_socket_dir = {home}\nlisten_port = 6432\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\n"
        f"[databases]\n{db.name} = host={db.server.socket} port={db.server.port}"
        " user=postgres\n"
    )
    user = paths.server_user()
    if user:
        for path in (home, home / "ini"):
            shutil.chown(path, user)
    log = (home / "log").open("w+")
    process = subprocess.Popen(
        [str(program), str(home / "ini")],
        stdout=log,
        stderr=log,
        env={**os.environ, **db.server.install.environment},
        user=user,
        cwd="/",
    )
    end = time.monotonic() + 20
    while not (home / ".s.PGSQL.6432").exists():
        assert process.poll() is None, (home / "log").read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    yield {"PGHOST": str(home), "PGPORT": "6432"}
    process.terminate()
    process.wait()
    log.close()
    shutil.rmtree(home)


def test_the_bash_worker_works_behind_pgbouncer(
    db: Database, start: Start, pooled: dict[str, str]
) -> None:
    connection = db.connect()
    jobs = [enqueue(connection, "any") for _ in range(3)]
    start(BASH, "default", "cat", **pooled)
    for job in jobs:
        until(connection, job, "completed")


def test_the_node_worker_polls_behind_pgbouncer_and_says_so(
    db: Database, node: Start, pooled: dict[str, str]
) -> None:
    connection = db.connect()
    jobs = [enqueue(connection, "echo") for _ in range(3)]
    worker = node(**pooled)
    for job in jobs:
        until(connection, job, "completed")
    later = enqueue(connection, "echo")
    until(connection, later, "completed")
    bell = "classid = 'pulse_internal.ready'::regclass AND locktype = 'advisory'"
    assert one(connection, f"SELECT count(*) FROM pg_locks WHERE {bell}") == 0
    stop(worker)
    assert worker.stderr is not None
    assert worker.stderr.read().count("polling only") == 1


# -- the knowledge-graph platform ---------------------------------------------------


LANES = {
    "interactive": (
        *(2, "00:00:02", "00:30:00"),
        ["ingestion", "ingest_image", "polarity"],
    ),
    "maintenance": (
        *(1, "00:00:15", "01:00:00"),
        [
            *("projection", "vocab_refresh", "epistemic_remeasurement"),
            *("ontology_annealing", "proposal_execution"),
        ],
    ),
    "system": (
        *(1, "00:00:30", "02:00:00"),
        ["restore", "vocab_consolidate", "artifact_cleanup", "source_embedding"],
    ),
}


@pytest.fixture
def platform(db: Database) -> Connection:
    for _ in range(2):
        db.psql("-1", "-f", str(EXAMPLES / "knowledge_graph.sql"))
    return db.connect()


@pytest.mark.parametrize("lane", LANES)
def test_the_platform_has_its_lanes_and_kinds(platform: Connection, lane: str) -> None:
    slots, poll, runtime, kinds = LANES[lane]
    row = platform.execute(
        "SELECT max_slots, settings ->> 'poll_interval', settings ->> 'max_runtime'"
        " FROM pulse.lanes WHERE name = %s",
        [lane],
    ).fetchone()
    assert row == (slots, poll, runtime)
    for kind in kinds:
        assert job_of(platform, enqueue(platform, kind))["lane"] == lane


@pytest.mark.parametrize("lane", LANES)
def test_the_slots_of_the_platform_are_exact(platform: Connection, lane: str) -> None:
    slots, _, _, kinds = LANES[lane]
    ids = [enqueue(platform, kind) for kind in kinds * 2]
    order = []
    leases: list[int] = []
    claim = "SELECT lease, job_id FROM pulse.claim_batch(%s, %s, 10, kinds => %s)"
    for n in range(len(ids)):
        got = platform.execute(claim, [f"w{n}", lane, kinds]).fetchall()
        leases += [lease for lease, _ in got]
        order += [job for _, job in got]
        assert len(leases) == min(slots, len(ids) - n)
        assert not platform.execute(claim, ["late", lane, kinds]).fetchall()
        platform.execute("SELECT pulse.complete(%s)", [leases.pop(0)])
    assert order == ids


def test_the_runs_of_the_platform_end_by_the_max_runtime_of_their_lane(
    platform: Connection,
) -> None:
    for lane, (_, _, runtime, kinds) in LANES.items():
        enqueue(platform, kinds[0])
        one(platform, "SELECT lease FROM pulse.claim_batch('w', %s)", lane)
        bound = (
            "SELECT (deadline - started_at)::text FROM pulse.running WHERE lane = %s"
        )
        assert one(platform, bound, lane) == runtime


def test_a_lane_of_the_platform_drains_and_resumes_alone(platform: Connection) -> None:
    for _, _, _, kinds in LANES.values():
        enqueue(platform, kinds[0])
        enqueue(platform, kinds[0])
    running = platform.execute(
        "SELECT lease FROM pulse.claim_batch('w', 'interactive')"
    ).fetchone()
    assert running is not None
    assert one(platform, "SELECT pulse.drain_lane('interactive', 'deploy')")

    claim = "SELECT count(*) FROM pulse.claim_batch('w', %s, 10)"
    assert one(platform, claim, "interactive") == 0
    assert one(platform, claim, "maintenance") == 1
    assert one(platform, claim, "system") == 1
    platform.execute("SELECT pulse.complete(%s)", running)
    assert one(platform, "SELECT used FROM pulse.lanes WHERE name = 'interactive'") == 0

    assert one(platform, "SELECT pulse.resume_lane('interactive')")
    assert one(platform, claim, "interactive") == 1
