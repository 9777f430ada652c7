"""What happened: what the clients saw, and what the server committed.

Clients write what they tried and what they were told into files (Recorder). What the
server committed is in its journal (journal.py).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]
FOREVER = float("inf")


class Recorder:
    """An append-only file of one line a record; what was written survives kill -9.

    Several processes and threads may share a path: a record is one write with O_APPEND.
    Keep it off the disk that a fault fills.
    """

    def __init__(self, path: Path | str, process: str) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        os.close(self._file)

    def note(self, what: str, **fields: Any) -> None:
        self.notes([{"what": what, **fields}])

    def notes(self, records: Iterable[Record]) -> None:
        """Several records in one write, for enqueue_many."""
        stamp = {"t": time.time(), "who": self.process}
        lines = [json.dumps({**stamp, **record}) + "\n" for record in records]
        os.write(self._file, "".join(lines).encode())

    # -- producers: every payload carries {"op": op}, a fresh uuid for each job --------

    def enqueue_try(
        self,
        op: str,
        kind: str,
        lane: str,
        priority: int = 0,
        unique_key: str | None = None,
    ) -> None:
        self.note(
            "enqueue_try",
            **{"op": op, "kind": kind, "lane": lane, "priority": priority},
            unique_key=unique_key,
        )

    def enqueue_ack(self, op: str, job_id: int) -> None:
        """COMMIT has answered."""
        self.note("enqueue_ack", op=op, job_id=job_id)

    def enqueue_unknown(self, op: str) -> None:
        """The connection was lost during COMMIT: the job may exist or not."""
        self.note("enqueue_unknown", op=op)

    def enqueue_rolled_back(self, op: str) -> None:
        """The transaction ended before COMMIT was sent: the job may not exist."""
        self.note("enqueue_rolled_back", op=op)

    # -- workers ----------------------------------------------------------------------

    def worker(self, name: str, kinds: Iterable[str]) -> None:
        """A worker of this name (as claims say it) begins, and runs these kinds."""
        self.note("worker", name=name, kinds=sorted(kinds))

    def effect_begin(
        self, job_id: int, attempt: int, lease: int, kind: str, lane: str
    ) -> None:
        """The first thing a handler does."""
        self.note(
            "effect_begin",
            **{"job_id": job_id, "attempt": attempt, "lease": lease},
            **{"kind": kind, "lane": lane},
        )

    def effect_end(self, job_id: int, attempt: int, lease: int, outcome: str) -> None:
        self.note(
            "effect_end", job_id=job_id, attempt=attempt, lease=lease, outcome=outcome
        )

    def verb_ack(self, verb: str, lease: int, job_id: int) -> None:
        """complete, fail, snooze, release, ack_cancel or progress was accepted."""
        self.note("verb_ack", verb=verb, lease=lease, job_id=job_id)

    def verb_refused(self, verb: str, lease: int, job_id: int) -> None:
        """PU101, or the verdict lost: the fence at work; counted, not judged."""
        self.note("verb_refused", verb=verb, lease=lease, job_id=job_id)

    # -- operators and faults ---------------------------------------------------------

    def control_try(self, verb: str, **args: Any) -> None:
        """pause, set_lane, cancel and so on; args as passed."""
        self.note("control_try", verb=verb, args=args)

    def control_ack(self, verb: str, **args: Any) -> None:
        self.note("control_ack", verb=verb, args=args)

    def fault(self, name: str, detail: str = "", **fields: Any) -> None:
        """A fault was injected. SIGSTOP: noted after SIGCONT, with stopped=who and
        until, the time just before that signal."""
        self.note("fault", name=name, detail=detail, **fields)


def read_records(directory: Path | str) -> list[Record]:
    """Every record of the *.jsonl files of a run, in the order of their times."""
    records: list[Record] = []
    for path in sorted(Path(directory).glob("*.jsonl")):
        with path.open() as lines:
            records.extend(json.loads(line) for line in lines)
    return sorted(records, key=lambda record: float(record["t"]))


@dataclass(slots=True)
class Event:
    """One row that entered (+), left (-) or changed (=) a table of pulse.

    until is by the server's clock, which was so far ahead of the machine's.
    """

    place: str
    op: str
    at: float = 0.0
    ahead: float = 0.0
    job: int = 0
    lease: int | None = None
    lane: str = ""
    kind: str = ""
    rank: int = 0
    line: int = 0
    attempt: int = 0
    failures: int = 0
    until: float = 0.0
    verb: str | None = None
    state: str = ""
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Transaction:
    """What one transaction committed, and when."""

    xid: int
    pid: int
    started: float
    committed: float
    events: list[Event]

    @property
    def key(self) -> tuple[int, float]:
        """What tells it from those of another timeline."""
        return self.xid, self.events[0].at
