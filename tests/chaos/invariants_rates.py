"""Rates, from the history: starts in every window of a period."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.chaos.history import Event, Transaction
from tests.chaos.invariants import Invariant
from tests.chaos.invariants_lanes import claims
from tests.chaos.journal import UNSTEPPED, Steps

# A time as a float is not exact to the microsecond.
ROUNDED = 0.00001


@dataclass
class Rate:
    """Starts of a lane, a kind or a group, since its rate was last changed."""

    allowed: int
    per: float
    starts: deque[float] = field(default_factory=deque)

    def start(self, at: float) -> int:
        """How many there were in the period that ends with this one."""
        self.starts.append(at)
        while self.starts[0] <= at - self.per + ROUNDED:
            self.starts.popleft()
        return len(self.starts)


class RatesAreExact(Invariant):
    """Never more starts in any window than the rate of a lane, kind or group."""

    def __init__(self, steps: Steps = UNSTEPPED) -> None:
        super().__init__()
        self.steps = steps
        self.lanes: dict[str, Rate] = {}
        self.each: dict[str, tuple[int, float]] = {}
        self.groups: dict[tuple[str, str], Rate] = {}
        self.kinds: dict[str, Rate] = {}

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "lane":
                self._set(event)
            elif event.place == "kind":
                self.kinds.pop(event.kind, None)
                if event.op == "+" and event.extra.get("rate"):
                    rate = int(event.extra["rate"]), float(event.extra["rate_per"])
                    self.kinds[event.kind] = Rate(*rate)
        for event in claims(transaction):
            key = event.extra.get("group_key")
            self._judge(transaction, event, self.lanes.get(event.lane), "")
            of_kind = f" of kind {event.kind}"
            self._judge(transaction, event, self.kinds.get(event.kind), of_kind)
            if key and event.lane in self.each:
                group = event.lane, key
                if group not in self.groups:
                    self.groups[group] = Rate(*self.each[event.lane])
                self._judge(transaction, event, self.groups[group], f" of group {key}")

    def _set(self, event: Event) -> None:
        lane, said = event.lane, event.extra if event.op == "+" else {}
        self.lanes.pop(lane, None)
        self.each.pop(lane, None)
        self.groups = {g: rate for g, rate in self.groups.items() if g[0] != lane}
        if said.get("rate"):
            self.lanes[lane] = Rate(int(said["rate"]), float(said["rate_per"]))
        if said.get("group_rate"):
            self.each[lane] = int(said["group_rate"]), float(said["group_rate_per"])

    def _judge(
        self, transaction: Transaction, event: Event, rate: Rate | None, whose: str
    ) -> None:
        if rate is None:
            return
        # By the server's clock, which the claim went by; a journal row comes later.
        at = float(event.extra["started"]) - event.ahead
        # By a clock that stepped nobody can tell how long a window was, nor when the
        # claim was, where it did so between its look at the clock and the journal's.
        if self.steps.between(at - rate.per, max(at, event.at)):
            rate.starts.clear()
            return
        self.counted["starts at a rate"] += 1
        if (n := rate.start(at)) > rate.allowed:
            self.violated(
                f"lane {event.lane}{whose}: {n} started within {rate.per} s, though"
                f" {rate.allowed} may, the last in transaction {transaction.xid}"
            )
