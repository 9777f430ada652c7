"""What a job costs where one worker has several databases: CPU, beside one.

python -m bench.nodes --nodes 1,2,4 --jobs 20000 --rounds 3

Every database has a server of its own, the same number of jobs, and brings the same
number of slots to the one worker. Measured is the processor time of all servers and of
the worker, from the first claim to the last report; printed are medians, and their
ratio to one database. On one machine that is the cost of a job, not the speed of a
cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg

import pulse
from tools.servers import Server, primary

TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS = {"max_wal_size": "1GB", "synchronous_commit": "off"}
FILL = (
    "SELECT count(*) FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[%s]))"
)
PER_CALL = 1000


@dataclass(frozen=True)
class Cost:
    """Microseconds of a job."""

    servers: float
    worker: float

    @property
    def both(self) -> float:
        return self.servers + self.worker


def times(pid: int) -> tuple[int, list[int]]:
    """Ticks that a process and its ended children ran, and its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), [int(field) for field in fields[11:15]]


def children(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if times(int(entry.name))[0] == pid:
                    found.add(int(entry.name))
    return found


def processor(server: Server) -> float:
    """Seconds that all processes of a server have run, the ended ones included."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    while True:
        pids = children(postmaster)
        with contextlib.suppress(OSError):
            ticks = sum(sum(times(pid)[1]) for pid in (postmaster, *pids))
            # The times of one that ended meanwhile would be lost, or counted twice.
            if children(postmaster) == pids:
                return ticks / TICKS


def measure(servers: list[Server], jobs: int, slots: int) -> Cost:
    names = [server.create(product="extension") for server in servers]
    dsns = [server.dsn(name) for server, name in zip(servers, names, strict=True)]
    for number, dsn in enumerate(dsns, 1):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pulse.set_node(%s)", (number,))
            for _ in range(jobs // PER_CALL):
                connection.execute(FILL, (PER_CALL,))
            connection.execute("CHECKPOINT")
    todo = jobs // PER_CALL * PER_CALL * len(servers)
    # Upkeep costs by the second, and on one machine N servers take N times as long.
    worker = pulse.Worker(dsns, concurrency=slots * len(servers), tick=False)
    done = 0

    @worker.handle("k")
    async def k() -> None:
        nonlocal done
        done += 1

    before, own = sum(map(processor, servers)), time.process_time()
    thread = threading.Thread(target=worker.run)
    thread.start()
    while done < todo:
        time.sleep(0.02)
    worker.stop()
    thread.join()
    used, own = sum(map(processor, servers)) - before, time.process_time() - own
    for server, name in zip(servers, names, strict=True):
        problems = server.psql(name, "-c", "SELECT * FROM pulse.check()")
        assert problems == "", problems
        server.drop(name)
    return Cost(1e6 * used / todo, 1e6 * own / todo)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--jobs", type=int, default=20_000, help="in each database")
    parser.add_argument("--slots", type=int, default=50, help="for each database")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    counts = [int(n) for n in chosen.nodes.split(",")]
    costs: dict[int, list[Cost]] = {n: [] for n in counts}
    with contextlib.ExitStack() as closing:
        servers = [
            closing.enter_context(Server(primary(), SETTINGS))
            for _ in range(max(counts))
        ]
        for turn in range(chosen.rounds):
            for n in counts if turn % 2 == 0 else counts[::-1]:
                costs[n].append(measure(servers[:n], chosen.jobs, chosen.slots))
    middle = {
        n: Cost(median(c.servers for c in every), median(c.worker for c in every))
        for n, every in costs.items()
    }
    first = middle[counts[0]]
    if chosen.json:
        found = {
            n: {"cpu": c.both, "ratio": c.both / first.both} for n, c in middle.items()
        }
        print(json.dumps(found))
        return
    print("databases  servers µs  worker µs  together  ratio")
    for n, cost in middle.items():
        print(
            f"{n:9}  {cost.servers:10.1f}  {cost.worker:9.1f}  {cost.both:8.1f}"
            f"  {cost.both / first.both:5.2f}"
        )


if __name__ == "__main__":
    main()
