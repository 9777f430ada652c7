"""The worker of examples/flows, killed at every boundary of a step, and started again.

    python -m tests.project.killed MODULE FILE

A boundary is before or after something that the server stores, and the beginning and
end of a handler. The first job that comes to one is killed there, with its worker, and
FILE says so; no job dies twice. A worker takes one job at a time, so that each kill
costs one attempt of one job. Its lease lapses at once: time passes by moving rows.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psycopg

from pulse.job import Job, Rows
from pulse.worker.executors import Executors
from pulse.worker.runs import Run

LAPSE = """
UPDATE pulse_internal.lease
SET reap_at = now() - interval '1 day', lease_until = now() - interval '1 day';
SELECT pulse.reap();
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() WHERE last_verb = 'reap';
DELETE FROM pulse_internal.due_mark;
"""


class Boundaries:
    """Where somebody died, and who; kept in a file that outlives the worker."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lock = threading.Lock()
        seen = file.read_text().splitlines() if file.exists() else []
        self.died = {line.partition("\t")[0] for line in seen}
        self.victims = {line.partition("\t")[2] for line in seen}

    def reach(self, job: Job, where: str) -> None:
        # Of a thousand parts the last are worth a kill of their own.
        last = " of the last" if (job.payload or {}).get("part", 0) > 990 else ""
        boundary, victim = f"{job.kind}{last}: {where}", str(job.id)
        with self.lock:
            if boundary in self.died or victim in self.victims:
                return
            with self.file.open("a") as file:
                file.write(f"{boundary}\t{victim}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def watch(boundaries: Boundaries) -> None:
    """Say of every run when it comes to a boundary."""
    ask: Callable[..., Future[Rows]] = Job._send
    handle: Callable[..., Any] = Executors._call

    def send(self: Job, name: str, **values: Any) -> Future[Rows]:
        what = " ".join(filter(None, (name, values.get("step"))))
        # What an order waits for has its number in it.
        what = what.rstrip("0123456789 ")
        boundaries.reach(self, f"before {what}")
        answered = ask(self, name, **values)
        rows = answered.result()
        status = f", {rows[0][0]}" if name == "wait_for" else ""
        boundaries.reach(self, f"after {what}{status}")
        return answered

    def handled(self: Executors, run: Run) -> Any:
        boundaries.reach(run.job, "begins")
        result = handle(self, run)
        boundaries.reach(run.job, "ends")
        return result

    Job._send = send  # type: ignore[method-assign]
    Executors._call = handled  # type: ignore[method-assign]


def main(module: str, file: str) -> None:
    sys.path.insert(0, os.getcwd())
    example = importlib.import_module(module)
    worker = example.worker
    worker.lanes = {"default": 1}
    stopping: list[int] = []
    child = 0

    def stop(number: int, _: object) -> None:
        stopping.append(number)
        if child:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            watch(Boundaries(Path(file)))
            worker.run()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        child = 0
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            with psycopg.connect(autocommit=True) as db:
                db.execute(LAPSE)
        elif status:
            sys.exit(f"the worker ended by itself: {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
