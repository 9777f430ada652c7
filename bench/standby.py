"""What a job costs a primary and its standby: CPU of both, WAL.

python -m bench.standby --jobs 50000 --rounds 3

Jobs are enqueued in batches of 1,000 and run by one worker with 100 slots; then the
standby has replayed all of it. Replay is one process, whatever the machine has: a
second divided by its time for a job is where a primary with a standby ends.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psycopg

import pulse
from bench.nodes import FILL, PER_CALL, SETTINGS, processor, times
from tests.chaos.cluster import Node
from tools.servers import primary

SLOTS = 100
REPLAYED = "SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{}'"
NOW = "SELECT pg_current_wal_lsn()"


@contextlib.contextmanager
def pair() -> Iterator[tuple[Node, Node]]:
    with contextlib.ExitStack() as closing:
        replicated = {"wal_level": "replica", "wal_keep_size": "1GB", **SETTINGS}
        leader = Node(primary(), replicated, waits_for="")
        closing.callback(leader.close)
        standby = Node(primary(), {}, source=leader, waits_for="")
        closing.callback(standby.close)
        yield leader, standby


def replay_time(standby: Node) -> float:
    """Seconds that the process has run which replays."""
    postmaster = int((standby.data / "postmaster.pid").read_text().split()[0])
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            name = (entry / "cmdline").read_text()
            if "startup" in name and times(int(entry.name))[0] == postmaster:
                return int((entry / "schedstat").read_text().split()[0]) / 1e9
    raise RuntimeError("nothing replays")


def work(dsn: str, jobs: int) -> None:
    worker = pulse.Worker(dsn, concurrency=SLOTS, tick=False)
    done = 0

    @worker.handle("k")
    async def k() -> None:
        nonlocal done
        done += 1

    thread = threading.Thread(target=worker.run)
    thread.start()
    while done < jobs:
        time.sleep(0.02)
    worker.stop()
    thread.join()


def measure(leader: Node, standby: Node, jobs: int) -> tuple[float, float, float]:
    """CPU µs of a job on the primary, of its replay, and bytes of WAL."""
    name = leader.create(product="extension")
    start = leader.psql(name, "-c", NOW).strip()
    standby.wait_until(REPLAYED.format(start))
    used, replayed = processor(leader), replay_time(standby)
    with psycopg.connect(leader.dsn(name), autocommit=True) as connection:
        for _ in range(jobs // PER_CALL):
            connection.execute(FILL, (PER_CALL,))
    work(leader.dsn(name), jobs)
    end = leader.psql(name, "-c", NOW).strip()
    standby.wait_until(REPLAYED.format(end))
    used, replayed = processor(leader) - used, replay_time(standby) - replayed
    written = leader.psql(name, "-c", f"SELECT '{end}'::pg_lsn - '{start}'")
    leader.drop(name)
    return 1e6 * used / jobs, 1e6 * replayed / jobs, float(written) / jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    jobs = max(1, chosen.jobs // PER_CALL) * PER_CALL
    with pair() as (leader, standby):
        rounds = [measure(leader, standby, jobs) for _ in range(chosen.rounds)]
    used, replayed, written = map(median, zip(*rounds, strict=True))
    print(f"primary  {used:8.1f} µs of CPU a job")
    print(f"replay   {replayed:8.1f} µs, in one process: {1e6 / replayed:,.0f} jobs/s")
    print(f"WAL      {written:8.0f} bytes: {written / replayed:,.0f} MB/s at that rate")


if __name__ == "__main__":
    main()
