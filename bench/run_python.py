"""make bench-python: the worker of pulse beside its peers, in one run on one server.

python -m bench.run_python [--only "pulse,pgqueuer async 10"] [--jobs 60000]
    [--processes 1] [--idle]

Each subject drains no-op jobs with one, two and four processes, in turns with the
others (BENCH_ROUNDS, of which the median is taken), and is then measured idle, in turns
as well: how long from just before enqueue until the handler runs. The floor is a bare
INSERT with a notification, a session that listens and a bare claim. The number in a
name is how many jobs a process has in flight. Peers come from PyPI and npm into the
cache. Only ratios inside one run mean something. CPU is processor time of the worker
process and of its sessions' processes for a job, between a fifth and four fifths of the
drain of one process: jobs a second depend on what else the machine does, this hardly.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from bench.harness import Bench, Scale, processor
from tools import paths

HERE = Path(__file__).parent / "peers"
PYTHON_PEERS = ("procrastinate", "pgqueuer", "asyncpg", "psycopg[binary,pool]")
NODE_PEERS = ("graphile-worker", "pg")
LATENCY_JOBS = 300


@dataclass(frozen=True)
class Subject:
    name: str
    program: str
    flavour: str
    slots: int
    # As it comes, without a setting that its author recommends.
    default: bool = False
    # Measured idle alone.
    idle: bool = False


class Cpu(NamedTuple):
    """Microseconds of processor time for a job."""

    worker: float
    server: float

    @property
    def sum(self) -> float:
        return self.worker + self.server


@dataclass
class Figures:
    rates: dict[int, list[float]] = field(default_factory=dict)
    costs: list[Cpu] = field(default_factory=list)
    transactions: float | None = None
    latencies: list[float] = field(default_factory=list)

    @property
    def drain(self) -> dict[int, float]:
        return {size: statistics.median(rates) for size, rates in self.rates.items()}

    @property
    def cpu(self) -> Cpu | None:
        """Of the turn with the median sum."""
        costs = sorted(self.costs, key=lambda cost: cost.sum)
        return costs[(len(costs) - 1) // 2] if costs else None


SUBJECTS = (
    Subject("pulse async 100", "pulse", "async", 100),
    Subject("pulse async 500", "pulse", "async", 500),
    Subject("pulse async 1000", "pulse", "async", 1000),
    Subject("pulse threads 100", "pulse", "sync", 100),
    Subject("pulse async 10", "pulse", "async", 10, default=True),
    Subject("pulse threads 10", "pulse", "sync", 10),
    Subject("pgqueuer async 100", "pgqueuer", "async", 100),
    Subject("pgqueuer async 500", "pgqueuer", "async", 500),
    Subject("pgqueuer async 1000", "pgqueuer", "async", 1000),
    Subject("pgqueuer threads 100", "pgqueuer", "sync", 100),
    Subject("pgqueuer async 10", "pgqueuer", "async", 10, default=True),
    Subject("procrastinate async 100", "procrastinate", "async", 100),
    Subject("procrastinate threads 100", "procrastinate", "sync", 100),
    Subject("procrastinate async 1", "procrastinate", "async", 1, default=True),
    Subject("graphile-worker 24", "graphile", "batched", 24),
    Subject("graphile-worker 1", "graphile", "plain", 1, default=True),
    Subject("pulse ten lanes", "pulse", "lanes", 10, idle=True),
    Subject("floor", "floor", "plain", 1, idle=True),
)
# Of the others a run of so many jobs takes seconds, of these it would take minutes.
SLOW = {"procrastinate async 1": 60, "procrastinate": 12, "graphile-worker 1": 6}


class Peers:
    """The peers' own Python and node_modules, made once in the cache."""

    def __init__(self) -> None:
        self.directory = paths.cache() / "peers"
        self.python = self.directory / "venv/bin/python"
        self.node = self.directory / "node"

    def prepare(self) -> None:
        if not (self.directory / "venv/ready").exists():
            print("bench: getting the peers from PyPI", flush=True)
            run([sys.executable, "-m", "venv", str(self.directory / "venv")])
            run([str(self.python), "-m", "pip", "install", "-q", *PYTHON_PEERS])
            (self.directory / "venv/ready").touch()
        if not (self.node / "node_modules/graphile-worker").exists():
            print("bench: getting graphile-worker from npm", flush=True)
            self.node.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                run(
                    [
                        "npm",
                        "install",
                        "--silent",
                        "--prefix",
                        str(self.node),
                        *NODE_PEERS,
                    ]
                )

    def versions(self) -> dict[str, str]:
        listed = json.loads(
            run([str(self.python), "-m", "pip", "list", "--format", "json"])
        )
        found = {each["name"]: each["version"] for each in listed}
        package = self.node / "node_modules/graphile-worker/package.json"
        if package.exists():
            found["graphile-worker"] = json.loads(package.read_text())["version"]
        wanted = ("procrastinate", "pgqueuer", "asyncpg", "graphile-worker")
        return {name: found[name] for name in wanted if name in found}

    def command(self, program: str, verb: str, dsn: str, *rest: object) -> list[str]:
        words = [verb, dsn, *map(str, rest)]
        if program in ("pulse", "floor"):
            return [sys.executable, str(HERE / f"subject_{program}.py"), *words]
        if program == "graphile":
            if verb in ("install", "work"):
                return ["node", str(HERE / "subject_graphile.mjs"), *words]
            return [sys.executable, str(HERE / "subject_graphile.py"), *words]
        return [str(self.python), str(HERE / f"subject_{program}.py"), *words]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(paths.ROOT / "python"),
            "PEERS_NODE": str(self.node),
        }


