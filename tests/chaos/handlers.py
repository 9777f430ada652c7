"""What jobs do: end well, badly, late, never, or in spite of everything.

The payload says how: {"op", "for": seconds, "bad": failures to come}. Each handler
writes down when its effect begins and how it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pulse
from pulse import Job, Task
from tests.chaos import process

STEP = 0.05


@contextlib.contextmanager
def effect(job: Job) -> Iterator[None]:
    note, outcome = process.recorder(), "returned"
    note.effect_begin(job.id, job.attempt, job.lease, job.kind, job.lane)
    try:
        yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        note.effect_end(job.id, job.attempt, job.lease, outcome)


def noop(job: Job) -> None:
    with effect(job):
        pass


async def noop_async(job: Job) -> None:
    with effect(job):
        pass


def slow(job: Job) -> float:
    with effect(job):
        time.sleep(job.payload["for"])
        return float(job.payload["for"])


async def slow_async(job: Job) -> float:
    with effect(job):
        await asyncio.sleep(job.payload["for"])
        return float(job.payload["for"])


def flaky(job: Job) -> None:
    with effect(job):
        if job.failures < job.payload["bad"]:
            if job.failures % 2:
                raise pulse.RetryIn(0.1, "not yet")
            raise ValueError("on purpose")


async def flaky_async(job: Job) -> None:
    flaky(job)


def fatal(job: Job) -> None:
    with effect(job):
        raise pulse.Fatal("never")


def nap(job: Job) -> None:
    with effect(job):
        if job.attempt <= job.payload["bad"]:
            raise pulse.Snooze(0.3)


def long(job: Job) -> str | None:
    """Longer than its lease; kept by heartbeats, and stops when told."""
    with effect(job):
        done = float((job.last_checkpoint or {}).get("done", 0))
        while done < job.payload["for"]:
            if not job.should_continue():
                return None
            time.sleep(STEP)
            done += STEP
            if int(done / STEP) % 20 == 0:
                job.progress(min(1.0, done / job.payload["for"]))
                job.checkpoint({"done": done})
        return "done"


async def long_async(job: Job) -> str:
    with effect(job):
        await asyncio.sleep(job.payload["for"])
        return "done"


def stubborn(job: Job) -> str:
    """Hears nothing: it goes on when its lease is long gone."""
    with effect(job):
        time.sleep(job.payload["for"])
        return "done"


def crunch(job: Job) -> int:
    """In a process, where a lost lease ends it with a signal."""
    with effect(job):
        until = time.monotonic() + job.payload["for"]
        n = 0
        while time.monotonic() < until:
            n += sum(range(1000))
        return n


# -- flows ----------------------------------------------------------------------------


def spawned(job: Job) -> list[dict[str, Any]]:
    """Jobs of many sorts, some of which spawn as well."""
    width, depth = job.payload["width"], job.payload["depth"]
    sorts: list[tuple[str, dict[str, Any]]] = [
        ("noop", {}),
        ("flaky", {"bad": 1}),
        ("fork", {"width": 2, "depth": depth - 1}) if depth else ("noop", {}),
    ]
    return [
        {
            **{"kind": kind, "lane": job.lane, "name": "spawned"},
            "payload": {"by": job.id, "n": n, **payload},
        }
        for n in range(width)
        for kind, payload in [sorts[n % len(sorts)]]
    ]


def fork(job: Job) -> int:
    with effect(job):
        return len(job.spawn("parts", spawned(job)))


async def fork_async(job: Job) -> int:
    with effect(job):
        return len(await job.spawn_async("parts", spawned(job)))


def join(job: Job) -> int:
    """Everything before it has ended, as well as it wants."""
    with effect(job):
        return joined(job, job.upstream())


async def join_async(job: Job) -> int:
    with effect(job):
        return joined(job, await job.upstream_async())


def joined(job: Job, upstream: list[pulse.Upstream]) -> int:
    wanted = {"completed"}
    if job.payload["policy"] == "run":
        # One that has ended once may have been retried since.
        wanted |= {"dead", "cancelled", "ready", "scheduled", "retrying", "running"}
        wanted |= {"blocked", "awaiting_approval"}
    for each in upstream:
        if each.state not in wanted:
            process.recorder().note(
                "bug",
                **{"verb": "upstream", "code": "early"},
                error=f"job {job.id} runs after {each.job_id}, which is {each.state}",
            )
    return len(upstream)


def token(job: Job, step: str) -> float:
    process.recorder().note("step", job_id=job.id, step=step, lease=job.lease)
    return random.random()


def saga(job: Job) -> dict[str, Any]:
    """Two steps, and between them a nap and a signal."""
    with effect(job):
        first = job.step("a", token, job, "a")
        job.sleep("nap", job.payload["for"])
        told = job.wait_for(f"go {job.payload['op']}", timeout=3600)
        return {"a": first, "told": told, "b": job.step("b", token, job, "b")}


async def saga_async(job: Job) -> dict[str, Any]:
    with effect(job):
        first = await job.step_async("a", token, job, "a")
        await job.sleep_async("nap", job.payload["for"])
        told = await job.wait_for_async(f"go {job.payload['op']}", timeout=3600)
        last = await job.step_async("b", token, job, "b")
        return {"a": first, "told": told, "b": last}


def threads(version: int) -> list[Task[[], object]]:
    """The old version does not know the kind news."""
    tasks = [
        *(Task("noop", noop), Task("slow", slow), Task("flaky", flaky)),
        *(Task("fatal", fatal), Task("nap", nap), Task("long", long)),
        *(Task("stubborn", stubborn), Task("ordered", slow)),
        *(Task("fork", fork), Task("join", join), Task("saga", saga)),
    ]
    if version > 1:
        tasks.append(Task("news", noop))
    return tasks  # type: ignore[return-value]


def coroutines(version: int) -> list[Task[[], object]]:
    tasks = [
        *(Task("noop", noop_async), Task("slow", slow_async)),
        *(Task("flaky", flaky_async), Task("long", long_async)),
        *(Task("ordered", slow_async), Task("fork", fork_async)),
        *(Task("join", join_async), Task("saga", saga_async)),
    ]
    if version > 1:
        tasks.append(Task("news", noop_async))
    return tasks  # type: ignore[return-value]


def processes(version: int) -> list[Task[[], object]]:
    return [Task("crunch", crunch, executor="process")]
