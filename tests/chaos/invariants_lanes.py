"""What must hold for each lane at every instant: slots, holds, kinds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.chaos.history import Event, Transaction
from tests.chaos.invariants import Invariant


def claims(transaction: Transaction) -> list[Event]:
    return [e for e in transaction.events if e.place == "lease" and e.op == "+"]


class SlotsAreExact(Invariant):
    """No claim commits that fills a lane beyond max_slots."""

    def __init__(self) -> None:
        super().__init__()
        self.used: Counter[str] = Counter()
        self.slots: dict[str, int] = {}

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "lease":
                self.used[event.lane] += 1 if event.op == "+" else -1
            elif event.place == "lane":
                self.slots.pop(event.lane, None)
                if event.op == "+" and event.extra.get("max_slots") is not None:
                    self.slots[event.lane] = int(event.extra["max_slots"])
        # Lowering max_slots stops nothing that runs, so only claims are judged.
        for lane in {event.lane for event in claims(transaction)}:
            if lane in self.slots:
                self.counted["claims with slots"] += 1
                if self.used[lane] > self.slots[lane]:
                    self.violated(
                        f"lane {lane} ran {self.used[lane]} jobs in {self.slots[lane]}"
                        f" slots since transaction {transaction.xid}"
                    )


class GroupSlotsAreExact(Invariant):
    """No claim commits that fills a group of a lane beyond group_slots."""

    def __init__(self) -> None:
        super().__init__()
        self.used: Counter[tuple[str, str]] = Counter()
        self.slots: dict[str, int] = {}

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "lease" and event.extra.get("group_key"):
                group = event.lane, event.extra["group_key"]
                self.used[group] += 1 if event.op == "+" else -1
            elif event.place == "lane":
                self.slots.pop(event.lane, None)
                if event.op == "+" and event.extra.get("group_slots") is not None:
                    self.slots[event.lane] = int(event.extra["group_slots"])
        for event in claims(transaction):
            key = event.extra.get("group_key")
            if key and event.lane in self.slots:
                self.counted["claims with slots of a group"] += 1
                if self.used[event.lane, key] > self.slots[event.lane]:
                    self.violated(
                        f"group {key} of lane {event.lane} ran"
                        f" {self.used[event.lane, key]} jobs in"
                        f" {self.slots[event.lane]} slots since transaction"
                        f" {transaction.xid}"
                    )


class GroupsWaitForTheirJobs(Invariant):
    """With in_order a group starts nothing while a job of it may come back."""

    def __init__(self) -> None:
        super().__init__()
        self.ordered: set[str] = set()
        self.group: dict[int, tuple[str, str]] = {}
        self.begun: dict[tuple[str, str], set[int]] = defaultdict(set)

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "lane":
                self.ordered.discard(event.lane)
                if event.op == "+" and event.extra.get("in_order"):
                    self.ordered.add(event.lane)
            elif event.place == "lease" and event.op == "-":
                self._end(event.job)
        for event in transaction.events:
            if event.place == "waiting" and event.job in self.group:
                # It keeps its place, or was taken out: promoted, cancelled, moved.
                if event.op == "+" and event.extra.get("place") is not None:
                    self.begun[self.group[event.job]].add(event.job)
                else:
                    self._end(event.job)
        for event in claims(transaction):
            key = event.extra.get("group_key")
            if key and event.lane in self.ordered:
                group = event.lane, key
                self.counted["claims in order of a group"] += 1
                for job in self.begun[group] - {event.job}:
                    self.violated(
                        f"job {event.job} of group {key} of lane {event.lane} was"
                        f" claimed by transaction {transaction.xid}, though job {job}"
                        f" had begun before it and was to come back"
                    )
                self.group[event.job] = group
                self.begun[group].add(event.job)

    def _end(self, job: int) -> None:
        if job in self.group:
            self.begun[self.group[job]].discard(job)


class NothingIsClaimedWhilePaused(Invariant):
    """No claim commits while its lane is held or disabled."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: dict[tuple[str, str], int] = {}
        self.disabled: set[str] = set()

    def commit(self, transaction: Transaction) -> None:
        held = {**self.holds}
        for event in transaction.events:
            if event.place == "hold" and event.op == "+":
                self.holds[event.lane, event.name] = transaction.xid
            elif event.place == "hold":
                self.holds.pop((event.lane, event.name), None)
                held.pop((event.lane, event.name), None)
            elif event.place == "lane":
                self.disabled.discard(event.lane)
                if event.op == "+" and event.extra.get("enabled") is False:
                    self.disabled.add(event.lane)
        if self.holds or self.disabled:
            self.counted["commits under a hold"] += 1
        for event in claims(transaction):
            for (lane, holder), xid in held.items():
                if lane in ("", event.lane):
                    self.violated(
                        f"job {event.job} of lane {event.lane} was claimed by"
                        f" transaction {transaction.xid}, though {holder} had held"
                        f" {lane or 'every lane'} since transaction {xid}"
                    )
            if event.lane in self.disabled:
                self.violated(
                    f"job {event.job} was claimed by transaction {transaction.xid},"
                    f" though lane {event.lane} was disabled"
                )


class WorkersGetWhatTheyCanRun(Invariant):
    """A worker that names its kinds gets no other."""

    def __init__(self, kinds: Mapping[str, Iterable[str]]) -> None:
        super().__init__()
        self.kinds = {worker: set(named) for worker, named in kinds.items()}

    def commit(self, transaction: Transaction) -> None:
        for event in claims(transaction):
            if event.kind not in self.kinds.get(event.name, {event.kind}):
                self.violated(
                    f"job {event.job} of kind {event.kind} was claimed by"
                    f" {event.name}, which does not run that"
                )
