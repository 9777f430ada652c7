"""The server's side of a history: its journal, and how that is read.

The server writes every move of every job into chaos.journal, in the transaction that
moves it, so the journal holds what was committed and nothing else. Sorted by commit
time it is the order that locks enforced: a transaction takes its commit time while it
still holds its locks. The server needs track_commit_timestamp = on.

A fault may step the server's clock. Times are told by the machine's, which the clients
go by; only until, a time that the server compares with its own, is by the server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import psycopg

from tests.chaos.history import FOREVER, Event, Record, Transaction

_JOB = {"job": "job", "lane": "lane", "kind": "kind", "rank": "rank"}
_RUNS = {"attempt": "attempts", "failures": "failures"}
_LAST = {"lease": "last_lease", "verb": "last_verb"}
_SETTINGS = (
    "jsonb_build_object('max_slots', max_slots, 'enabled', enabled,"
    " 'group_slots', group_slots, 'in_order', in_order, 'rate', rate,"
    " 'rate_per', extract(epoch FROM rate_per), 'group_rate', group_rate,"
    " 'group_rate_per', extract(epoch FROM group_rate_per))"
)
_RATE = "jsonb_build_object('rate', rate, 'rate_per', extract(epoch FROM rate_per))"
_GROUP = "jsonb_build_object('group_key', group_key)"
_ASKED = (
    "jsonb_strip_nulls(jsonb_build_object('op', payload ->> 'op',"
    " 'max_attempts', max_attempts, 'flow', flow, 'after_failed', after_failed,"
    " 'by', payload -> 'by', 'n', payload -> 'n'))"
)
_STEP = (
    "jsonb_build_object('saved', saved_at IS NOT NULL, 'jobs', jobs,"
    " 'verdict', result -> 'verdict')"
)
_RHYTHM = (
    "jsonb_build_object('every', extract(epoch FROM every), 'paused', paused_at,"
    " 'anchor', extract(epoch FROM anchor))"
)

# Of each table: what its rows say in the journal, and which statements are told.
_JOURNALED: dict[str, tuple[dict[str, str], str]] = {
    "body": ({"job": "job", "kind": "kind", "extra": _ASKED}, "+-="),
    "blocked": ({**_JOB, "line": "waits_for"}, "+-"),
    "dependency": ({"job": "job", "line": "after"}, "+"),
    "job_step": ({"job": "job", "name": "step", "extra": _STEP}, "+="),
    "signal": ({"name": "signal"}, "+"),
    "approval": ({**_JOB}, "+-"),
    "waiting": (
        {
            **{**_JOB, **_RUNS, **_LAST, "until": "run_at"},
            "extra": "jsonb_build_object('place', place)",
        },
        "+-",
    ),
    "ready": ({**_JOB, **_RUNS, **_LAST, "line": "seq", "extra": _GROUP}, "+-"),
    "lease": (
        {
            **_JOB,
            **{"attempt": "attempt", "failures": "failures", "lease": "lease"},
            **{"until": "lease_until", "name": "worker"},
            "extra": "jsonb_build_object('group_key', group_key,"
            " 'started', extract(epoch FROM claimed_at))",
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
    "kind": ({"kind": "kind", "extra": _RATE}, "+-"),
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
    # In line is in line, of a lane or of a group.
    place = table.removeprefix("group_")
    return f"""
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO chaos.journal (place, op, at, ahead, {", ".join(columns)})
    SELECT '{place}', '{op}', c.at - c.ahead, c.ahead, {", ".join(columns.values())}
    FROM chaos.clock() AS c CROSS JOIN moved;
    RETURN NULL;
END;
$$;
CREATE TRIGGER chaos_{statement.lower()} AFTER {statement} ON pulse_internal.{table}
REFERENCING {rows} TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {name}();
"""


JOURNAL_SQL = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.journal (
    seq bigserial, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    pid integer NOT NULL DEFAULT pg_backend_pid(),
    started timestamptz NOT NULL DEFAULT transaction_timestamp(),
    at timestamptz NOT NULL, ahead interval NOT NULL,
    place text NOT NULL, op text NOT NULL,
    job bigint, lease bigint, lane text, kind text, rank integer, line bigint,
    attempt integer, failures integer, until timestamptz, verb text, state text,
    name text, extra jsonb
);
-- The server's clock, and how far a fault has put it ahead of the machine's.
CREATE FUNCTION chaos.clock(OUT at timestamptz, OUT ahead interval) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_file text := coalesce(current_setting('chaos.clock', true), '');
    v_read bytea;
BEGIN
    at := clock_timestamp();
    ahead := '0';
    IF v_file = '' THEN
        RETURN;
    END IF;
    LOOP
        v_read := pg_read_binary_file(v_file);
        at := clock_timestamp();
        EXIT WHEN v_read = pg_read_binary_file(v_file);
    END LOOP;
    ahead := ('x' || encode(v_read, 'hex'))::bit(64)::bigint * interval '1 microsecond';
END;
$$;
""" + "".join(
    _trigger(table, columns, op)
    for table, (columns, ops) in _JOURNALED.items()
    for op in ops
)