def run(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


class Crew:
    """Worker processes and the last thing each of them said."""

    def __init__(self, command: list[str], env: dict[str, str], size: int) -> None:
        self.processes = [
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(size)
        ]
        self.said: dict[int, list[Any]] = {}
        self._pending: dict[int, bytes] = {}
        self._selector = selectors.DefaultSelector()
        for number, process in enumerate(self.processes):
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ, number)
            self._pending[number] = b""

    def until(self, jobs: int, within: float) -> None:
        """Listen until so many jobs have run."""
        limit = time.monotonic() + within
        while self.count < jobs:
            if time.monotonic() > limit:
                ran = f"only {self.count} of {jobs} jobs ran"
                raise TimeoutError(f"{ran}: {self.stderr()}")
            for key, _ in self._selector.select(0.1):
                data = os.read(key.fd, 1 << 20)
                if not data:
                    raise RuntimeError(f"a worker ended: {self.stderr()}")
                *lines, rest = (self._pending[key.data] + data).split(b"\n")
                self._pending[key.data] = rest
                if lines:
                    self.said[key.data] = json.loads(lines[-1])

    @property
    def count(self) -> int:
        return sum(said[0] for said in self.said.values())

    @property
    def cpu(self) -> float:
        """Seconds of processor time of all threads so far."""
        return sum(
            processor(int(thread.name))
            for process in self.processes
            for thread in Path(f"/proc/{process.pid}/task").iterdir()
        )

    @property
    def seconds(self) -> float:
        """From the first handler to the last, over all processes."""
        working = [said for said in self.said.values() if said[0]]
        return float(max(s[2] for s in working) - min(s[1] for s in working))

    @property
    def latencies(self) -> list[float]:
        return [each for said in self.said.values() for each in said[3]]

    def stderr(self) -> str:
        for process in self.processes:
            process.kill()
        return "".join(
            process.stderr.read().decode()[-2000:]
            for process in self.processes
            if process.stderr is not None
        )

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._selector.close()


@contextlib.contextmanager
def working(command: list[str], env: dict[str, str], size: int) -> Iterator[Crew]:
    crew = Crew(command, env, size)
    try:
        yield crew
    finally:
        crew.close()


