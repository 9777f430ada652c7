"""An operator who never rests: pauses, drains, resizes, cancels, moves, retries.

python -m tests.chaos.operators
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg

from tests.chaos import process

LANES = ("bulk", "narrow", "serial", "long", "tenants", "orders", "metered")
SCHEDULES = {"all": "every-all", "last": "every-last", "skip": "every-skip"}

# Settings of the run: short leases, so that a fault outlives them, and a long memory,
# but for a lane in which keys are used again.
SETUP = """
SELECT pulse.set_lane(name, lease_for => '3 seconds', cancel_grace => '3 seconds',
    retain_completed => '7 days', retain_cancelled => '7 days', retain_dead => '7 days',
    max_slots => slots)
FROM (VALUES ('default', 0), ('bulk', 0), ('narrow', 4), ('serial', 1), ('long', 0))
    AS l (name, slots);
SELECT pulse.set_lane('tenants', lease_for => '3 seconds', cancel_grace => '3 seconds',
    retain_completed => '7 days', retain_cancelled => '7 days', retain_dead => '7 days',
    group_slots => 2);
SELECT pulse.set_lane('orders', lease_for => '3 seconds', cancel_grace => '3 seconds',
    retain_completed => '7 days', retain_cancelled => '7 days', retain_dead => '7 days',
    in_order => true);
SELECT pulse.set_lane('metered', lease_for => '3 seconds', cancel_grace => '3 seconds',
    retain_completed => '7 days', retain_cancelled => '7 days', retain_dead => '7 days',
    rate => 40, rate_per => '1 second', group_slots => 9, group_rate => 10,
    group_rate_per => '1 second');
SELECT pulse.set_lane('hostile', lease_for => '3 seconds',
    retain_completed => '1 second');
SELECT pulse.set_kind(kind, backoff => 'fixed', backoff_base => '300 ms')
FROM unnest('{noop,news,flaky,nap,crunch,slow,ordered,long,stubborn}'::text[]
    || '{fork,join,saga}'::text[]) AS kind;
SELECT pulse.set_kind('news', rate => 20, rate_per => '1 second');
"""
SCHEDULE = """
SELECT pulse.schedule(%(name)s, 'noop',
    payload => jsonb_build_object('op', 'schedule:' || %(name)s), every => '2 seconds',
    lane => 'bulk', catch_up => %(catch_up)s)
