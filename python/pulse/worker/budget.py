"""One budget of slots over several databases, each with a coordinator of its own.

A coordinator reserves slots before it claims; what its claim did not bring goes back
at once, and wakes those that had to do without. Who is hungry (its last claim brought
all that it asked for, or it found no slot) is entitled to an equal part of a lane;
where that does not come out even, those who were served longest ago get one more. So a
full node starves nobody, and slots that one does not use are the others' after one
exchange.

A node that does not answer holds nothing back for long: runs give up their slots when
they end, not when they were reported, and a reservation is void after PATIENCE. What a
late answer then brings too much is released. See docs/decisions/many-databases.md.

On the event loop only; other threads call SharedSlots.finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping

from pulse.hooks import AllHooks
from pulse.worker.outcomes import Outcome
from pulse.worker.run import Run
from pulse.worker.slots import Slots

PATIENCE = 1.0


class Budget:
    """The slots of each lane, and the nodes in the order in which they were served."""

    def __init__(self, lanes: Mapping[str, int]) -> None:
        self.lanes = lanes
        self._members: list[SharedSlots] = []

    def join(self, member: SharedSlots) -> None:
        self._members.append(member)

    def leave(self, member: SharedSlots) -> None:
        with contextlib.suppress(ValueError):
            self._members.remove(member)
        self.share_out()

    def serve(self, member: SharedSlots) -> None:
        """It was served just now: the others come first."""
        if self._members[-1] is not member and member in self._members:
            self._members.remove(member)
            self._members.append(member)

    def taken(self, lane: str) -> int:
        return sum(member.taken(lane) for member in self._members)

    def allowance(self, member: SharedSlots, lane: str) -> int:
        """How many slots of a lane this node may claim for now."""
        total = self.lanes[lane]
        free = total - self.taken(lane)
        if free <= 0:
            return 0
        hungry = [
            m
            for m in self._members
            if m is member or (lane in m.hungry and m.is_connected())
        ]
        if len(hungry) > 1:
            part, rest = divmod(total, len(hungry))
            owed = {
                m: max(0, part + (place < rest) - m.taken(lane))
                for place, m in enumerate(hungry)
            }
            mine = owed.pop(member)
            free = max(min(free, mine), free - sum(owed.values()), 0)
        if lane not in member.hungry:
            # It may have nothing: one that hangs now must not have taken all.
            answering = sum(m.is_connected() for m in self._members)
            free = min(free, max(1, total // max(1, answering)))
        return min(free, 1) if member.late else free

    def share_out(self, freed_by: SharedSlots | None = None) -> None:
        """Slots became free: wake the others who wait for some."""
        now = time.monotonic()
        for member in self._members:
            member.expire(now)
        for member in self._members:
            if member is freed_by or member.asking or not member.hungry:
                continue
            if member.wants():
                member.poll_now()


class SharedSlots(Slots):
    """The runs of one node, in slots of a budget that is shared."""

    def __init__(
        self,
        worker: str,
        budget: Budget,
        hooks: AllHooks,
        wake: Callable[[], None],
        poll_now: Callable[[], None],
        is_connected: Callable[[], bool],
    ) -> None:
        super().__init__(worker, budget.lanes, hooks, wake)
        self.poll_now = poll_now
        self.is_connected = is_connected
        """Nothing is kept for one that may wait for its server for long."""
        self.hungry: set[str] = set()
        """The lanes that are likely to have more jobs than it got slots."""
        self.late = False
        self.asking = False
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked: Mapping[str, int] = {}
        self._reserved: Mapping[str, int] = {}
        self._reserved_at = 0.0
        budget.join(self)

    def taken(self, lane: str) -> int:
        return self._used[lane] + self._reserved.get(lane, 0)

    def wants(self) -> dict[str, int]:
        most, allowance = self._max_batch, self._budget.allowance
        return {
            lane: min(n, most[lane])
            for lane in self._lanes
            if (n := allowance(self, lane)) > 0
        }

    def reserve(self, wants: Mapping[str, int]) -> Mapping[str, int]:
        """What is still to be had of it: opening a connection takes its time."""
        wants = self.wants()
        self.hungry.update(lane for lane in self._lanes if lane not in wants)
        if wants:
            self._asked = self._reserved = wants
            self._reserved_at = time.monotonic()
            self.asking = True
            self._budget.serve(self)
        return wants

    def miss(self) -> None:
        """It would claim, and there was no slot for it."""
        self.hungry.update(self._lanes)
        self._budget.share_out()

    def expire(self, now: float) -> None:
        """A reservation does not outlast PATIENCE, whatever the server does."""
        if self._reserved and now - self._reserved_at > PATIENCE:
            self.late = True
            self._reserved = {}
            self.hungry.clear()

    def take(self, lanes: Mapping[str, int]) -> None:
        self._reserved = {}
        super().take(lanes)
        for lane, n in lanes.items():
            # Others have used what was void.
            surplus = self._budget.taken(lane) - self._lanes[lane]
            if surplus > 0:
                self.surplus[lane] = min(surplus, n)
        if self.asking:
            self.asking = False
            self.late = time.monotonic() - self._reserved_at > PATIENCE
            for lane, wanted in self._asked.items():
                if lanes.get(lane, 0) >= wanted:
                    self.hungry.add(lane)
                else:
                    self.hungry.discard(lane)
            self._budget.share_out(self)

    def withdraw(self) -> None:
        """The server could not be asked: the others need not wait for this one."""
        self._reserved = {}
        self.asking = False
        self.hungry.clear()
        self._budget.share_out(self)

    def leave(self) -> None:
        self._budget.leave(self)

    def gives_back(self, lane: str) -> bool:
        if not self.surplus.get(lane):
            return False
        self.surplus[lane] -= 1
        return True

    # -- the ends of runs -------------------------------------------------------------

    def finish(self, run: Run, outcome: Outcome) -> None:
        """From any thread: a handler ended, and its slot is free for every node."""
        self.ended.append((run, outcome))
        if self._woken:
            return
        self._woken = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._sweep)
            return
        with contextlib.suppress(RuntimeError):  # A stop did not wait for this one.
            self._loop.call_soon_threadsafe(self._sweep)

    def _sweep(self) -> None:
        """Not left to collect: the coordinator may wait for a server."""
        self._woken = False
        now, logs_all = time.monotonic(), self._logs_all
        for run, outcome in list(self.ended):  # Threads add to it.
            if run.holds_slot:
                self._vacate(run, outcome, now, logs_all)
        self._budget.share_out(self)
        self._wake()

    def collect(self) -> list[Run]:
        if not self.ended:
            return super().collect()
        reports = super().collect()
        self._budget.share_out(self)
        return reports
