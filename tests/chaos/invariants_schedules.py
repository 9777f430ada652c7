"""Each occurrence of a schedule becomes one job, or is recorded as skipped."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.chaos.history import Event, Transaction
from tests.chaos.invariants import Invariant

# Occurrences are counted from the anchor in microseconds, here in floats.
SAME = 0.001


@dataclass(slots=True)
class Recurrence:
    every: float
    anchor: float
    expected: float


class OccurrencesAreHandledOnce(Invariant):
    """Every occurrence of a schedule fires once or is skipped with a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrences: dict[str, Recurrence] = {}
        self.handled: set[tuple[str, float]] = set()

    def commit(self, transaction: Transaction) -> None:
        made: set[int] | None = None
        for event in transaction.events:
            if event.place == "schedule":
                self._changed(event)
            elif event.place == "schedule_run":
                if made is None:
                    made = {e.job for e in transaction.events if e.place == "body"}
                self._handled(event, made)

    def _changed(self, event: Event) -> None:
        if event.op == "-" or event.extra.get("every") is None:
            self.recurrences.pop(event.name, None)
            return
        every, anchor = float(event.extra["every"]), float(event.extra["anchor"])
        known = self.recurrences.get(event.name)
        if known is None or (known.every, known.anchor) != (every, anchor):
            self.recurrences[event.name] = Recurrence(every, anchor, anchor + every)

    def _handled(self, event: Event, made: set[int]) -> None:
        self.counted["occurrences"] += 1
        key = (event.name, event.until)
        if key in self.handled:
            self.violated(f"schedule {event.name} handled {event.until:.3f} twice")
        self.handled.add(key)
        if event.verb is None and event.job not in made:
            self.violated(
                f"schedule {event.name} fired {event.until:.3f} as job {event.job},"
                " which that transaction did not enqueue"
            )
        recurrence = self.recurrences.get(event.name)
        if recurrence is None:
            return
        if abs(event.until - recurrence.expected) > SAME:
            self.violated(
                f"schedule {event.name} was due at {recurrence.expected:.3f} and"
                f" handled {event.until:.3f} instead"
            )
        stands_for = re.search(r"stands for (\d+) occurrences", event.verb or "")
        recurrence.expected = event.until + recurrence.every * (
            int(stands_for[1]) if stands_for else 1
        )
