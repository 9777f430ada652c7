"""What was counted is what happened: pulse.counters beside the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.chaos.history import Event, Transaction
from tests.chaos.invariants import Invariant, ending, moves

# What the journal can tell; in line again is not told from in line at last.
COUNTED = ("started", "completed", "failed", "dead", "cancelled", "reaped")
# Who charges a run; claim_batch ends one whose payload cannot be handed out.
CHARGED = ("fail", "reap", "claim_batch")

Counters = Sequence[tuple[str, str, dict[str, int]]]
"""Of each lane and kind, what pulse.counters says when everything is counted."""


class CountersAreExact(Invariant):
    """The counters of each lane and kind equal what was committed."""

    def __init__(self, counters: Counters | None) -> None:
        super().__init__()
        self.counters = counters
        self.happened: Counter[tuple[str, str, str]] = Counter()
        # A body does not say its lane.
        self.enqueued: Counter[str] = Counter()

    def commit(self, transaction: Transaction) -> None:
        for events in moves(transaction).values():
            for event in events:
                if event.place == "body" and event.op == "+":
                    self.enqueued[event.kind] += 1
                elif event.place == "finished" and event.op == "+":
                    self._count(event, event.state)
                elif event.place == "lease" and event.op == "+":
                    self._count(event, "started")
                elif event.place == "lease" and event.op == "-":
                    verb = ending(transaction, event).verb
                    if verb in CHARGED:
                        self._count(event, "failed")
                    if verb == "reap":
                        self._count(event, "reaped")

    def _count(self, event: Event, what: str) -> None:
        self.happened[event.lane, event.kind, what] += 1

    def end(self) -> None:
        if self.counters is None:
            return
        said: Counter[tuple[str, str, str]] = Counter()
        enqueued: Counter[str] = Counter()
        for lane, kind, counts in self.counters:
            enqueued[kind] += counts["enqueued"]
            for what in COUNTED:
                said[lane, kind, what] += counts[what]
        for lane, kind, what in sorted(said.keys() | self.happened.keys()):
            happened, counted = self.happened[lane, kind, what], said[lane, kind, what]
            self.counted["counters"] += 1
            if happened != counted:
                self.violated(
                    f"{happened} jobs of kind {kind} in lane {lane} {what},"
                    f" {counted} were counted"
                )
        for kind in sorted(enqueued.keys() | self.enqueued.keys()):
            if enqueued[kind] != self.enqueued[kind]:
                self.violated(
                    f"{self.enqueued[kind]} jobs of kind {kind} were enqueued,"
                    f" {enqueued[kind]} were counted"
                )
