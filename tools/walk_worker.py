"""Print the modules of the Python package that one job crosses in a worker.

    python -m tools.walk_worker DSN plain|failing|grouped|"in a flow"

A profile function records every call from the enqueue until the report is stored.
Maintenance and health checks run beside the job, so they are left out.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

import pulse

PACKAGE = Path(pulse.__file__).parent
WITHIN = 20.0
# A listening worker holds a lock for each lane whose notification is armed.
LISTENS = """
SELECT count(*) FROM pg_catalog.pg_locks AS l
INNER JOIN pg_catalog.pg_database AS d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objsubid = 2
    AND l.classid = 'pulse_internal.ready'::regclass
    AND d.datname = pg_catalog.current_database()"""
FAIR_LANE = "SELECT pulse.set_lane('fair', fair => true)"
WALKS = {
    "plain": ("SELECT pulse.enqueue('mail')",),
    "failing": ("""SELECT pulse.enqueue('mail', '{"fails": true}')""",),
    "grouped": ("SELECT pulse.enqueue('mail', lane => 'fair', group_key => 'ada')",),
    "in a flow": (
        "SELECT pulse.enqueue('mail')",
        "SELECT pulse.enqueue('sum', after => ARRAY["
        "(SELECT max(job_id) FROM pulse.jobs WHERE kind = 'mail')])",
    ),
}
UNFINISHED = "SELECT count(*) FROM pulse.jobs WHERE state <> 'completed'"


class Trace:
    """The modules whose functions are entered while it records."""

    def __init__(self) -> None:
        self.records = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.records and event == "call" and not is_health_check():
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(PACKAGE):
                self.modules.add(str(file.relative_to(PACKAGE)))

    @contextmanager
    def of_new_threads(self) -> Iterator[None]:
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)


def is_health_check() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.get_name() == "pulse health"


def make_worker(dsn: str) -> pulse.Worker:
    worker = pulse.Worker(dsn, lanes={"default": 1, "fair": 1}, tick=False)

    @worker.handle("mail")
    async def mail(job: pulse.Job, fails: bool = False) -> None:
        if fails and job.attempt == 1:
            raise pulse.RetryIn(0)

    @worker.handle("sum")
    async def total() -> None: ...

    return worker


def crossed(dsn: str, walk: str) -> set[str]:
    """Run the jobs of this walk, and return the modules that they crossed."""
    worker, trace = make_worker(dsn), Trace()
    with psycopg.connect(dsn, autocommit=True) as connection:

        def until(query: str, wanted: int) -> None:
            limit = time.monotonic() + WITHIN
            while connection.execute(query.encode()).fetchone() != (wanted,):
                if time.monotonic() > limit:
                    raise TimeoutError(f"it is not {wanted}: {query}")
                time.sleep(0.005)

        connection.execute(FAIR_LANE)
        with trace.of_new_threads():
            thread = threading.Thread(target=worker.run)
            thread.start()
        try:
            until(LISTENS, len(worker.lanes))
            trace.records = True
            with connection.transaction():
                for statement in WALKS[walk]:
                    connection.execute(statement.encode())
            until(UNFINISHED, 0)
        finally:
            # The reply to the last report is on its way.
            time.sleep(0.05)
            trace.records = False
            worker.stop()
            thread.join()
    return trace.modules


if __name__ == "__main__":
    print("\n".join(sorted(crossed(sys.argv[1], sys.argv[2]))))