"""


class Operator:
    def __init__(self) -> None:
        self.random = process.chance()
        self.note = process.recorder()
        self.connection: psycopg.Connection[Any] | None = None
        self.stopping = False
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        for catch_up, name in SCHEDULES.items():
            while not self.stopping and not self.act(
                "schedule", SCHEDULE, name=name, catch_up=catch_up
            ):
                time.sleep(0.2)
        verbs: list[tuple[int, Callable[[], object]]] = [
            (4, self.pause_lane), (1, self.pause_all), (4, self.drain),
            (6, self.resize), (6, self.cancel), (3, self.force), (6, self.reprioritize),
            (4, self.retry), (3, self.move), (6, self.approve), (1, self.reject),
            (2, self.schedules), (2, self.where),
        ]  # fmt: skip
        while not self.stopping:
            weights, choices = zip(*verbs, strict=True)
            self.random.choices(choices, weights)[0]()
            time.sleep(self.random.uniform(0.05, 0.4))

    # -- talking ----------------------------------------------------------------------

    def act(self, verb: str, query: str = "", **args: Any) -> bool:
        """One verb, written down before and after; False when it was not answered."""
        if not query:
            named = ", ".join(f"{name} => %({name})s" for name in args)
            query = f"SELECT * FROM pulse.{verb}({named})"
        self.note.control_try(verb, **args)
        try:
            self.ask(query, args)
        except psycopg.Error as error:
            self.refused(verb, error, args)
            return False
        self.note.control_ack(verb, **args)
        return True

    def ask(self, query: str, args: Any = None) -> list[tuple[Any, ...]]:
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(process.dsn(), autocommit=True)
        return self.connection.execute(query.encode(), args).fetchall()

    def refused(self, verb: str, error: psycopg.Error, args: dict[str, Any]) -> None:
        """The world may change under an operator; a bug of pulse is another thing."""
        code = error.sqlstate or ""
        if code.startswith("PU"):
            what = "bug" if code.startswith("PU9") else "control_refused"
            self.note.note(what, verb=verb, args=args, code=code, error=str(error))
        else:
            if self.connection is not None:
                self.connection.close()
            self.connection = None
            time.sleep(0.1)

    def one_of(self, table: str) -> int | None:
        """Some job that stands in this table just now."""
        try:
            rows = self.ask(f"SELECT job FROM pulse_internal.{table} LIMIT 50")
        except psycopg.Error as error:
            self.refused("look", error, {})
            return None
        return int(self.random.choice(rows)[0]) if rows else None

    # -- verbs ------------------------------------------------------------------------

    def insist(self, verb: str, **args: Any) -> None:
        """A hold is taken back also when the answer to that is lost."""
        while not self.act(verb, **args) and not self.stopping:
            time.sleep(0.1)

    def pause_lane(self) -> None:
        lane = self.random.choice(LANES)
        self.act("pause", holder="night", lane=lane)
        time.sleep(self.random.uniform(0.1, 1.5))
        self.insist("resume", holder="night", lane=lane)

    def pause_all(self) -> None:
        self.act("pause", holder="everything")
        self.act("pause", holder="another holder")
        time.sleep(self.random.uniform(0.1, 0.7))
        self.insist("resume", holder="everything")
        time.sleep(self.random.uniform(0.1, 0.4))
        self.insist("resume", holder="another holder")

    def drain(self) -> None:
        lane = self.random.choice(LANES)
        self.act("drain_lane", lane=lane)
        time.sleep(self.random.uniform(0.1, 1.5))
        self.insist("resume_lane", lane=lane)

    def resize(self) -> None:
        n = self.random.randint(1, 6)
        choices: list[tuple[str, dict[str, Any]]] = [
            ("set_lane", {"name": "narrow", "max_slots": n}),
            ("set_lane", {"name": "tenants", "group_slots": n}),
            ("set_lane", {"name": "metered", "rate": 10 * n}),
            ("set_kind", {"kind": "news", "rate": 5 * n}),
        ]
        verb, change = self.random.choice(choices)
        self.act(verb, **change)

    def with_job(self, tables: list[str], verb: str, **args: Any) -> None:
        job = self.one_of(self.random.choice(tables))
        if job is not None:
            self.act(verb, job_id=job, **args)

    def cancel(self) -> None:
        self.with_job(["ready", "waiting", "lease", "blocked"], "cancel")

    def force(self) -> None:
        self.with_job(["lease"], "cancel", force=True)

    def reprioritize(self) -> None:
        priority = self.random.choice([-1, 0, 5, 9])
        places = ["ready", "waiting", "lease", "blocked"]
        self.with_job(places, "reprioritize", priority=priority)

    def retry(self) -> None:
        self.with_job(["finished WHERE state <> 'completed'"], "retry")

    def move(self) -> None:
        places = ["ready", "waiting", "blocked"]
        self.with_job(places, "move", lane=self.random.choice(LANES))

    def approve(self) -> None:
        self.act("approve_where", filter='{"state": "awaiting_approval"}', max_jobs=20)

    def reject(self) -> None:
        self.with_job(["approval"], "reject")

    def schedules(self) -> None:
        name = self.random.choice(list(SCHEDULES.values()))
        if self.act("pause_schedule", name=name):
            time.sleep(self.random.uniform(0.5, 3))
            self.insist("resume_schedule", name=name)

    def where(self) -> None:
        self.act("cancel_where", filter='{"lane": "narrow"}', max_jobs=3)
        self.act("retry_where", filter='{"state": "cancelled"}', max_jobs=10)


def main() -> None:
    process.die_with_parent()
    Operator().run()


if __name__ == "__main__":
    main()
