"""What must hold for each job by itself: where it stands, its leases, its failures."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.history import Event, Transaction
from tests.chaos.invariants import Invariant, ending, moves
from tests.chaos.journal import Steps

CHARGED = ("fail", "reap")


class StandsInOnePlace(Invariant):
    """Every job stands in exactly one place after every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, tuple[str, ...]] = {}
        self.bodies: set[int] = set()

    def commit(self, transaction: Transaction) -> None:
        for job, events in moves(transaction).items():
            stands = list(self.places.get(job, ()))
            # One statement may put a job in before it takes it out.
            for event in sorted(events, key=lambda e: e.op == "-"):
                if event.place == "body":
                    if event.op == "+":
                        self.bodies.add(job)
                    elif event.op == "-":
                        self.bodies.discard(job)
                elif event.op == "+":
                    stands.append(event.place)
                elif event.place in stands:
                    stands.remove(event.place)
                else:
                    self.violated(
                        f"job {job} left {event.place}, where it was not"
                        f" (transaction {transaction.xid})"
                    )
            self.places[job] = tuple(stands)
            if len(stands) != (job in self.bodies):
                self.violated(
                    f"job {job} {'has' if job in self.bodies else 'has no'} body and"
                    f" stands in {', '.join(stands) or 'no place'} after transaction"
                    f" {transaction.xid}"
                )

    def compare(self, tables: Mapping[int, str], bodies: set[int]) -> None:
        """What the tables hold at the end must be what was committed."""
        for job in bodies ^ self.bodies:
            self.violated(
                f"the body of job {job} is {'there' if job in bodies else 'gone'},"
                " and no transaction says so"
            )
        stood = {job: places[0] for job, places in self.places.items() if places}
        for job in stood.keys() | tables.keys():
            before, after = stood.get(job), tables.get(job)
            if before != after:
                self.violated(
                    f"job {job} was committed to {before} and is found in {after}"
                )


class CompletedStaysCompleted(Invariant):
    """A completed job is never touched again, except to be pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.completed: set[int] = set()

    def commit(self, transaction: Transaction) -> None:
        for job, events in moves(transaction).items():
            if job in self.completed:
                rest = {(e.place, e.op) for e in events}
                if rest != {("finished", "-"), ("body", "-")}:
                    self.violated(
                        f"job {job} was completed; transaction {transaction.xid} then"
                        f" moved it: {sorted(rest)}"
                    )
            if any(e.state == "completed" and e.op == "+" for e in events):
                self.completed.add(job)


class LeasesGrow(Invariant):
    """A job has at most one live lease; its leases and attempts grow."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.last: dict[int, tuple[int, int]] = {}
        self.seen: set[int] = set()

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place != "lease" or event.lease is None:
                continue
            if event.op == "-":
                if self.live.get(event.job) == event.lease:
                    del self.live[event.job]
                continue
            lease, attempt = self.last.get(event.job, (0, 0))
            if event.job in self.live:
                self.violated(
                    f"job {event.job} has two live leases, {self.live[event.job]} and"
                    f" {event.lease} of {event.name}, since transaction"
                    f" {transaction.xid}"
                )
            if event.lease in self.seen or event.lease <= lease:
                self.violated(
                    f"job {event.job} got lease {event.lease} after lease {lease}"
                )
            if event.attempt <= attempt:
                self.violated(
                    f"job {event.job} ran attempt {event.attempt} after attempt"
                    f" {attempt}"
                )
            self.seen.add(event.lease)
            self.live[event.job] = event.lease
            self.last[event.job] = (event.lease, event.attempt)


class OnlyTheHolderEndsARun(Invariant):
    """What ends a run names the lease that was live."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps
        self.live: dict[int, int] = {}

    def commit(self, transaction: Transaction) -> None:
        ended: set[int | None] = set()
        for event in transaction.events:
            if event.place == "lease" and event.op == "-" and event.lease is not None:
                self.live.pop(event.lease, None)
                ended.add(event.lease)
                self._judge(transaction, event)
            elif event.place == "lease" and event.lease is not None:
                self.live[event.lease] = event.job
        for event in transaction.events:
            if event.lease is None or event.lease in ended:
                continue
            if event.place == "finished" and event.op == "+":
                self.violated(
                    f"job {event.job} was {event.state} by {event.verb} of lease"
                    f" {event.lease}, which was not live (transaction"
                    f" {transaction.xid})"
                )
            if event.place == "job_progress" and event.lease not in self.live:
                self.violated(
                    f"progress of job {event.job} was taken from lease {event.lease},"
                    " which was not live"
                )

    def _judge(self, transaction: Transaction, left: Event) -> None:
        after = ending(transaction, left)
        if after.lease != left.lease and after.verb != "cancel":
            self.violated(
                f"lease {left.lease} of job {left.job} was taken out by a"
                f" {after.verb} of lease {after.lease} (transaction {transaction.xid})"
            )
        early = left.until - left.at - left.ahead
        if (
            after.verb == "reap"
            and early > 0
            and not self.steps.between(transaction.started, left.at)
        ):
            self.violated(
                f"lease {left.lease} of job {left.job} was reaped {early:.3f} s before"
                " it lapsed"
            )


class FailuresAreBounded(Invariant):
    """A job fails at most max_attempts times, unless retried by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed: dict[int, int] = {}
        self.failures: dict[int, int] = {}

    def commit(self, transaction: Transaction) -> None:
        for job, events in moves(transaction).items():
            for event in events:
                if event.place == "body" and event.op == "+":
                    self.allowed[job] = int(event.extra.get("max_attempts", 0))
                elif event.place == "lease" and event.op == "-":
                    if ending(transaction, event).verb in CHARGED:
                        self.failures[job] = self.failures.get(job, 0) + 1
                elif event.place == "lease":
                    self._claimed(event)
                elif event.place == "finished" and event.op == "-":
                    # Back in line by an operator: the count starts anew.
                    self.failures.pop(job, None)
            failures, allowed = self.failures.get(job, 0), self.allowed.get(job, 0)
            if failures > allowed:
                self.violated(f"job {job} failed {failures} times of {allowed}")

    def _claimed(self, event: Event) -> None:
        failures = self.failures.get(event.job, 0)
        if failures >= self.allowed.get(event.job, 0) or failures != event.failures:
            self.violated(
                f"job {event.job} was claimed with {event.failures} failures noted,"
                f" {failures} happened, {self.allowed.get(event.job, 0)} allowed"
            )
