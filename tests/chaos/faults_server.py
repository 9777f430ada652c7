"""The faults of the server itself."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import asdict

import psycopg

from tests.chaos import faults, faults_pressure, hostile
from tests.chaos.faults import Fault, Impossible, World, until

STORM = 2.5
FULL = "No space left on device"
LOCKS = (
    "LOCK TABLE pulse_internal.{table} IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE pulse_internal.{table} IN SHARE ROW EXCLUSIVE MODE",
    "LOCK TABLE pulse_internal.{table} IN SHARE MODE",
    "SELECT count(*) FROM"
    " (SELECT 1 FROM pulse_internal.{table} LIMIT 500 FOR UPDATE) AS l",
)
TABLES = ("ready", "lease", "waiting", "finished", "job_key", "lane", "hold")


def crash(world: World, chance: random.Random) -> str:
    """pg_ctl stop -m immediate, and recovery from the log."""
    world.cluster.crash()
    return "recovered"


def failover(world: World, chance: random.Random) -> str:
    world.cluster.failover(split=False)
    return "the primary was shot, then the standby promoted"


def failover_split(world: World, chance: random.Random) -> str:
    world.cluster.failover(split=True)
    return "the standby was promoted, then the primary shot"


def failover_async(world: World, chance: random.Random) -> str:
    """A standby that is behind is promoted: what it never saw is lost."""
    lost, ended = world.cluster.failover_async(chance.uniform(0.3, 1.5))
    world.note.fault("loss", lost=[asdict(each) for each in lost], until=ended)
    return f"{len(lost)} transactions were lost" if lost else ""


def disk_full(world: World, chance: random.Random) -> str:
    """No page can be added to any table, until there is room again."""
    cluster = world.cluster
    with cluster.steady:
        disk, log = cluster.disk_of_primary(), cluster.primary.log
        if not disk.mounted:
            raise Impossible("a disk of one's own needs root and mount")
        before = log.stat().st_size
        disk.fill()

        def refused() -> bool:
            with log.open("rb") as file:
                file.seek(before)
                return FULL.encode() in file.read()

        try:
            hurt = until(refused, faults.HURT_WITHIN)
            time.sleep(chance.uniform(0.5, 3))
        finally:
            disk.free()
        died = not cluster.primary.running
        cluster.revive()
    if not hurt:
        return ""
    return "the server went down" if died else "the server stayed up"


def lock_storm(world: World, chance: random.Random) -> str:
    """Sessions that lock tables and rows of pulse in any order, and deadlock."""
    counts = [0, 0]
    end = time.monotonic() + STORM

    def storm(dice: random.Random) -> None:
        while time.monotonic() < end:
            try:
                with world.cluster.connect() as connection:
                    # Long enough for deadlocks to be found, short enough to end.
                    connection.execute("SET lock_timeout = '2s'")
                    while time.monotonic() < end:
                        with connection.transaction():
                            for _ in range(2):
                                lock = dice.choice(LOCKS)
                                text = lock.format(table=dice.choice(TABLES))
                                connection.execute(text.encode())
                                counts[0] += 1
                            time.sleep(dice.uniform(0.01, 0.2))
                        time.sleep(dice.uniform(0.01, 0.1))
            except psycopg.Error:
                counts[1] += 1

    threads = [
        threading.Thread(target=storm, args=(random.Random(chance.random()),))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{counts[0]} locks, {counts[1]} deadlocks, timeouts or lost sessions"


def hold_snapshot(world: World, stop: threading.Event) -> int:
    """Keep a snapshot open until stop; a new one after each death of the server."""
    taken = 0
    while not stop.is_set():
        with contextlib.suppress(psycopg.Error), world.cluster.connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            # The snapshot alone: a table looked at here would stay locked.
            connection.execute("SELECT pg_current_snapshot()")
            taken += 1
            world.note.fault("old_snapshot")
            while not stop.wait(0.5):
                connection.execute("SELECT 1")
    return taken


FAULTS: dict[str, Fault] = {
    "crash": crash,
    "failover": failover,
    "failover_split": failover_split,
    "failover_async": failover_async,
    "disk_full": disk_full,
    "lock_storm": lock_storm,
    "bouncer_restart": faults.bouncer_restart,
    "kill_worker": faults.kill_worker,
    "kill_producer": faults.kill_producer,
    "freeze_worker": faults.freeze_worker,
    "deploy": faults.deploy,
    "terminate_claim": faults.terminate(r"pulse\.(claim_batch|exchange)"),
    "terminate_complete": faults.terminate(r"pulse\.(complete|exchange)"),
    "terminate_enqueue": faults.terminate(r"pulse\.enqueue", "idle in transaction"),
    "terminate_random": faults.terminate(".", "idle"),
    "proxy_stall": faults.proxy_stall,
    "proxy_cut": faults.proxy_cut,
    "proxy_delay": faults.proxy_delay,
    "statement_timeout": faults_pressure.statement_timeout,
    "clock_step": faults_pressure.clock_step,
    "hold_open": faults_pressure.hold_open,
    "freeze_in_tick": faults_pressure.freeze_in_tick,
    "hostile_values": hostile.hostile_values,
}