class Session:
    """One subject after the other on one server, each in fresh databases."""

    def __init__(self, bench: Bench, peers: Peers, jobs: int) -> None:
        self.bench = bench
        self.peers = peers
        self.jobs = jobs
        self.env = peers.environment()

    def database(self, subject: Subject) -> str:
        name = self.bench.server.create()
        dsn = self.bench.server.dsn(name)
        run(self.peers.command(subject.program, "install", dsn), self.env)
        return dsn

    def drain(self, subject: Subject, size: int) -> tuple[float, float, Cpu]:
        """Jobs a second, transactions a job and processor time of a job."""
        dsn = self.database(subject)
        slow = SLOW.get(subject.name, SLOW.get(subject.program, 1))
        jobs = max(1000, self.jobs // slow)
        run(self.peers.command(subject.program, "fill", dsn, jobs), self.env)
        name = dsn.rsplit("=", 1)[1]
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
        before = self.transactions(name)
        work = self.peers.command(
            subject.program, "work", dsn, subject.flavour, subject.slots
        )
        with working(work, self.env, size) as crew:
            crew.until(jobs // 5, within=600)
            start = (crew.count, crew.cpu, self.sessions(name))
            crew.until(jobs * 4 // 5, within=600)
            end = (crew.count, crew.cpu, self.sessions(name))
            crew.until(jobs, within=600)
            rate = jobs / crew.seconds
        spent = self.transactions(name) - before
        self.bench.server.drop(name)
        ran, worker, server = (b - a for a, b in zip(start, end, strict=True))
        return rate, spent / jobs, Cpu(1e6 * worker / ran, 1e6 * server / ran)

    def sessions(self, name: str) -> float:
        """Seconds of processor time of the sessions of a database so far."""
        query = f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}'"
        pids = self.bench.server.psql("postgres", "-c", query).split()
        return sum(processor(int(pid)) for pid in pids)

    def transactions(self, name: str) -> int:
        """Statistics arrive within a second or when a session ends."""
        time.sleep(1.5)
        query = (
            "SELECT xact_commit + xact_rollback FROM pg_stat_database "
            f"WHERE datname = '{name}'"
        )
        return int(self.bench.server.psql("postgres", "-c", query))

    def latency(self, subject: Subject, samples: int) -> list[float]:
        dsn = self.database(subject)
        flavour = "latency" if subject.program == "graphile" else subject.flavour
        work = self.peers.command(subject.program, "work", dsn, flavour, subject.slots)
        warm = 20
        with working(work, self.env, 1) as crew:
            time.sleep(3)
            feed = self.peers.command(
                subject.program, "feed", dsn, samples + warm, subject.flavour
            )
            with subprocess.Popen(feed, env=self.env) as feeding:
                crew.until(samples + warm, within=120)
                feeding.wait()
            latencies = crew.latencies[warm:]
        self.bench.server.drop(dsn.rsplit("=", 1)[1])
        return latencies


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def table(results: dict[str, Figures], sizes: tuple[int, ...]) -> list[list[str]]:
    rows = [["", "CPU µs worker", "server", "sum", *(f"{n} proc" for n in sizes)]]
    rows[0] += ["trans./job", "p50 ms", "p99 ms"]
    for name, figures in results.items():
        lat = figures.latencies
        cpu = figures.cpu
        rows.append(
            [
                name,
                *([f"{x:.0f}" for x in (*cpu, cpu.sum)] if cpu else ["-", "-", "-"]),
                *(
                    f"{figures.drain[n]:,.0f}" if n in figures.drain else "-"
                    for n in sizes
                ),
                "-" if figures.transactions is None else f"{figures.transactions:.3f}",
                in_ms(statistics.median(lat)) if lat else "-",
                in_ms(percentile(lat, 0.99)) if lat else "-",
            ]
        )
    return rows


def show(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)]
        print("  ".join(cells))


def goals(results: dict[str, Figures]) -> list[str]:
    ours = {n: f for n, f in results.items() if n.startswith("pulse")}
    python = {n: f for n, f in results.items() if n.startswith(("pgq", "procr"))}
    node = {n: f for n, f in results.items() if n.startswith("graphile")}
    said = []
    for rivals, name, goal in (
        (python, "the best Python peer", 0.4),
        (node, "graphile-worker at its best", 1.0),
    ):
        if costs(ours) and costs(rivals):
            (least, one), (peer, other) = (min(costs(ours)), min(costs(rivals)))
            said.append(
                f"CPU of a job: {least / peer:.2f} of {name} (goal ≤ {goal}):"
                f" {one} {least:.0f} µs / {other} {peer:.0f} µs"
            )
    defaults = {s.name for s in SUBJECTS if s.default}
    for default, own in costs({n: f for n, f in ours.items() if n in defaults}):
        for peer, other in costs({n: f for n, f in results.items() if n in defaults}):
            if other not in ours:
                said.append(
                    f"CPU of a job at defaults: {default / peer:.2f} of {other}"
                    f" (goal ≤ 0.5): {own} {default:.0f} µs / {peer:.0f} µs"
                )
    for rivals, name in ((python, "the best Python peer"), (node, "graphile-worker")):
        for size in sorted({n for f in rivals.values() for n in f.drain if ours}):
            (best, one), (rate, other) = (fastest(ours, size), fastest(rivals, size))
            said.append(
                f"drain, {size} processes: {best / rate:.2f}x {name}: {one} / {other}"
            )
    for name, figures in ours.items():
        rival = results.get(name.replace("pulse", "pgqueuer"))
        if rival is not None:
            ratios = (
                f"{rate / rival.drain[n]:.2f}x"
                for n, rate in figures.drain.items()
                if n in rival.drain
            )
            said.append(f"drain, {name} / pgqueuer: {', '.join(ratios)}")
    floor = results.get("floor", Figures()).latencies
    for name, figures in ours.items():
        if floor and figures.latencies:
            shares = [(0.5, 1.5), (0.99, 3)]
            ratios = (
                f"p{100 * share:.0f} {percentile(figures.latencies, share) / least:.2f}"
                f" (goal ≤ {goal})"
                for share, goal in shares
                if (least := percentile(floor, share))
            )
            said.append(f"latency, {name} / floor: {', '.join(ratios)}")
    waits = [
        min(statistics.median(f.latencies) for f in some.values() if f.latencies)
        for some in (ours, python)
        if any(f.latencies for f in some.values())
    ]
    if len(waits) == 2:
        said.append(
            f"latency p50: {in_ms(waits[0])} ms, best Python peer {in_ms(waits[1])} ms "
            "(goal: at or below)"
        )
    spent = [f.transactions for f in ours.values() if f.transactions is not None]
    if spent:
        said.append(f"transactions a job at full load: {min(spent):.3f} (goal 0.1)")
    return said


def costs(subjects: dict[str, Figures]) -> list[tuple[float, str]]:
    return [(f.cpu.sum, name) for name, f in subjects.items() if f.cpu]


def fastest(subjects: dict[str, Figures], size: int) -> tuple[float, str]:
    return max((f.drain.get(size, 0.0), name) for name, f in subjects.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="subjects with these in their name")
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--processes", default="1,2,4", help="how many drain")
    parser.add_argument("--idle", action="store_true", help="latencies alone")
    asked = parser.parse_args()
    scale = Scale.from_environment()
    jobs = 2_000 if scale.quick else asked.jobs
    samples = 30 if scale.quick else LATENCY_JOBS
    sizes = (1,) if scale.quick else tuple(map(int, asked.processes.split(",")))
    chosen = [word for word in asked.only.split(",") if word]
    peers = Peers()
    peers.prepare()
    bench = Bench(scale)
    try:
        print(f"{jobs:,} no-op jobs, load {os.getloadavg()[0]:.1f}, {peers.versions()}")
        session = Session(bench, peers, jobs)
        subjects = [
            subject
            for subject in SUBJECTS
            if not chosen or any(is_named(subject, word) for word in chosen)
        ]
        results = {subject.name: Figures() for subject in subjects}
        # There and back: what the machine does meanwhile meets everybody.
        turns = [subjects[:: 1 - 2 * (n % 2)] for n in range(scale.rounds)]
        for subject in itertools.chain(*turns):
            if not (subject.idle or asked.idle):
                with told(subject):
                    drain(session, subject, sizes, results[subject.name])
        for subject in itertools.chain(*turns):
            with told(subject):
                results[subject.name].latencies += session.latency(
                    subject, samples // scale.rounds
                )
    finally:
        bench.close()
    print()
    print(f"medians of {scale.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    show(table(results, sizes))
    print()
    print("\n".join(goals(results)))


def is_named(subject: Subject, word: str) -> bool:
    """A whole name is that of one subject."""
    whole = any(word == each.name for each in SUBJECTS)
    return word == subject.name if whole else word in subject.name


@contextlib.contextmanager
def told(subject: Subject) -> Iterator[None]:
    """One that does not run is left out, and said so."""
    try:
        yield
    except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
        print(f"{subject.name}: left out: {error}", flush=True)


def drain(
    session: Session, subject: Subject, sizes: tuple[int, ...], figures: Figures
) -> None:
    for size in sizes:
        rate, spent, cpu = session.drain(subject, size)
        figures.rates.setdefault(size, []).append(rate)
        if size == 1:
            figures.transactions = spent
            figures.costs.append(cpu)
        print(
            f"{subject.name}: {size} processes, {rate:,.0f} jobs/s,"
            f" {cpu.worker:.0f} + {cpu.server:.0f} µs",
            flush=True,
        )


if __name__ == "__main__":
    main()
