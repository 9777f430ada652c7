"""The life of a job in plain Python: what there is, and how the model looks at it.

The model is one state machine in several files. Its clock counts hours: waits last odd
numbers of them and time passes in even ones, so no comparison is ever close.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

Connection = psycopg.Connection[Any]

WAITING = {"awaiting_approval", "scheduled", "retrying", "ready"}
FINISHED = {"completed", "dead", "cancelled"}
ANY = (*sorted(WAITING), "blocked", "running", *sorted(FINISHED))
LANES = ("m", "o")
KINDS = ("a", "b")
APPROVAL_HOURS = 3
BACKOFF_HOURS = 1


@dataclass
class Lane:
    name: str
    fair: bool = False
    group_slots: int | None = None
    in_order: bool = False
    max_slots: int | None = None
    rate: int | None = None
    group_rate: int | None = None
    enabled: bool = True
    stopped: set[str] = field(default_factory=set)
    starts: int = 0
    """In the window of its rate, which is an hour."""
    group_starts: defaultdict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )
    passed_over: dict[str, tuple[int, defaultdict[str, int]]] = field(
        default_factory=dict
    )
    """How often others started while a group could, and at which priority."""

    @property
    def grouped(self) -> bool:
        return bool(self.fair or self.in_order or self.group_slots or self.group_rate)

    def slots_of(self, group: str) -> int | None:
        """The jobs without a group are one that has no limit."""
        if not self.grouped or not group:
            return None
        return 1 if self.in_order else self.group_slots

    @property
    def sorts(self) -> list[str]:
        """The kinds of lane that this one is."""
        found = {
            "fair": self.fair,
            "group_slots": self.group_slots and not self.in_order,
            "in_order": self.in_order,
            "max_slots": self.max_slots,
            "rate": self.rate,
            "group_rate": self.group_rate,
        }
        return [sort for sort, on in found.items() if on] or ["plain"]


@dataclass
class Job:
    state: str
    kind: str
    priority: int = 0
    max_attempts: int = 2
    lane: str = "m"
    group: str = ""
    payload: int = 0
    key: str | None = None
    unique_for: int | None = None
    key_until: int | None = None
    """Until when it has its key though it has ended."""
    needed_approval: bool = False
    run_at: int | None = None
    delay: int | None = None
    expires_in: int | None = None
    start_by: int | None = None
    given: tuple[int | None, int | None, int | None] = (None, None, None)
    """run_at, delay and expires_in of a job with upstreams, as they were asked for."""
    approval_until: int | None = None
    place: int = 0
    firm: bool = True
    """Whether its place can be compared with that of others."""
    held: bool = False
    """It has run in a lane with in_order: its group waits for it."""
    attempts: int = 0
    failures: int = 0
    lease: int | None = None
    cancel_asked: bool = False
    last: tuple[int, str] | None = None
    """The report that brought it where it stands: that one may be repeated."""
    after: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)
    """Upstreams that have ended once, which is enough for it."""
    after_failed: str = "cancel"
    policy: str = "cancel"
    """after_failed, unless it was retried to wait for what has failed."""
    by_upstream: bool = False
    loose: bool = False
    """An end that it waits for and its own enqueue did not see each other."""
    steps: dict[str, Any] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    """Waits that have begun, and until when they last."""
    rerun_of: int | None = None
    waits: str | None = None
    """The signal that it was given back for."""


# Low-water marks rest on it (docs/decisions/low-water-marks.md): a transaction that
# puts a job into a lane shares the lock of that lane.
ANNOUNCED = """
CREATE FUNCTION lane_is_announced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT
        FROM pg_locks AS l
        WHERE l.pid = pg_backend_pid()
            AND l.locktype = 'advisory'
            AND l.classid = 'pulse_internal.ready_seq'::regclass
            AND l.objid::bigint = hashtext(new.lane) & 255
            AND l.mode = 'ShareLock'
    ) THEN
        RAISE 'a job joins % of lane % unannounced', TG_TABLE_NAME, new.lane;
    END IF;
    RETURN new;
