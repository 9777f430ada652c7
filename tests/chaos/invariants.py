"""What an invariant is, and the lives of leases that several of them ask about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.chaos.history import FOREVER, Event, Transaction

# The tables whose rows say where a job stands.
PLACES = frozenset({"blocked", "approval", "waiting", "ready", "lease", "finished"})
ENDS = ("finished", "waiting", "ready")
KEPT = 20


@dataclass(frozen=True)
class Violation:
    """A promise that was not kept: which, and the evidence as a sentence."""

    invariant: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.sentence}"


class Invariant:
    """Fed with every transaction in commit order, then asked once at the end."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self.counted: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return (self.__doc__ or type(self).__name__).splitlines()[0].rstrip(".")

    def commit(self, transaction: Transaction) -> None: ...

    def end(self) -> None: ...

    def violated(self, sentence: str) -> None:
        """The first ones are named in full; a flood of the same says nothing more."""
        self.counted["violations"] += 1
        if len(self.found) < KEPT:
            self.found.append(Violation(self.name, sentence))


def moves(transaction: Transaction) -> Mapping[int, list[Event]]:
    """The moves of each job in a transaction: rows that came to a place or left it."""
    found: dict[int, list[Event]] = {}
    for event in transaction.events:
        if event.place in PLACES or event.place == "body":
            found.setdefault(event.job, []).append(event)
    return found


@dataclass(slots=True)
class Life:
    """One lease, from the commit of its claim to the commit of its end."""

    job: int
    attempt: int
    worker: str
    # When its claim began, and was committed.
    asked: float
    claimed: float
    ended: float = FOREVER
    verb: str = ""
    # How long the worker could believe in it when it was taken away, by the server's
    # clock.
    until: float = 0.0


@dataclass
class Lives:
    """Every lease of a history, by its number. Fed before the invariants are."""

    leases: dict[int, Life] = field(default_factory=dict)

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place != "lease" or event.lease is None:
                continue
            if event.op == "+":
                self.leases[event.lease] = Life(
                    *(event.job, event.attempt, event.name),
                    *(transaction.started, transaction.committed),
                )
            elif event.lease in self.leases:
                life = self.leases[event.lease]
                life.ended = transaction.committed
                life.until = event.until
                life.verb = ending(transaction, event).verb or ""


def ending(transaction: Transaction, left: Event) -> Event:
    """The row that says how the run ended whose lease was taken out here."""
    events = transaction.events
    for place, event in enumerate(events):
        if (event.place, event.op, event.lease) == ("lease", "+", left.lease):
            # What came before the claim led to the run.
            events = events[place:]
    rows = [
        event
        for event in events
        if event.job == left.job and event.op == "+" and event.place in ENDS
    ]
    for event in rows:
        if event.lease == left.lease:
            return event
    # A forced cancel leaves no lease behind: nobody may report on it again.
    for event in rows:
        if event.place == "finished" and event.verb == "cancel":
            return event
    return rows[0] if rows else Event("nowhere", "+", job=left.job)
