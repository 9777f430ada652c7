"""A small load, step by step, in which each promise matters once.

Unlike the long run it has no chance in it: transactions are held open where it hurts,
so a promise that is not kept is broken here every time.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.history import Recorder

Connection = psycopg.Connection[Any]
LIMIT = 60.0
PATIENCE = 3.0

ENQUEUE = """
    SELECT pulse.enqueue(
        %s, jsonb_build_object('op', %s::text), lane => %s, priority => %s,
        max_attempts => 2, group_key => 'tenant'
    )
"""
MANY = "SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[700]), lane => %s)"
CLAIM = """
    SELECT lease, job_id, attempt
    FROM pulse.claim_batch(%s, %s, %s, lease_for => %s::interval)
"""
VERBS = {
    "complete": "SELECT pulse.complete(%s)",
    "fail": "SELECT pulse.fail(%s, 'on purpose', retry_in => '0')",
    "snooze": "SELECT pulse.snooze(%s, '1 second')",
}
WAITING = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
AFTER = """
    SELECT pulse.enqueue(
        'k', jsonb_build_object('op', %s::text), lane => 'flow', after => %s::bigint[]
    )
"""
LEFT = """
    SELECT DISTINCT lane FROM pulse.jobs
    WHERE state NOT IN ('completed', 'dead', 'cancelled')
