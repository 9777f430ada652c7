"""A producer process: jobs of every sort, at a rate that catches up after an outage.

python -m tests.chaos.producers RATE
"""

from __future__ import annotations

import json
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg

import pulse
from tests.chaos import process

Job = dict[str, Any]


class Producer:
    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.random = process.chance()
        self.note = process.recorder()
        self.connection: psycopg.Connection[Any] | None = None
        self.stopping = False
        # Some of its jobs, for later ones to wait for; signals that are to be sent.
        self.known: deque[int] = deque(maxlen=40)
        self.unsent: deque[str] = deque()
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        began, made = time.monotonic(), 0
        ways: list[Callable[[], int]] = [
            *(self.many, self.transaction, self.keyed, self.flow, self.send)
        ]
        while not self.stopping:
            if made > self.rate * (time.monotonic() - began):
                time.sleep(0.01)
                continue
            try:
                if self.connection is None or self.connection.closed:
                    self.connection = psycopg.connect(process.dsn())
                made += self.random.choices(ways, weights=[2, 6, 1, 3, 6])[0]()
            except psycopg.Error:
                self.hang_up()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        time.sleep(0.05)

    # -- ways to enqueue --------------------------------------------------------------

    def many(self) -> int:
        """A list in one statement, which is a transaction of its own."""
        jobs = [self.job() for _ in range(self.random.randint(10, 60))]

        def work(connection: psycopg.Connection[Any]) -> list[int]:
            return pulse.enqueue_many(connection, jobs)

        return self.commit(jobs, work)

    def transaction(self) -> int:
        """A job that commits, or not, with a row of the application."""
        job = self.job()
        job["payload"]["app"] = True

        def work(connection: psycopg.Connection[Any]) -> list[int] | None:
            op = job["payload"]["op"]
            connection.execute("INSERT INTO chaos.app_row (op) VALUES (%s)", (op,))
            options = {k: v for k, v in job.items() if k not in ("kind", "payload")}
            found = pulse.enqueue(connection, job["kind"], job["payload"], **options)
            connection.execute(
                "UPDATE chaos.app_row SET job = %s WHERE op = %s", (found, op)
            )
            return None if self.random.random() < 0.05 else [found]

        return self.commit([job], work)

    def keyed(self) -> int:
        """One waiting or running job for each key: this one, or an earlier one."""
        job = self.job()
        job["unique_key"] = f"key-{self.random.randrange(20)}"

        def work(connection: psycopg.Connection[Any]) -> list[int]:
            row = connection.execute(
                "SELECT job_id, created FROM pulse.enqueue_one("
                "%(kind)s, %(payload)s, lane => %(lane)s, priority => %(priority)s,"
                " unique_key => %(unique_key)s)",
                {**job, "payload": json.dumps(job["payload"])},
            ).fetchone()
            assert row is not None
            return [row[0]]

        return self.commit([job], work)

    def flow(self) -> int:
        """A graph in one list; sometimes a signal comes first, or jobs of before."""
        jobs = self.graph()
        waiting = [j["payload"]["op"] for j in jobs if j["kind"] == "saga"]
        if self.known and self.random.random() < 0.3:
            many = min(len(self.known), self.random.choice([1, 3, 20]))
            jobs[0]["after"] = self.random.sample(list(self.known), many)
            jobs[0]["after_failed"] = "run"

        def work(connection: psycopg.Connection[Any]) -> list[int] | None:
            try:
                ids = pulse.enqueue_many(connection, jobs)
            except pulse.errors.NoSuchJob:
                # An asynchronous promotion lost a job of before.
                self.known.clear()
                return None
            return None if self.random.random() < 0.05 else ids

        made = self.commit(jobs, work)
        if made:
            self.unsent.extend(waiting)
        return made

    def send(self) -> int:
        """A signal, perhaps a second time: the first of a name counts."""
        assert self.connection is not None
        if not self.unsent:
            return 0
        op = self.unsent.popleft()
        name = f"go {op}"
        try:
            pulse.signal(self.connection, name, {"op": op})
            if self.random.random() < 0.1:
                self.connection.rollback()
                self.unsent.append(op)
                return 0
            self.connection.commit()
        except psycopg.Error:
            # Whether it was sent is not known: it is sent again.
            self.unsent.append(op)
            raise
        self.note.note("signal_ack", signal=name)
        return 0

    def commit(
        self,
        jobs: list[Job],
        work: Callable[[psycopg.Connection[Any]], list[int] | None],
    ) -> int:
        """Do work and write down what is known of it: kept, undone, or neither."""
        assert self.connection is not None
        ops = [job["payload"]["op"] for job in jobs]
        self.note.notes(
            {
                **{"what": "enqueue_try", "op": job["payload"]["op"]},
                **{name: job[name] for name in ("kind", "lane", "priority")},
                "unique_key": job.get("unique_key"),
            }
            for job in jobs
        )
        try:
            ids = work(self.connection)
        except psycopg.Error:
            # COMMIT was never sent.
            self.say("enqueue_rolled_back", ops)
            raise
        if ids is None:
            self.connection.rollback()
            self.say("enqueue_rolled_back", ops)
            return 0
        try:
            self.connection.commit()
        except psycopg.Error:
            self.say("enqueue_unknown", ops)
            raise
        self.note.notes(
            {"what": "enqueue_ack", "op": op, "job_id": job}
            for op, job in zip(ops, ids, strict=True)
        )
        self.known.extend(ids[-3:])
        return len(ids)

    def say(self, what: str, ops: list[str]) -> None:
        self.note.notes({"what": what, "op": op} for op in ops)

    # -- jobs -------------------------------------------------------------------------

    def job(self) -> Job:
        chance = self.random
        sorts: list[tuple[str, str, dict[str, Any]]] = [
            ("noop", "bulk", {}),
            ("news", "bulk", {}),
            ("flaky", "bulk", {"bad": chance.choice([1, 1, 2, 3, 5])}),
            ("fatal", "bulk", {}),
            ("nap", "bulk", {"bad": 1}),
            ("crunch", "bulk", {"for": 0.02}),
            ("slow", "narrow", {"for": chance.uniform(0, 0.1)}),
            ("flaky", "narrow", {"bad": 1}),
            ("ordered", "serial", {"for": 0.005}),
            ("flaky", "serial", {"bad": chance.choice([0, 0, 1])}),
            ("long", "long", {"for": chance.uniform(1, 6)}),
            ("stubborn", "long", {"for": chance.uniform(1, 6)}),
            ("gated", "bulk", {}),
            ("slow", "tenants", {"for": chance.uniform(0, 0.02)}),
            ("flaky", "tenants", {"bad": 1}),
            ("slow", "orders", {"for": chance.uniform(0, 0.02)}),
            ("flaky", "orders", {"bad": 1}),
            ("slow", "metered", {"for": 0}),
            ("news", "metered", {}),
        ]
        weights = [700, 70, 60, 5, 20, 15, 25, 5, 25, 5, 3, 1, 4]
        weights += [100, 10, 25, 3, 60, 30]
        kind, lane, payload = chance.choices(sorts, weights)[0]
        job: Job = {
            **{"kind": kind, "lane": lane, "priority": chance.choice([-1, 0, 0, 0, 5])},
            "payload": {"op": self.op(), **payload},
        }
        if chance.random() < 0.05:
            job["delay"] = chance.uniform(0.1, 3)
        if lane in ("tenants", "orders", "metered"):
            job["group_key"] = f"tenant {min(chance.randrange(20), 9)}"
        if kind == "gated":
            job |= {"kind": "noop", "requires_approval": True}
        return job

    def graph(self) -> list[Job]:
        """A first job, some that wait for it, a join of those, and what is always done.

        The first may spawn, so that the others wait for jobs that nobody knew of.
        """
        chance = self.random
        first, policy = (
            chance.choice(["noop", "fork", "fork", "flaky", "fatal"]),
            chance.choice(["cancel", "cancel", "hold", "run"]),
        )
        sorts: list[tuple[str, str, dict[str, Any]]] = [
            ("noop", "bulk", {}),
            ("slow", "tenants", {"for": 0.01}),
            ("slow", "narrow", {"for": 0.01}),
            ("flaky", "bulk", {"bad": 1}),
            ("fatal", "bulk", {}),
            ("saga", "bulk", {"for": chance.uniform(0.05, 1)}),
            ("fork", "bulk", {"width": 3, "depth": 0}),
        ]
        width = chance.choice([1, 3, 10, 60, 100])
        parts = chance.choices(sorts, [60, 10, 2, 10, 0.5, 8, 4], k=width)
        wide = {"width": chance.choice([1, 5, 20]), "depth": chance.choice([0, 1, 2])}
        nodes = [
            ("first", first, "bulk", {"bad": 1, **wide}, {}),
            *(
                ("part", kind, lane, payload, {"after": ["first"]})
                for kind, lane, payload in parts
            ),
            *(
                ("join", "join", "bulk", {"policy": each}, {"after": ["part"]})
                for each in (policy, "cancel")
            ),
            ("last", "join", "bulk", {"policy": "run"}, {"after": ["first", "join"]}),
        ]
        flow = f"flow {chance.getrandbits(64):x}"
        return [
            {
                **{"kind": kind, "lane": lane, "priority": chance.choice([0, 0, 5])},
                **{"name": name, "flow": flow, **more},
                "payload": {"op": self.op(), **payload},
                **({"group_key": "flows"} if lane == "tenants" else {}),
                **({"after_failed": p} if (p := payload.get("policy")) else {}),
            }
            for name, kind, lane, payload, more in nodes
        ]

    def op(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128)))


def main() -> None:
    process.die_with_parent()
    Producer(float(sys.argv[1])).run()


if __name__ == "__main__":
    main()
