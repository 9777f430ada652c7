"""Claims of a lane with slots keep its order: priority, then place in line.

So do those of a group, where its lane has in_order. Such claims follow one another (the
lane lock), so each must take the first jobs that it could see and lock. When exactly it
looked is not in the history; a job that stood before the claimed one is therefore
evidence only if it was certainly visible and certainly unlocked. Visible: its
transaction had returned before the claim's began, known from an acknowledgement or from
the next transaction of the same backend.
Unlocked: whoever took it out later began after the claim, and no operator's call on it
was refused or left without an answer just then.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.history import FOREVER, Event, Record, Transaction
from tests.chaos.invariants import Invariant
from tests.chaos.invariants_lanes import claims

SUSPICIONS_A_JOB = 20
# How long a session whose client is gone may go on with its last statement.
LINGERS = 60.0
# A transaction that was open at a step of the clock has times that may be mistaken.
OPEN = 6.0


@dataclass(slots=True)
class Place:
    """A row of ready, and what is known about when it could be claimed."""

    event: Event
    pid: int
    entered: float
    enqueued: bool = False
    """By the transaction that enqueued it."""
    taken_by: float = FOREVER
    gone: bool = False

    def __lt__(self, other: Place) -> bool:
        return (self.event.rank, self.event.line) < (other.event.rank, other.event.line)


@dataclass(slots=True)
class Suspicion:
    place: Place
    claim: Event
    began: float


@dataclass
class Line:
    waiting: list[Place] = field(default_factory=list)
    by_job: dict[int, Place] = field(default_factory=dict)

    def join(self, place: Place) -> None:
        while self.waiting and self.waiting[0].gone:
            heapq.heappop(self.waiting)
        heapq.heappush(self.waiting, place)
        self.by_job[place.event.job] = place


class OrderIsKept(Invariant):
    """Claims of a lane with slots, or a group in order, take the first jobs in line."""

    def __init__(
        self,
        records: Iterable[Record] = (),
        kinds: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        super().__init__()
        self.limited: set[str] = set()
        self.ordered: set[str] = set()
        # By lane, and by group where jobs stand in groups.
        self.lines: dict[tuple[str, str | None], Line] = defaultdict(Line)
        self.begun: dict[int, list[float]] = defaultdict(list)
        self.kinds: dict[str, set[str]] = defaultdict(set)
        for worker, named in (kinds or {}).items():
            self.kinds[worker].update(named)
        self.suspicions: list[Suspicion] = []
        self.suspected: Counter[int] = Counter()
        self._read(records)

    def _read(self, records: Iterable[Record]) -> None:
        self.acknowledged: dict[int, float] = {}
        unanswered: dict[str, Record] = {}
        # Who may have locked rows without leaving a trace, by job: from when to when.
        self.locking: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
        for record in records:
            what = record["what"]
            if what == "enqueue_ack":
                self.acknowledged.setdefault(record["job_id"], record["t"])
            elif what == "control_try":
                unanswered[_call(record)] = record
            elif what in ("control_ack", "control_refused"):
                tried = unanswered.pop(_call(record), None)
                if tried is not None and what == "control_refused":
                    self._may_lock(tried, tried["t"], record["t"])
            elif what == "fault" and record["name"] == "lock_storm":
                began = record.get("since", record["t"] - LINGERS)
                self.locking[None].append((began, record["t"]))
            elif what == "fault" and record["name"] == "clock":
                self.locking[None].append(
                    (record["since"] - OPEN, record["until"] + OPEN)
                )
        for tried in unanswered.values():
            self._may_lock(tried, tried["t"], tried["t"] + LINGERS)

    def _may_lock(self, tried: Record, begin: float, end: float) -> None:
        job = tried["args"].get("job_id")
        if job is not None or tried["verb"].endswith("_where"):
            self.locking[job].append((begin, end))

    def commit(self, transaction: Transaction) -> None:
        self.begun[transaction.pid].append(transaction.started)
        taken: dict[int, Place] = {}
        new = {e.job for e in transaction.events if e.place == "body" and e.op == "+"}
        for event in transaction.events:
            if event.place == "lane":
                self.limited.discard(event.lane)
                self.ordered.discard(event.lane)
                if event.op == "+" and event.extra.get("max_slots") is not None:
                    self.limited.add(event.lane)
                if event.op == "+" and event.extra.get("in_order"):
                    self.ordered.add(event.lane)
            elif event.place == "ready" and event.op == "+":
                entered = transaction.committed
                place = Place(event, transaction.pid, entered, event.job in new)
                self.lines[_line(event)].join(place)
            elif event.place == "ready":
                left = self.lines[_line(event)].by_job.pop(event.job, None)
                if left is not None:
                    left.gone = True
                    left.taken_by = transaction.started
                    taken[event.job] = left
        for claim in claims(transaction):
            self.kinds[claim.name].add(claim.kind)
            if claim.job in taken and self._keeps_order(taken[claim.job].event):
                self.counted["claims in order"] += 1
                self._compare(transaction, claim, taken[claim.job])

    def _keeps_order(self, taken: Event) -> bool:
        lane, group = _line(taken)
        return lane in self.ordered if group else lane in self.limited

    def _compare(self, transaction: Transaction, claim: Event, taken: Place) -> None:
        """Suspect whatever still stands before the job that was taken."""
        waiting = self.lines[_line(taken.event)].waiting
        before: list[Place] = []
        while waiting and (waiting[0].gone or waiting[0] < taken):
            place = heapq.heappop(waiting)
            if not place.gone:
                before.append(place)
        for place in before:
            heapq.heappush(waiting, place)
            if self.suspected[place.event.job] < SUSPICIONS_A_JOB:
                self.suspected[place.event.job] += 1
                self.suspicions.append(Suspicion(place, claim, transaction.started))

    def end(self) -> None:
        for starts in self.begun.values():
            starts.sort()
        for suspicion in self.suspicions:
            if self._certain(suspicion):
                first, claim = suspicion.place.event, suspicion.claim
                self.violated(
                    f"lane {claim.lane}: job {claim.job} was claimed by {claim.name},"
                    f" though job {first.job} stood before it (priority {-first.rank},"
                    f" place {first.line})"
                )

    def _certain(self, suspicion: Suspicion) -> bool:
        place, claim = suspicion.place, suspicion.claim
        locking = self.locking[place.event.job] + self.locking[None]
        return (
            place.event.kind in self.kinds[claim.name]
            and self._visible_by(place) <= suspicion.began
            and place.taken_by >= claim.at
            and not any(begin <= claim.at <= end for begin, end in locking)
        )

    def _visible_by(self, place: Place) -> float:
        """A time at which the job was certainly visible to everybody."""
        starts = self.begun[place.pid]
        following = bisect_left(starts, place.entered)
        seen = starts[following] if following < len(starts) else FOREVER
        if place.enqueued:
            # An acknowledged enqueue is visible; later places are the server's doing.
            acknowledged = self.acknowledged.get(place.event.job, FOREVER)
            if acknowledged >= place.entered:
                seen = min(seen, acknowledged)
        return seen


def _line(event: Event) -> tuple[str, str | None]:
    return event.lane, event.extra.get("group_key")


def _call(record: Record) -> str:
    return f"{record['who']} {record['verb']} {sorted(record['args'].items())}"
