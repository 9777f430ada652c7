"""Producers in the model, and what they make of a unique key that is taken."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.engine.life import LANE, Job
from tests.engine.life_flows import Flows


class Keys(Flows):
    """A job that runs is followed by one more; one that waits is changed."""

    @rule(
        kind=st.sampled_from("ab"),
        priority=st.integers(-1, 1),
        delayed=st.booleans(),
        approval=st.sampled_from([False, False, True]),
        attempts=st.integers(1, 3),
        key=st.sampled_from([None, None, "x", "y"]),
        on_conflict=st.sampled_from(
            ["skip", "skip", "error", "replace", "follow", "follow", "cancel"]
        ),
    )
    def enqueue(
        self,
        kind: str,
        priority: int,
        delayed: bool,
        approval: bool,
        attempts: int,
        key: str | None,
        on_conflict: str,
    ) -> None:
        call = (
            "SELECT pulse.enqueue(%s, lane => %s, priority => %s, delay => %s,"
            " max_attempts => %s, unique_key => %s, requires_approval => %s,"
            " on_conflict => %s)"
        )
        given = (
            *(kind, LANE, priority, "1 hour" if delayed else None, attempts, key),
            *(approval, on_conflict),
        )
        job = Job("new", kind, priority, attempts, key, delayed, approval)
        holders = self.holders(key)
        if not holders:
            self.created(self.one(call, *given), job)
        elif on_conflict == "skip":
            assert self.one(call, *given) == holders[0]
        elif code := self.refusal(holders, job, on_conflict):
            self.refused(code, call, *given)
        elif on_conflict == "cancel":
            self.cancel_for(holders, self.one(call, *given), job)
        elif (old := self.to_change(holders, on_conflict)) is not None:
            self.change(old, self.one(call, *given), job)
        else:
            self.followed(holders[0], self.one(call, *given), job)

    def created(self, job_id: int, job: Job) -> None:
        assert job_id not in self.jobs
        self.jobs[job_id] = job
        self.release([job])

    def followed(self, before: int, job_id: int, job: Job) -> None:
        assert job_id not in self.jobs
        job.state, job.after, job.after_failed = "blocked", {before}, "run"
        job.policy = "run"
        self.jobs[job_id] = job

    def to_change(self, holders: list[int], on_conflict: str) -> int | None:
        """The newest that waits; None where only one that runs has the key."""
        newest = holders[0] if on_conflict == "replace" else holders[-1]
        return None if self.jobs[newest].state == "running" else newest

    def refusal(self, holders: list[int], job: Job, on_conflict: str) -> str | None:
        if on_conflict == "error" or job.kind != self.jobs[holders[0]].kind:
            return "PU102"
        if on_conflict == "cancel":
            return None
        old = self.to_change(holders, on_conflict)
        if old is None:
            return "PU103" if on_conflict == "replace" else None
        in_line = self.jobs[old].state in ("ready", "scheduled", "retrying")
        approved = self.jobs[old].needed_approval or job.needed_approval
        return "PU105" if in_line and approved else None

    def change(self, old_id: int, job_id: int, new: Job) -> None:
        old = self.jobs[old_id]
        if old.state == "awaiting_approval":
            new.max_attempts, new.needed_approval = old.max_attempts, True
            new.after, new.met = set(old.after), set(old.met)
            new.after_failed, new.policy = old.after_failed, old.policy
            self.created(job_id, new)
            self.ends(old, "cancelled")
            return
        assert job_id == old_id
        in_place = old.state == "ready" and new.priority == old.priority
        if old.state == "ready" and new.delayed:
            old.state = "scheduled"
        elif not (in_place or new.delayed or old.state == "blocked"):
            self.line_up(old)
        old.priority, old.delayed = new.priority, new.delayed
        old.needed_approval = old.needed_approval or new.needed_approval

    def cancel_for(self, holders: list[int], job_id: int, job: Job) -> None:
        """Newest wins: who waits is cancelled, who runs is asked to stop."""
        first = self.jobs[holders[0]]
        if first.state == "running":
            self.followed(holders[0], job_id, job)
            first.cancel_asked = True
            for behind in holders[1:]:
                self.ends(self.jobs[behind], "cancelled")
            return
        for old in reversed(holders):
            self.jobs[old].last = None
            self.ends(self.jobs[old], "cancelled")
        self.created(job_id, job)
