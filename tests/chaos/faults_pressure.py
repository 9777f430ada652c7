"""Faults that break nothing, and under which everything has to go on."""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.chaos.cluster import DATABASE
from tests.chaos.faults import HURT_WITHIN, Impossible, World, stopped, until
from tests.chaos.supervise import Member

# The newest tick and the newest claim that were committed.
NEWEST = """
SELECT
    (SELECT max(u.version) FROM pulse_internal.upkeep_run AS u WHERE u.step = ANY (%s)),
    greatest(
        (SELECT max(l.lease) FROM pulse_internal.lease AS l),
        (SELECT max(f.lease) FROM pulse_internal.finished AS f)
    )
"""
# A tick with something to do, which takes longer than the shorter limits.
WAVE = """
SELECT count(*) FROM pulse.enqueue_many(
    'noop', array_fill('{}'::jsonb, ARRAY[2000]), lane => 'bulk', delay => '1 second'
)
"""
RECONNECT = """
SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
    AND a.backend_type = 'client backend'
"""
HOLD = """
SELECT pulse.enqueue('noop', %s, lane => 'hostile', unique_key => %s,
    unique_for => '1 second')
"""
USED = """
SELECT 1 FROM pulse_internal.job_key AS k WHERE k.unique_key LIKE 'held-%%'
HAVING count(*) = count(*) FILTER (WHERE k.expires_at < clock_timestamp())
"""
# Keys that have expired are pruned by the next tick, as if their time had come.
SWEEPS = ("retention", "sweep")
SWEEP = f"""
UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '1 hour'
WHERE step IN {SWEEPS}
"""
SESSIONS = 3
# Every tick writes there, with the locks of its steps in hand, and waits meanwhile.
KEEP_TICKS = "LOCK TABLE pulse_internal.upkeep_run IN SHARE MODE"
TICKING = """
SELECT a.application_name FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'
    AND a.query LIKE '%%pulse.tick()%%'
"""
# Shorter than the lock_timeout of a tick, which would end its step.
KEEP_FOR = 4.0


def go_on(
    world: World,
    name: str,
    detail: str,
    seconds: float,
    turns: Sequence[str] = ("due",),
) -> None:
    """Wait so long, and for a tick and a claim; the checker learns what was missed."""
    since = time.monotonic()

    def newest() -> dict[str, int]:
        [(tick, claim)] = world.ask(NEWEST, list(turns))
        return {"tick": tick, "claim": claim}

    before = newest()
    missed = set(before)

    def moved() -> bool:
        now = newest()
        missed.difference_update({what for what in before if now[what] != before[what]})
        return not missed

    until(moved, HURT_WITHIN)
    waited = time.monotonic() - since
    world.note.fault(name, detail, waited=waited, missed=sorted(missed))
    time.sleep(max(0.0, seconds - waited))


def statement_timeout(world: World, chance: random.Random) -> str:
    """Every session of every role has a time limit, and a wave of jobs is due."""
    limit = f"{chance.choice([100, 200, 400])} ms"
    with world.cluster.steady:
        try:
            world.tell(WAVE)
            world.tell(f"ALTER DATABASE {DATABASE} SET statement_timeout = '{limit}'")
            world.tell(RECONNECT)
            go_on(world, "statement_timeout", limit, chance.uniform(2, 4))
        finally:
            world.tell(f"ALTER DATABASE {DATABASE} RESET statement_timeout")
            world.tell(RECONNECT)
    return limit


def clock_step(world: World, chance: random.Random) -> str:
    """Some steps are shorter than a lease, one is longer than go_on waits."""
    clock = world.cluster.clock
    if clock is None:
        raise Impossible("there is no C compiler")
    # What was put off by a clock that is ahead is waited for when it is back.
    ahead = chance.choice([-40.0, -5.0, -2.0, 2.0, 5.0])

    def step(by: float) -> None:
        since, done = clock.set_ahead(by)
        world.note.fault("clock", f"{by:+.1f} s", ahead=by, since=since, until=done)

    # PostgreSQL's own promotion may wait for a clock that has stepped back.
    with world.cluster.steady:
        step(ahead)
        try:
            go_on(world, "clock_step", f"{ahead:+.1f} s", chance.uniform(2, 4))
        finally:
            step(0.0)
        go_on(world, "clock_step", f"{ahead:+.1f} s and back", 0)
    return f"{ahead:+.1f} s and back"


@dataclass
class Held:
    """A transaction of a producer that takes its time."""

    connection: psycopg.Connection[Any]
    jobs: dict[str, int]


def freeze_in_tick(world: World, chance: random.Random) -> str:
    """Stop a worker while the server runs its tick; other sessions still tick."""
    with (
        world.cluster.steady,
        contextlib.ExitStack() as frozen,
        contextlib.suppress(psycopg.OperationalError),
    ):
        with world.cluster.connect() as connection:
            connection.execute("BEGIN")
            connection.execute(KEEP_TICKS)
            found = list[Member]()

            def hit() -> bool:
                found[:] = ticking(world)
                return bool(found)

            if not until(hit, KEEP_FOR):
                return ""
            member = frozen.enter_context(world.fleet.one_of(found, chance))
            frozen.enter_context(stopped(world, member))
            connection.execute("ROLLBACK")
        go_on(world, "freeze_in_tick", member.name, chance.uniform(2, 4))
        return member.name
    return ""


def ticking(world: World) -> list[Member]:
    """The workers whose tick waits in the server."""
    names = {name for (name,) in world.ask(TICKING)}
    return [m for m in world.fleet.workers if f"pulse listener {m.name}" in names]


def hold_open(world: World, chance: random.Random) -> str:
    """Producers use keys that have just expired once more, and then do nothing."""
    seconds = chance.uniform(1, 3)
    with world.cluster.steady, contextlib.ExitStack() as closing:
        for each in hold_all(world, closing):
            end(world, each, keep=True)
        until(lambda: world.ask(USED), 5)
        held = hold_all(world, closing)
        world.tell(SWEEP)
        go_on(world, "hold_open", f"{len(held)} sessions", seconds, SWEEPS)
        for each in held:
            end(world, each, keep=chance.random() < 0.5)
    return f"{len(held)} transactions, {seconds:.1f} s"


def hold_all(world: World, closing: contextlib.ExitStack) -> list[Held]:
    keys = [[f"held-{n}-{k}" for k in range(3)] for n in range(SESSIONS)]
    return [each for some in keys for each in hold(world, closing, some)]


def hold(
    world: World, closing: contextlib.ExitStack, keys: Sequence[str]
) -> Iterator[Held]:
    jobs: dict[str, int] = {}
    try:
        connection = psycopg.connect(world.cluster.routes()["direct"])
        closing.callback(connection.close)
        for key in keys:
            op = str(uuid.uuid4())
            world.note.enqueue_try(op, "noop", "hostile", unique_key=key)
            jobs[op] = 0
            values = json.dumps({"op": op}), key
            row = connection.execute(HOLD, values).fetchone()
            assert row is not None
            jobs[op] = row[0]
        yield Held(connection, jobs)
    except psycopg.Error:
        for op in jobs:
            world.note.enqueue_rolled_back(op)


def end(world: World, held: Held, keep: bool) -> None:
    """Commit late, or not at all."""
    note = world.note
    try:
        if keep:
            held.connection.commit()
        else:
            held.connection.rollback()
    except psycopg.Error:
        for op in held.jobs:
            (note.enqueue_unknown if keep else note.enqueue_rolled_back)(op)
        return
    for op, job in held.jobs.items():
        if keep:
            note.enqueue_ack(op, job)
        else:
            note.enqueue_rolled_back(op)