END;
$$;
CREATE TRIGGER lane_is_announced BEFORE INSERT ON pulse_internal.ready
FOR EACH ROW EXECUTE FUNCTION lane_is_announced();
CREATE TRIGGER lane_is_announced BEFORE INSERT ON pulse_internal.waiting
FOR EACH ROW EXECUTE FUNCTION lane_is_announced()
"""


class Scratch:
    """A database that is emptied before each history, and two sessions of it."""

    KEPT = ("lease", "tally", "stat", "audit_entry", "signature", "worker")

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self.db = connect()
        self.other = connect()
        for session in (self.db, self.other):
            session.execute("SET lock_timeout = '5s'")
        self.db.execute(ANNOUNCED.encode())
        # What the installation has filled stays.
        tables = self.db.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'pulse_internal'::regnamespace"
        ).fetchall()
        full = "SELECT EXISTS (SELECT FROM {})"
        emptied = [
            f"DELETE FROM {table}"
            for (table,) in tables
            if self.db.execute(full.format(table).encode()).fetchone() == (False,)
        ]
        self.empty = (
            "; ".join(emptied)
            + "; "
            + self._statements(
                "SELECT format('SELECT setval(%L, %s, false)',"
                " format('%I.%I', schemaname, sequencename), start_value)"
                " FROM pg_sequences WHERE schemaname = 'pulse_internal'"
                " AND last_value IS NULL"
            )
        )
        self.hours_pass = self._statements(
            "SELECT format('UPDATE %s SET %s', c.oid::regclass, string_agg(format("
            "CASE format_type(a.atttypid, NULL)"
            " WHEN 'timestamp with time zone' THEN '%1$I = %1$I - {0}'"
            " WHEN 'timestamp with time zone[]' THEN '%1$I ="
            " array(SELECT t - {0} FROM unnest(%1$I) AS t)'"
            " ELSE '%1$I = CASE WHEN (%1$I).times IS NOT NULL THEN ROW(array(SELECT"
            " t - {0} FROM unnest((%1$I).times) AS t),"
            " (%1$I).counts)::pulse_internal.rate_window END'"
            " END, a.attname), ', '))"
            " FROM pg_class AS c INNER JOIN pg_attribute AS a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'pulse_internal'::regnamespace"
            " AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"
            " AND format_type(a.atttypid, NULL) IN ('timestamp with time zone',"
            " 'timestamp with time zone[]', 'pulse_internal.rate_window')"
            f" AND c.relname <> ALL ('{{{','.join(self.KEPT)}}}')"
            " GROUP BY c.oid"
        )

    def _statements(self, query: str) -> str:
        rows = self.db.execute(query.encode()).fetchall()
        assert rows
        return "; ".join(row[0] for row in rows)

    def begin(self) -> None:
        self.other.rollback()
        self.db.execute(self.empty.encode())
        for lane in LANES:
            # Of real time: no lease lapses because the machine is slow.
            self.db.execute(
                "SELECT pulse.set_lane(%s, lease_for => %s, cancel_grace => %s)",
                (lane, "1 day", "1 day"),
            )
        for kind in KINDS:
            self.db.execute(
                "SELECT pulse.set_kind(%s, backoff => 'fixed', backoff_base => %s,"
                " backoff_jitter => 0, approval_expiry => %s)",
                (kind, f"{BACKOFF_HOURS} hours", f"{APPROVAL_HOURS} hours"),
            )

    def shift(self, hours: int) -> None:
        """Time passes: everything but the leases, whose workers are alive, is older."""
        text = self.hours_pass.replace("{0}", f"interval '{hours} hours'")
        self.db.execute(text.encode())


def has(*states: str) -> Callable[[World], bool]:
    """A rule that needs a job in one of these states."""
    return lambda life: any(
        j.state in states and i not in life.busy for i, j in life.jobs.items()
    )


class World(RuleBasedStateMachine):
    """What the model knows, and how it asks the database."""

    scratch: ClassVar[Scratch]
    report: ClassVar[Callable[[set[tuple[str, str]], set[str]], None] | None] = None
    """Is told which features a history met in which kinds of lane."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch.begin()
        self.db = self.scratch.db
        self.other = self.scratch.other
        self.clock = 0
        self.jobs: dict[int, Job] = {}
        self.lanes = {name: Lane(name) for name in LANES}
        self.kind_rates: dict[str, int] = {}
        self.kind_starts: defaultdict[str, int] = defaultdict(int)
        self.stale: list[int] = []
        self.places = 0
        self.compared = 0
        self.numbers = 0
        self.held: set[tuple[str, str | None]] = set()
        self.signals: dict[str, int] = {}
        self.busy: dict[int, str] = {}
        """Jobs that the other session holds, and what it did to them."""
        self.other_did: list[tuple[str, Any]] = []
        self.met: set[tuple[str, str]] = set()
        self.features: set[str] = set()

    def teardown(self) -> None:
        if (report := type(self).report) is not None:
            report(self.met, self.features)

    # Helpers -----------------------------------------------------------------

    def one(self, statement: str, *parameters: object) -> Any:
        row = self.db.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        return row[0]

    def refused(self, code: str, statement: str, *parameters: object) -> None:
        raised = None
        try:
            self.db.execute(statement.encode(), parameters)
        except psycopg.Error as error:
            raised = error.sqlstate
        assert raised == code, f"{raised} is not {code}: {statement} {parameters}"

    def some(self, data: st.DataObject, *states: str) -> int:
        found = sorted(
            i for i, j in self.jobs.items() if j.state in states and i not in self.busy
        )
        return data.draw(st.sampled_from(found))

    def note(self, feature: str, *lanes: str) -> None:
        """This history did that in these lanes."""
        self.features.add(feature)
        for name in lanes or LANES:
            for sort in self.lanes[name].sorts:
                self.met.add((sort, feature))
            if self.kind_rates:
                self.met.add(("kind_rate", feature))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # What becomes of a job ----------------------------------------------------

    def due(self, job: Job) -> bool:
        return job.run_at is None or job.run_at <= self.clock

    def late(self, job: Job) -> bool:
        """Transition 16: it has not begun, and it is too late to."""
        return (
            job.state in (*WAITING, "blocked")
            and job.attempts == 0
            and job.start_by is not None
            and job.start_by <= self.clock
        )

    def line_up(self, job: Job) -> None:
        """Ready: at the end of its line, or at the place that it keeps."""
        job.state, job.run_at = "ready", None
        if not job.held:
            self.places += 1
            job.place, job.firm = self.places, True

    def put(self, job: Job, run_at: int | None, retrying: bool = False) -> None:
        """In line, or waiting for its time."""
        job.run_at = run_at
        if self.due(job):
            self.line_up(job)
        else:
            job.state = "retrying" if retrying else "scheduled"

    def ends(self, job: Job, state: str) -> None:
        job.state, job.held, job.run_at = state, False, None
        if job.unique_for is not None:
            job.key_until = self.clock + job.unique_for

    def end_run(self, job: Job, verb: str | None) -> None:
        assert job.lease is not None
        self.stale.append(job.lease)
        job.last = (job.lease, verb) if verb else None
        job.lease = None
        job.cancel_asked = False

    def holders(self, lane: str, key: str | None) -> list[int]:
        """Which job has a key, and which one follows it."""
        return sorted(
            (
                job_id
                for job_id, job in self.jobs.items()
                if key
                and (job.lane, job.key) == (lane, key)
                and (job.state not in FINISHED or (job.key_until or 0) > self.clock)
            ),
            key=lambda job_id: self.jobs[job_id].state == "blocked",
        )