"""


def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.02)


class Run:
    """A claimed job."""

    def __init__(self, lane: str, lease: int, job: int, attempt: int) -> None:
        self.lane, self.lease, self.job, self.attempt = lane, lease, job, attempt


class SmallLoad:
    def __init__(self, connect: Callable[[], Connection], directory: Path) -> None:
        self.note = Recorder(directory / "load.jsonl", "load")
        self.one, self.two, self.three = connect(), connect(), connect()
        for connection in (self.one, self.two, self.three):
            connection.execute("SET statement_timeout = '60s'")

    def run(self) -> None:
        for call in (
            "pulse.set_lane('narrow', max_slots => 2)",
            "pulse.set_lane('serial', max_slots => 1)",
            "pulse.set_lane('tenants', group_slots => 2)",
            "pulse.set_lane('orders', in_order => true)",
            "pulse.set_lane('metered', rate => 3, rate_per => '1 second')",
            "pulse.set_lane('api', group_slots => 9, group_rate => 3,"
            " group_rate_per => '1 second')",
            "pulse.set_kind('k', backoff => 'none')",
            "pulse.set_kind('rare', rate => 3, rate_per => '1 second')",
            "pulse.schedule('beat', 'k', every => '1 second', lane => 'beat')",
            # The backstop that looks for lost jobs does its hourly run.
            "pulse.tick()",
        ):
            self.one.execute(f"SELECT {call}".encode())
        self.enqueue("zombie")
        [zombie] = self.claim(self.one, "zombie", lease_for="1 second")
        self.fill_the_slots()
        self.fill_the_group()
        self.wait_in_the_group()
        self.start_at_a_rate()
        self.run_in_order()
        self.fail_for_good()
        self.pause_in_mid_claim()
        self.commit_late()
        self.wake_the_zombie(zombie)
        self.wait_for_the_schedule()
        self.run_flows()

    def run_flows(self) -> None:
        """What flows promise; also by themselves."""
        self.one.execute("SELECT pulse.set_kind('k', backoff => 'none')")
        self.wait_for_all()
        self.depend_on_what_ends_meanwhile()
        self.spawn_twice()
        self.remember()
        self.wait_for_a_signal()
        self.drain()
        self.note.close()

    # -- what clients do --------------------------------------------------------------

    def enqueue(self, lane: str, priority: int = 0, kind: str = "k") -> None:
        op = str(uuid.uuid4())
        self.note.enqueue_try(op, kind, lane, priority)
        [job] = self.ask(self.two, ENQUEUE, kind, op, lane, priority)
        self.note.enqueue_ack(op, job)

    def claim(
        self, connection: Connection, lane: str, n: int = 1, lease_for: str = "1 minute"
    ) -> list[Run]:
        runs = self.take(connection, lane, n, lease_for)
        self.begin(runs)
        return runs

    def take(
        self, connection: Connection, lane: str, n: int, lease_for: str = "1 minute"
    ) -> list[Run]:
        rows = connection.execute(CLAIM, ("w", lane, n, lease_for)).fetchall()
        return [Run(lane, *row) for row in rows]

    def begin(self, runs: list[Run]) -> None:
        for run in runs:
            self.note.effect_begin(run.job, run.attempt, run.lease, "k", run.lane)

    def report(self, verb: str, *runs: Run) -> None:
        for run in runs:
            try:
                self.two.execute(VERBS[verb].encode(), (run.lease,))
            except psycopg.Error as error:
                if error.sqlstate != "PU101":
                    raise
                self.note.verb_refused(verb, run.lease, run.job)
            else:
                self.note.verb_ack(verb, run.lease, run.job)

    def ask(self, connection: Connection, query: str, *values: object) -> list[Any]:
        return [row[0] for row in connection.execute(query.encode(), values)]

    # -- one promise after the other --------------------------------------------------

    def fill_the_slots(self) -> None:
        for _ in range(4):
            self.enqueue("narrow")
        meanwhile: list[Run] = []
        first = self.claim_around(
            "narrow", 2, lambda: meanwhile.extend(self.take(self.two, "narrow", 2))
        )
        self.begin(meanwhile)
        afterwards = self.claim(self.three, "narrow", 2)
        self.report("complete", *first, *meanwhile, *afterwards)

    def fill_the_group(self) -> None:
        for _ in range(4):
            self.enqueue("tenants")
        first = self.claim(self.one, "tenants", 3)
        meanwhile = self.claim(self.two, "tenants", 3)
        self.report("complete", *first, *meanwhile)
        self.report("complete", *self.claim(self.one, "tenants", 3))

    def wait_in_the_group(self) -> None:
        for _ in range(3):
            self.enqueue("orders")
        self.report("snooze", *self.claim(self.one, "orders"))
        self.report("complete", *self.claim(self.two, "orders"))

    def start_at_a_rate(self) -> None:
        for lane in ("metered", "api"):
            for _ in range(5):
                self.enqueue(lane)
            for _ in range(2):
                self.report("complete", *self.claim(self.one, lane, 3))
        for lane in ("one", "tenants"):
            for _ in range(3):
                self.enqueue(lane, kind="rare")
            self.report("complete", *self.claim(self.one, lane, 2))

    def claim_around(self, lane: str, n: int, work: Callable[[], object]) -> list[Run]:
        """A claim, open until work (on session two) has ended or waits for it."""
        self.one.execute("BEGIN")
        runs = self.take(self.one, lane, n)
        working = threading.Thread(target=work)
        working.start()
        pid = self.two.info.backend_pid
        until(lambda: not working.is_alive() or self.ask(self.three, WAITING, pid)[0])
        self.one.execute("COMMIT")
        working.join()
        self.begin(runs)
        return runs

    def run_in_order(self) -> None:
        for priority in (0, 5, 0, -5):
            self.enqueue("serial", priority)
        while runs := self.claim(self.three, "serial"):
            self.report("complete", *runs)

    def fail_for_good(self) -> None:
        self.enqueue("bad")
        while runs := self.claim(self.three, "bad"):
            self.report("fail", *runs)

    def pause_in_mid_claim(self) -> None:
        for _ in range(3):
            self.enqueue("held")
        first = self.claim_around(
            "held", 1, lambda: self.two.execute("SELECT pulse.pause('ann')")
        )
        self.report("complete", *first, *self.claim(self.three, "held"))
        self.two.execute("SELECT pulse.resume('ann')")

    def commit_late(self) -> None:
        """A job whose place in line is older than what others already claimed."""
        op = str(uuid.uuid4())
        self.note.enqueue_try(op, "k", "late")
        self.one.execute("BEGIN")
        [job] = self.ask(self.one, ENQUEUE, "k", op, "late", 0)
        self.two.execute(MANY, ("late",))
        while runs := self.claim(self.three, "late", 100):
            self.report("complete", *runs)
        self.one.execute("COMMIT")
        self.note.enqueue_ack(op, job)

    def wake_the_zombie(self, zombie: Run) -> None:
        until(lambda: sum(self.ask(self.three, "SELECT pulse.reap()")))
        heirs: list[Run] = []

        def claimed_again() -> bool:
            heirs.extend(self.claim(self.three, "zombie"))
            return bool(heirs)

        until(claimed_again)
        self.report("complete", zombie, *heirs)

    def wait_for_the_schedule(self) -> None:
        def often_enough() -> bool:
            self.three.execute("SELECT pulse.tick()")
            handled = "SELECT count(*) FROM pulse.schedule_runs"
            return bool(self.ask(self.three, handled)[0] >= 3)

        until(often_enough)
        self.three.execute("SELECT pulse.unschedule('beat')")

    def enqueue_after(self, connection: Connection, *after: int) -> int:
        op = str(uuid.uuid4())
        self.note.enqueue_try(op, "k", "flow", 0)
        [job] = self.ask(connection, AFTER, op, list(after))
        self.note.enqueue_ack(op, job)
        return int(job)

    def wait_for_all(self) -> None:
        first, second = (self.enqueue_after(self.two) for _ in range(2))
        self.enqueue_after(self.two, first, second)
        runs = self.claim(self.three, "flow", 2)
        for run in runs:
            self.report("complete", run)
            self.report("complete", *self.claim(self.three, "flow", 5))

    def depend_on_what_ends_meanwhile(self) -> None:
        """The end looks while the enqueue is not committed."""
        job = self.enqueue_after(self.two)
        self.one.execute("BEGIN")
        self.enqueue_after(self.one, job)
        self.report("complete", *self.claim(self.three, "flow"))
        self.one.execute("COMMIT")

    def spawn_twice(self) -> None:
        """Two attempts of one job; who waits for it waits for the spawned."""
        job = self.enqueue_after(self.two)
        self.enqueue_after(self.two, job)
        for verb in ("fail", "complete"):
            [run] = self.claim(self.three, "flow")
            spawn = (
                "SELECT pulse.spawn(%s, 's', jsonb_build_array(jsonb_build_object("
                "'kind', 'k', 'lane', 'flow', 'priority', -1,"
                " 'payload', jsonb_build_object('by', %s::bigint, 'n', 0))))"
            )
            self.ask(self.two, spawn, run.lease, job)
            self.report(verb, run)
        self.report("complete", *self.claim(self.three, "flow", 5))

    def remember(self) -> None:
        """A step of the first attempt is known to the second."""
        self.report("complete", *self.claim(self.three, "flow", 5))
        self.enqueue_after(self.two)
        for verb in ("fail", "complete"):
            [run] = self.claim(self.three, "flow")
            if not self.ask(self.two, "SELECT step FROM pulse.steps(%s)", run.lease):
                fields = {"job_id": run.job, "step": "a", "lease": run.lease}
                self.note.note("step", **fields)
                self.ask(self.two, "SELECT pulse.save_step(%s, 'a')", run.lease)
            self.report(verb, run)

    def wait_for_a_signal(self) -> None:
        self.enqueue_after(self.two)
        [run] = self.claim(self.three, "flow")
        wait = "SELECT verdict FROM pulse.wait_for(%s, 'go s', '1 hour', 's')"
        assert self.ask(self.two, wait, run.lease) == ["waiting"]
        self.ask(self.one, "SELECT pulse.signal('s')")
        self.note.note("signal_ack", signal="s")
        for run in self.claim(self.three, "flow"):
            assert self.ask(self.two, wait, run.lease) == ["received"]
            self.report("complete", run)

    def drain(self) -> None:
        """Until nothing is left, or nothing of it can be had for a while."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and (lanes := self.ask(self.three, LEFT)):
            for lane in lanes:
                if runs := self.claim(self.three, lane, 100):
                    self.report("complete", *runs)
                    end = time.monotonic() + PATIENCE
