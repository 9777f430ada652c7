"""What a promotion may lose, and what it may not bring back: a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.history import Event, Record, Transaction
from tests.chaos.invariants import Invariant, ending

# What operators.SETUP gives every lane.
LEASE_FOR = 3.0


@dataclass
class Losses:
    """What old primaries had committed and their asynchronous successors never saw.

    It excuses, one by one, what clients were told of it. Whatever else is missing was
    lost for no reason.
    """

    transactions: list[Transaction] = field(default_factory=list)
    # When those primaries ended.
    ends: list[float] = field(default_factory=list)
    jobs: dict[int, str] = field(default_factory=dict)
    runs: dict[int, tuple[int, int]] = field(default_factory=dict)
    reports: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Losses:
        losses = cls()
        for record in records:
            if record["what"] == "fault" and "lost" in record:
                losses.ends.append(record["until"])
                for row in record["lost"]:
                    events = [Event(**event) for event in row["events"]]
                    losses.add(Transaction(**{**row, "events": events}))
        return losses

    def add(self, transaction: Transaction) -> None:
        self.transactions.append(transaction)
        for event in transaction.events:
            if event.place == "body" and event.op == "+":
                self.jobs[event.job] = event.extra.get("op") or ""
            elif event.place == "lease" and event.lease is not None:
                if event.op == "+":
                    self.runs[event.lease] = event.job, event.attempt
                else:
                    self.reports[event.lease] = ending(transaction, event).verb or ""

    def heartbeat(self, claimed: float, at: float) -> bool:
        """Whether a beat that kept such a lease alive until then may be lost."""
        return any(claimed <= end and at <= end + LEASE_FOR for end in self.ends)


class NumbersAreHandedOutOnce(Invariant):
    """No job id and no lease number is handed out twice, whatever was lost."""

    def __init__(self, losses: Losses) -> None:
        super().__init__()
        self.jobs: dict[int, str] = {}
        self.leases: dict[int, int] = {}
        for transaction in losses.transactions:
            self.counted["transactions lost by promotions"] += 1
            self.commit(transaction)

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.op != "+":
                continue
            if event.place == "body":
                op = event.extra.get("op") or ""
                if event.job in self.jobs:
                    self.violated(
                        f"job id {event.job} was handed out for"
                        f" {self.jobs[event.job]!r} and again for {op!r}"
                    )
                self.jobs[event.job] = op
            elif event.place == "lease" and event.lease is not None:
                if event.lease in self.leases:
                    self.violated(
                        f"lease {event.lease} was handed out for job"
                        f" {self.leases[event.lease]} and again for job {event.job}"
                    )
                self.leases[event.lease] = event.job
