"""The worker processes: pulse.Worker in three sorts, and one in plain SQL.

python -m tests.chaos.workers SORT VERSION
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections import deque
from typing import Any

import psycopg

import pulse
from tests.chaos import handlers, process

LANES = {
    **{"bulk": 12, "narrow": 4, "serial": 2, "long": 6},
    **{"tenants": 8, "orders": 8, "metered": 8},
}
LIMITED = ["serial", "narrow", "tenants", "orders", "metered"]
SORTS = {
    "threads": (handlers.threads, {**LANES, "hostile": 1}),
    "async": (handlers.coroutines, LANES),
    "process": (handlers.processes, dict.fromkeys(LANES, 1)),
}

CLAIM = """
SELECT lease, job_id, kind, payload, attempt, failures
FROM pulse.claim_batch(%s, %s, %s)"""
COMPLETE = "SELECT pulse.complete(%(lease)s)"
FAIL = "SELECT pulse.fail(%(lease)s, 'on purpose', retry_in => '200 ms')"
SNOOZE = "SELECT pulse.snooze(%(lease)s, '300 ms')"
RELEASE = "SELECT verdict FROM pulse.release(ARRAY[%(lease)s]::bigint[])"
STOPPED = "SELECT pulse.ack_cancel(%(lease)s)"
BEAT = """
SELECT verdict, extract(epoch FROM lease_until - clock_timestamp())::float8
FROM pulse.heartbeat(ARRAY[%s]::bigint[])"""
VERBS = {
    **{"complete": COMPLETE, "fail": FAIL, "snooze": SNOOZE},
    **{"release": RELEASE, "ack_cancel": STOPPED},
}
LOST = "PU101"


def packaged(sort: str, version: int) -> None:
    handled, lanes = SORTS[sort]
    tasks = handled(version)
    process.recorder().worker(process.name(), [task.kind for task in tasks])
    worker = pulse.Worker(
        process.dsn(),
        lanes=lanes,
        tasks=tasks,
        name=process.name(),
        poll_interval=0.2,
        grace=1.0,
    )
    worker.run()


class PlainSQL:
    """A worker as anybody could write it with psql; it repeats what is unanswered."""

    def __init__(self) -> None:
        self.random = process.chance()
        self.note = process.recorder()
        self.connection: psycopg.Connection[Any] | None = None
        self.stopping = False
        # Leases that are over: now and then one is reported again.
        self.over: deque[tuple[int, int]] = deque(maxlen=50)
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        while not self.stopping:
            try:
                lane = self.random.choice(LIMITED)
                rows = self.ask(
                    CLAIM, (process.name(), lane, self.random.choice([1, 3]))
                )
            except psycopg.Error:
                # Whatever was claimed is unknown here: its lease will lapse.
                self.hang_up()
                continue
            for row in rows:
                self.work(lane, *row)
            if self.over and self.random.random() < 0.1:
                self.report("complete", *self.random.choice(self.over))
            if not rows:
                time.sleep(0.05)

    def work(
        self, lane: str, lease: int, job: int, kind: str, payload: Any, attempt: int,
        failures: int,
    ) -> None:  # fmt: skip
        # The jobs before it in the batch, or the line, may have taken its time.
        verdict = self.beat(lease)
        if verdict == "ok":
            self.note.effect_begin(job, attempt, lease, kind, lane)
        else:
            if verdict != "lost":
                end = "ack_cancel" if verdict == "cancel" else "release"
                self.report(end, lease, job)
            return
        time.sleep(min(float(payload.get("for", 0)), 0.2))
        verb = self.choose(payload, failures)
        self.note.effect_end(job, attempt, lease, verb)
        self.report(verb, lease, job)
        self.over.append((lease, job))

    def beat(self, lease: int) -> str:
        """The verdict on a lease; late when the answer is older than what it grants."""
        while not self.stopping:
            asked = time.monotonic()
            try:
                ((verdict, left),) = self.ask(BEAT, (lease,))
            except psycopg.Error:
                self.hang_up()
                continue
            if verdict == "ok" and time.monotonic() >= asked + left:
                return "late"
            return str(verdict)
        return "late"

    def choose(self, payload: Any, failures: int) -> str:
        if failures < payload.get("bad", 0):
            return "fail"
        return self.random.choices(
            ["complete", "release", "snooze"], weights=[94, 3, 3]
        )[0]

    def report(self, verb: str, lease: int, job: int) -> None:
        """Until there is an answer: a repeated report is harmless."""
        while not self.stopping:
            try:
                rows = self.ask(VERBS[verb], {"lease": lease})
            except psycopg.Error as error:
                if error.sqlstate == LOST:
                    self.note.verb_refused(verb, lease, job)
                    return
                self.hang_up()
            else:
                if rows and rows[0][0] == "lost":
                    self.note.verb_refused(verb, lease, job)
                else:
                    self.note.verb_ack(verb, lease, job)
                return

    def ask(self, query: str, values: Any) -> list[tuple[Any, ...]]:
        if self.connection is None:
            self.connection = psycopg.connect(process.dsn(), autocommit=True)
        return self.connection.execute(query.encode(), values).fetchall()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        time.sleep(0.05)


def main() -> None:
    process.die_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    sort, version = sys.argv[1], int(sys.argv[2])
    if sort == "sql":
        PlainSQL().run()
    else:
        packaged(sort, version)


if __name__ == "__main__":
    main()