@dataclass(frozen=True)
class Steps:
    """When the server's clock was how far ahead of the machine's: what faults noted."""

    taken: tuple[tuple[float, float, float], ...] = ()
    """Just before it, just after it, and how far ahead it was from then on."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> Steps:
        notes = (r for r in records if r["what"] == "fault" and r["name"] == "clock")
        return cls(tuple((n["since"], n["until"], n["ahead"]) for n in notes))

    def spans(self) -> list[tuple[float, float, float]]:
        """From when to when it was how far ahead."""
        begins = [(-FOREVER, 0.0), *((before, by) for before, _, by in self.taken)]
        ends = [*(after for _, after, _ in self.taken), FOREVER]
        return [(begin, end, by) for (begin, by), end in zip(begins, ends, strict=True)]

    def between(self, begin: float, end: float) -> bool:
        """Whether the clock was stepped in this time."""
        return any(begin <= after and before <= end for before, after, _ in self.taken)

    def machine_time(self, stamp: float, begin: float, end: float) -> float:
        """The latest this time of the server's was by the clocks of begin to end."""
        return stamp - min(
            by for since, until, by in self.spans() if since <= end and until >= begin
        )


UNSTEPPED = Steps()

# Of a time between two steps the clock shows only one; the last row of a transaction
# comes before its commit, its first one after its start.
_READ = """
WITH span AS (
    SELECT
        s.begins - interval '1 ms' AS begins, s.ends + interval '1 ms' AS ends,
        s.ahead * interval '1 second' AS ahead
    FROM unnest(
        %(begins)s::timestamptz[], %(ends)s::timestamptz[], %(ahead)s::float8[]
    ) AS s (begins, ends, ahead)
), stamped AS (
    SELECT
        j.xid, min(j.started) AS started, min(j.at) AS first, max(j.at) AS last,
        (array_agg(j.ahead ORDER BY j.seq))[1] AS ahead,
        pg_xact_commit_timestamp(j.xid::xid) AS committed
    FROM chaos.journal AS j
    WHERE j.xid >= %(since)s::text::xid8
    GROUP BY j.xid
), timed AS (
    SELECT
        t.xid,
        coalesce((
            SELECT max(t.started - s.ahead) FROM span AS s
            WHERE t.started - s.ahead BETWEEN s.begins AND least(s.ends, t.first)
        ), t.started - t.ahead) AS started,
        coalesce((
            SELECT min(t.committed - s.ahead) FROM span AS s
            WHERE t.committed - s.ahead BETWEEN greatest(s.begins, t.last) AND s.ends
        ), t.committed - t.ahead) AS committed
    FROM stamped AS t
)
SELECT
    j.xid::text::bigint, j.pid, extract(epoch FROM t.started)::float8,
    extract(epoch FROM t.committed)::float8,
    j.place, j.op, extract(epoch FROM j.at)::float8,
    extract(epoch FROM j.ahead)::float8, coalesce(j.job, 0), j.lease,
    coalesce(j.lane, ''), coalesce(j.kind, ''), coalesce(j.rank, 0),
    coalesce(j.line, 0), coalesce(j.attempt, 0), coalesce(j.failures, 0),
    coalesce(extract(epoch FROM nullif(j.until, 'infinity'))::float8, 0), j.verb,
    coalesce(j.state, ''), coalesce(j.name, ''), coalesce(j.extra, '{}')
FROM chaos.journal AS j
JOIN timed AS t ON t.xid = j.xid
ORDER BY t.committed, j.xid, j.seq
"""


def read_journal(
    connection: psycopg.Connection[Any], steps: Steps = UNSTEPPED, since: int = 0
) -> Iterator[Transaction]:
    """Every transaction in the order of commits; streamed, so any size will do."""
    spans = steps.spans()
    values = {
        "begins": [_timestamp(begin) for begin, _, _ in spans],
        "ends": [_timestamp(end) for _, end, _ in spans],
        "ahead": [by for _, _, by in spans],
        "since": str(since),
    }
    with connection.transaction(), connection.cursor("chaos_journal") as cursor:
        cursor.itersize = 5000
        current: Transaction | None = None
        for xid, pid, started, committed, *rest in cursor.execute(_READ, values):
            if current is None or current.xid != xid:
                if committed is None:
                    raise ValueError("track_commit_timestamp was off during the run")
                if current is not None:
                    yield current
                current = Transaction(xid, pid, started, committed, [])
            current.events.append(Event(*rest))
        if current is not None:
            yield current


def _timestamp(at: float) -> str:
    if abs(at) == FOREVER:
        return "infinity" if at > 0 else "-infinity"
    return datetime.fromtimestamp(at, timezone.utc).isoformat()
