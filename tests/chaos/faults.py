"""The faults, one function each: break something, wait until it has hurt, repair it.

Each takes the world and its own chance, and returns what it did in words. What cannot
be done on this machine raises Impossible, and the report says so.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from tests.chaos.cluster import Cluster
from tests.chaos.history import Recorder
from tests.chaos.supervise import Fleet, Member

HURT_WITHIN = 25.0


class Impossible(Exception):
    """This fault needs something that is not here."""


@dataclass
class World:
    cluster: Cluster
    fleet: Fleet
    note: Recorder

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """A look as superuser; the session may die of another fault."""
        while True:
            try:
                with self.cluster.connect() as connection:
                    return connection.execute(query.encode(), values).fetchall()
            except psycopg.OperationalError:
                time.sleep(0.1)

    def tell(self, query: str) -> None:
        """The same, of something that is to be done, until it is done."""
        while True:
            try:
                with self.cluster.connect() as connection:
                    connection.execute(query.encode())
                    return
            except psycopg.OperationalError:
                time.sleep(0.1)


Fault = Callable[[World, random.Random], str]


def until(true: Callable[[], object], within: float) -> bool:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# -- processes ------------------------------------------------------------------------


def kill_worker(world: World, chance: random.Random) -> str:
    """kill -9: claimed, running and unreported jobs are left behind."""
    with world.fleet.one_of(world.fleet.workers, chance) as member:
        return kill(member)


def kill_producer(world: World, chance: random.Random) -> str:
    with world.fleet.one_of(world.fleet.producers, chance) as member:
        return kill(member)


def kill(member: Member) -> str:
    name = member.name
    member.signal(signal.SIGKILL)
    return name


@contextlib.contextmanager
def stopped(world: World, member: Member) -> Iterator[None]:
    """SIGSTOP for the length of the block; the checker learns from when to when."""
    name, since = member.name, time.time()
    member.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        woken = time.time()
        member.signal(signal.SIGCONT)
        world.note.fault("stopped", name, stopped=name, since=since, until=woken)


def freeze_worker(world: World, chance: random.Random) -> str:
    """Stop a worker until its leases were taken away, then let the zombie go on."""
    deadline = time.monotonic() + HURT_WITHIN
    while time.monotonic() < deadline:
        with world.fleet.one_of(world.fleet.workers, chance) as member:
            name = member.name
            until(partial(holds, world, name), 1)
            with stopped(world, member):
                leases = holds(world, name)
                # None: they were short, and told of meanwhile. Another one, then.
                if leases and until(partial(are_gone, world, leases), HURT_WITHIN):
                    return f"{name}, {len(leases)} leases lost"
    return ""


def holds(world: World, worker: str) -> list[int]:
    rows = world.ask("SELECT lease FROM pulse_internal.lease WHERE worker = %s", worker)
    return [row[0] for row in rows]


def are_gone(world: World, leases: list[int]) -> bool:
    return not world.ask(
        "SELECT 1 FROM pulse_internal.lease WHERE lease = ANY (%s)", leases
    )


def deploy(world: World, chance: random.Random) -> str:
    """A worker ends in good order and another version takes its place."""
    choice = [
        m for m in world.fleet.workers if m.label.startswith(("threads", "async"))
    ]
    with world.fleet.one_of(choice, chance) as member:
        old, running = member.version, member.running
        member.version = 3 - old
        # News has to be handled by a worker when all of this is over.
        if all(m.version == 1 for m in choice):
            member.version = 2
        member.signal(signal.SIGTERM)
        until(lambda: running is None or running.poll() is not None, HURT_WITHIN)
        return f"{member.label} from version {old} to {member.version}"


# -- sessions -------------------------------------------------------------------------

TERMINATE = """
SELECT a.query, pg_terminate_backend(a.pid) FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
    AND a.backend_type = 'client backend' AND a.query ~ %s
    AND (a.state = 'active' OR a.state = %s)
ORDER BY md5(a.pid::text || %s) LIMIT 1
"""


def terminate(pattern: str, state: str = "active") -> Fault:
    """End a session that is in the middle of such a statement."""

    def fault(world: World, chance: random.Random) -> str:
        salt, found = str(chance.random()), list[tuple[Any, ...]]()

        def hit() -> bool:
            found[:] = world.ask(TERMINATE, pattern, state, salt)
            return bool(found)

        if not until(hit, HURT_WITHIN):
            return ""
        return " ".join(str(found[0][0]).split())[:60]

    return fault


# -- lines ----------------------------------------------------------------------------


def proxy_stall(world: World, chance: random.Random) -> str:
    """Nothing passes, nothing is closed, for about as long as a lease."""
    seconds = chance.uniform(1, 6)
    for proxy in world.cluster.proxies:
        proxy.stall()
    time.sleep(seconds)
    for proxy in world.cluster.proxies:
        proxy.flow()
    return f"{seconds:.1f} s"


def proxy_cut(world: World, chance: random.Random) -> str:
    cut = list[int]()

    def hit() -> bool:
        cut[:] = [proxy.cut() for proxy in world.cluster.proxies]
        return any(cut)

    return f"{sum(cut)} lines" if until(hit, HURT_WITHIN) else ""


def proxy_delay(world: World, chance: random.Random) -> str:
    delay = chance.uniform(0.02, 0.3)
    for proxy in world.cluster.proxies:
        proxy.delay(delay)
    time.sleep(chance.uniform(1, 4))
    for proxy in world.cluster.proxies:
        proxy.delay(0)
    return f"{delay * 1000:.0f} ms each way"


def bouncer_restart(world: World, chance: random.Random) -> str:
    bouncer = world.cluster.bouncer
    if bouncer is None:
        raise Impossible("there is no PgBouncer")
    with world.cluster.steady:
        bouncer.restart()
    return "every line dropped"
