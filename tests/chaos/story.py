"""Histories made by hand, for tests of the checker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tests.chaos.checker import Final, judge
from tests.chaos.history import Event, Record, Transaction

JOB = 1024


class Story:
    """A history told in short: each tell is one transaction a second later."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.records: list[Record] = []
        self.final = Final()

    @property
    def now(self) -> float:
        return float(len(self.transactions))

    def tell(self, *events: Event, pid: int = 1, took: float = 0.5) -> Story:
        at = self.now + 1
        for event in events:
            event.at = event.at or at - took / 2
        self.transactions.append(
            Transaction(len(self.transactions), pid, at - took, at, list(events))
        )
        return self

    def note(self, what: str, **fields: Any) -> Story:
        self.records.append({"t": self.now + 0.25, "who": "p", "what": what, **fields})
        return self

    def enqueue(
        self, job: int = JOB, lane: str = "l", rank: int = 0, pid: int = 1, **body: Any
    ) -> Story:
        extra = {"op": f"op{job}", "max_attempts": 2, **body}
        return self.tell(
            Event("body", "+", job=job, kind="k", extra=extra),
            ready("+", job, lane, rank),
            pid=pid,
        )

    def enqueue_after(self, job: int, after: int, **body: Any) -> Story:
        extra = {"op": f"op{job}", "max_attempts": 2, **body}
        return self.tell(
            Event("body", "+", job=job, kind="k", extra=extra),
            depends(job, after),
            blocked("+", job),
        )

    def claim(self, lease: int, job: int = JOB, lane: str = "l", **more: Any) -> Story:
        return self.tell(ready("-", job, lane), leased("+", lease, job, lane, **more))

    def complete(self, lease: int, job: int = JOB) -> Story:
        return self.tell(leased("-", lease, job), finished(lease, job))

    def retry(self, lease: int, verb: str, job: int = JOB, failures: int = 1) -> Story:
        """A run ends badly and the job is in line again."""
        return self.tell(
            leased("-", lease, job),
            ready("+", job, lease=lease, verb=verb, failures=failures, line=lease),
        )

    def violations(self) -> set[str]:
        """Which promises are broken; the tables agree with what was committed."""
        for transaction in self.transactions:
            for e in sorted(transaction.events, key=lambda e: e.op == "+"):
                if e.place == "body":
                    (
                        self.final.bodies.add
                        if e.op == "+"
                        else self.final.bodies.discard
                    )(e.job)
                elif e.place in ("blocked", "ready", "lease", "finished"):
                    if e.op == "+":
                        self.final.places[e.job] = e.place
                    elif self.final.places.get(e.job) == e.place:
                        del self.final.places[e.job]
        report = judge(self.records, self.transactions, self.final)
        assert len(report.violations) <= report.counted["violations"]
        return {violation.invariant for violation in report.violations}


def ready(
    op: str, job: int = JOB, lane: str = "l", rank: int = 0, **more: Any
) -> Event:
    return Event(
        "ready", op, job=job, lane=lane, kind="k", rank=rank, **{"line": job, **more}
    )


def leased(
    op: str, lease: int, job: int = JOB, lane: str = "l", attempt: int = 1, **more: Any
) -> Event:
    return Event(
        "lease", op, job=job, lease=lease, lane=lane, kind="k", attempt=attempt,
        **{"name": "w", **more},
    )  # fmt: skip


def finished(lease: int | None, job: int = JOB, **more: Any) -> Event:
    said = {"verb": "complete", "state": "completed", **more}
    return Event("finished", "+", job=job, lease=lease, lane="l", kind="k", **said)


def blocked(op: str, job: int = JOB) -> Event:
    return Event("blocked", op, job=job, lane="l", kind="k")


def depends(job: int, after: int) -> Event:
    return Event("dependency", "+", job=job, line=after)


def saved(step: str, job: int = JOB, **more: Any) -> Event:
    return Event("job_step", "=", job=job, name=step, extra={"saved": True, **more})


def slots(lane: str, n: int | None, enabled: bool = True) -> Event:
    return Event("lane", "+", lane=lane, extra={"max_slots": n, "enabled": enabled})


def group_slots(lane: str, n: int) -> Event:
    return Event("lane", "+", lane=lane, extra={"group_slots": n})


def in_order(lane: str) -> Event:
    return Event("lane", "+", lane=lane, extra={"group_slots": 1, "in_order": True})


def hold(op: str, lane: str = "") -> Event:
    return Event("hold", op, lane=lane, name="ann")


def run_at(at: float, job: int = 0, skipped: str | None = None) -> Event:
    return Event("schedule_run", "+", name="s", until=at, job=job, verb=skipped)


def scheduled() -> Story:
    recurrence = {"every": 10, "anchor": 100.0, "paused": None}
    return Story().tell(Event("schedule", "+", name="s", extra=recurrence))


def fired(story: Story, at: float, job: int) -> Story:
    return story.tell(
        Event("body", "+", job=job, kind="k", extra={"max_attempts": 3}),
        ready("+", job),
        run_at(at, job),
    )


def began(story: Story, lease: int, **more: Any) -> Story:
    fields = {"job_id": JOB, "attempt": 1, "lease": lease, "kind": "k", "lane": "l"}
    return story.note("effect_begin", **{**fields, **more})


def lost(story: Story, gone: Story) -> Story:
    """What happened on a primary whose standby was promoted without it."""
    rows = [asdict(transaction) for transaction in gone.transactions]
    return story.note("fault", name="loss", lost=rows, until=story.now)


def stepped(story: Story, at: float, ahead: float) -> Story:
    return story.note("fault", name="clock", since=at, until=at, ahead=ahead)


def told(story: Story, **more: Any) -> Story:
    tried = {"op": "op1024", "kind": "k", "lane": "l", "priority": 0}
    return story.note("enqueue_try", **{**tried, "unique_key": None, **more})


def whole() -> Story:
    """One job from enqueue to completion, with all that clients say."""
    story = told(Story()).enqueue().note("enqueue_ack", op="op1024", job_id=JOB)
    story = began(story.claim(7), 7).complete(7)
    return story.note("verb_ack", verb="complete", lease=7, job_id=JOB)
