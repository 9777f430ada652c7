"""Every verb that moves a job, in every state, against every kind of lane.

The model (test_state_machine.py) does it without chance: a job in each state, the verb
on each of them, and then all that is left runs to its end. After each step the database
says what the model says, and what claims start is judged by the promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Database
from tests.engine.life import FINISHED, Scratch
from tests.engine.test_state_machine import Life
from tools.servers import Server

LANES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fair": {"fair": True},
    "group_slots": {"group_slots": 1},
    "in_order": {"in_order": True},
    "max_slots": {"max_slots": 2},
    "rate": {"rate": 6},
    "group_rate": {"group_rate": 3},
    "kind_rate": {},
}
REPORTS = ("complete", "fail", "fatal", "release", "snooze", "wait_for", "reap", "ack")
REMOVALS = ("prune", "delete_job", "discard")
CONFLICTS = ("skip", "error", "replace", "follow", "newest")
OPERATORS = (
    *("cancel", "force", "retry", "run_now", "reschedule", "now", "reprioritize"),
    *("same priority", "move", "approve", "reject", "rerun"),
)
VERBS = (*REPORTS, *REMOVALS, *CONFLICTS, *OPERATORS, "expire", "spawn", "set_lane")


@pytest.fixture(scope="module")
def scratch(server: Server) -> Iterator[Scratch]:
    made = Database(server, server.create(product="extension"))
    yield Scratch(made.connect)
    made.close()


@pytest.fixture
def life(scratch: Scratch) -> Life:
    Life.scratch = scratch
    Life.report = None
    return Life()


def prepare(life: Life, keyed: bool) -> dict[str, int]:
    """A job in each state. Those that are in line or run are of one group."""
    made: dict[str, int] = {}

    def new(state: str, group: str = "g", **options: Any) -> int:
        key = f"key {state}" if keyed else None
        job = life.do_enqueue("a", group=group, key=key, **options)
        assert job is not None
        made[state] = job
        return job

    def run(state: str, group: str) -> int:
        job = new(state, group)
        assert life.do_claim("m", 1) == [job]
        return job

    life.do_complete(run("completed", "c"))
    life.do_fail(run("dead", "d"), fatal=True)
    life.do_fail(run("retrying", "r"))
    life.do_give_back(run("snoozed", "s"), "snooze")
    run("running", "n")
    life.do_give_back(run("back", "g"), "release")
    new("ready")
    new("another ready", "r")
    new("more ready", "n")
    new("scheduled", delay=1)
    new("expiring", expires=3)
    new("awaiting_approval", approval=True)
    life.do_cancel(new("cancelled"), False, False)
    upstream = life.do_enqueue("b", lane="o", delay=5)
    assert upstream is not None
    made["upstream"] = upstream
    made["blocked"] = life.do_enqueue_after([upstream], group="g")
    life.the_database_agrees()
    return made


def act(life: Life, verb: str, job: int, n: int) -> None:
    """The verb on one job, by itself or by a filter in turn."""
    state = life.jobs[job].state
    if verb in REPORTS:
        if state == "running":
            report(life, verb, job)
    elif verb in REMOVALS:
        if state in FINISHED:
            life.do_remove(job, verb)
    elif verb in CONFLICTS:
        if key := life.jobs[job].key:
            mode = "cancel" if verb == "newest" else verb
            life.do_enqueue(
                "a", group="g", key=key, on_conflict=mode, delay=n % 2 or None
            )
    elif verb == "same priority":
        life.do_verb("reprioritize", job, bool(n % 2), life.jobs[job].priority)
    elif verb == "now":
        life.do_verb("reschedule", job, bool(n % 2), 0)
    elif verb in OPERATORS:
        life.do_verb(verb, job, bool(n % 2), 1)
    elif verb == "spawn" and state == "running":
        life.do_spawn(job, 2, "m", "g")


def report(life: Life, verb: str, job: int) -> None:
    reports: dict[str, Callable[[], object]] = {
        "complete": lambda: life.do_complete(job),
        "fail": lambda: life.do_fail(job),
        "fatal": lambda: life.do_fail(job, fatal=True),
        "release": lambda: life.do_give_back(job, "release"),
        "snooze": lambda: life.do_give_back(job, "snooze"),
        "wait_for": lambda: life.do_wait_for(job, None),
        "reap": lambda: life.do_reap(job),
        "ack": lambda: life.do_ack_cancel(job),
    }
    if verb == "ack":
        life.do_cancel(job, False, False)
    reports[verb]()


@pytest.mark.parametrize("lane", list(LANES))
@pytest.mark.parametrize("verb", VERBS)
def test_verb_keeps_the_promises_in_the_lane(life: Life, verb: str, lane: str) -> None:
    for name in ("m", "o"):
        life.do_set_lane(name, {"enabled": True})
    life.do_set_lane("m", LANES[lane])
    if lane == "kind_rate":
        life.do_set_kind("a", 8)
    made = prepare(life, keyed=verb in CONFLICTS)
    if verb == "expire":
        life.do_pass(4)
    elif verb == "set_lane":
        for other in LANES.values():
            life.do_set_lane("m", other)
            life.the_database_agrees()
    for n, job in enumerate(made.values()):
        if job in life.jobs:
            act(life, verb, job, n)
            life.the_database_agrees()
    life.drain()
