"""What happened: what the clients saw, and what the server committed, in order.

Clients write what they tried and what they were told into files (Recorder). The server
writes every move of every job into chaos.journal, in the transaction that moves it, so
the journal holds what was committed and nothing else. Sorted by commit time it is the
order that locks enforced: a transaction takes its commit time while it still holds
its locks. The server needs track_commit_timestamp = on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

Record = dict[str, Any]


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


# -- the journal ----------------------------------------------------------------------

_JOB = {"job": "job", "lane": "lane", "kind": "kind", "rank": "rank"}
_RUNS = {"attempt": "attempts", "failures": "failures"}
_LAST = {"lease": "last_lease", "verb": "last_verb"}
_SETTINGS = "jsonb_build_object('max_slots', max_slots, 'enabled', enabled)"
_ASKED = "jsonb_build_object('op', payload ->> 'op', 'max_attempts', max_attempts)"
_RHYTHM = (
    "jsonb_build_object('every', extract(epoch FROM every), 'paused', paused_at,"
    " 'anchor', extract(epoch FROM anchor))"
)

# Of each table: what its rows say in the journal, and which statements are told.
_JOURNALED: dict[str, tuple[dict[str, str], str]] = {
    "body": ({"job": "job", "kind": "kind", "extra": _ASKED}, "+-="),
    "approval": ({**_JOB}, "+-"),
    "waiting": ({**_JOB, **_RUNS, **_LAST, "until": "run_at"}, "+-"),
    "ready": ({**_JOB, **_RUNS, **_LAST, "line": "seq"}, "+-"),
    "lease": (
        {
            **_JOB,
            **{"attempt": "attempt", "failures": "failures", "lease": "lease"},
            **{"until": "lease_until", "name": "worker"},
        },
        "+-",
    ),
    "finished": (
        {**_JOB, **_RUNS, "lease": "lease", "verb": "ended_by", "state": "state::text"},
        "+-",
    ),
    "job_progress": ({"job": "job", "lease": "lease"}, "+="),
    "hold": ({"lane": "lane", "name": "holder"}, "+-"),
    "lane": ({"lane": "lane", "extra": _SETTINGS}, "+-"),
    "schedule": ({"name": "name", "extra": _RHYTHM}, "+-="),
    "schedule_run": (
        {"name": "name", "until": "occurrence", "job": "job", "verb": "skipped"},
        "+",
    ),
}

_STATEMENTS = {
    "+": ("INSERT", "NEW"),
    "-": ("DELETE", "OLD"),
    "=": ("UPDATE", "NEW"),
}


def _trigger(table: str, columns: dict[str, str], op: str) -> str:
    statement, rows = _STATEMENTS[op]
    name = f"chaos.note_{table}_{statement.lower()}"
    return f"""
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO chaos.journal (place, op, {", ".join(columns)})
    SELECT '{table}', '{op}', {", ".join(columns.values())} FROM moved;
    RETURN NULL;
END;
$$;
CREATE TRIGGER chaos_{statement.lower()} AFTER {statement} ON pulse.{table}
REFERENCING {rows} TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {name}();
"""


JOURNAL_SQL = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.journal (
    seq bigserial, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    pid integer NOT NULL DEFAULT pg_backend_pid(),
    started timestamptz NOT NULL DEFAULT transaction_timestamp(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    place text NOT NULL, op text NOT NULL,
    job bigint, lease bigint, lane text, kind text, rank integer, line bigint,
    attempt integer, failures integer, until timestamptz, verb text, state text,
    name text, extra jsonb
);
""" + "".join(
    _trigger(table, columns, op)
    for table, (columns, ops) in _JOURNALED.items()
    for op in ops
)


@dataclass(slots=True)
class Event:
    """One row that entered (+), left (-) or changed (=) a table of pulse."""

    place: str
    op: str
    at: float = 0.0
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


_READ = """
SELECT
    j.xid::text::bigint, j.pid, extract(epoch FROM j.started)::float8,
    extract(epoch FROM pg_xact_commit_timestamp(j.xid::xid))::float8,
    j.place, j.op, extract(epoch FROM j.at)::float8, coalesce(j.job, 0), j.lease,
    coalesce(j.lane, ''), coalesce(j.kind, ''), coalesce(j.rank, 0),
    coalesce(j.line, 0), coalesce(j.attempt, 0), coalesce(j.failures, 0),
    coalesce(extract(epoch FROM nullif(j.until, 'infinity'))::float8, 0), j.verb,
    coalesce(j.state, ''), coalesce(j.name, ''), coalesce(j.extra, '{}')
FROM chaos.journal AS j
ORDER BY pg_xact_commit_timestamp(j.xid::xid), j.xid, j.seq
"""


def read_journal(connection: psycopg.Connection[Any]) -> Iterator[Transaction]:
    """Every transaction in the order of commits; streamed, so any size will do."""
    with connection.transaction(), connection.cursor("chaos_journal") as cursor:
        cursor.itersize = 5000
        current: Transaction | None = None
        for xid, pid, started, committed, *rest in cursor.execute(_READ):
            if current is None or current.xid != xid:
                if committed is None:
                    raise ValueError("track_commit_timestamp was off during the run")
                if current is not None:
                    yield current
                current = Transaction(xid, pid, started, committed, [])
            current.events.append(Event(*rest))
        if current is not None:
            yield current
