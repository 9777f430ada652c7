"""Producers in the model, and what they make of a unique key that is taken."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.engine import known_defects
from tests.engine.life import FINISHED, Job
from tests.engine.life_flows import GROUPS, Flows, hours

ENQUEUE = (
    "pulse.{}(%s, jsonb_build_object('n', %s::int), lane => %s, priority => %s,"
    " delay => %s, max_attempts => %s, unique_key => %s, unique_for => %s,"
    " requires_approval => %s, group_key => %s, expires_in => %s, on_conflict => %s)"
)


class Keys(Flows):
    """A job that runs is followed by one more; one that waits is changed."""

    @rule(
        kind=st.sampled_from("ab"),
        lane=st.sampled_from("mmmo"),
        group=st.sampled_from(GROUPS),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        delay=st.sampled_from([None, None, None, 1, 3]),
        expires=st.sampled_from([None, None, None, 1, 5]),
        approval=st.sampled_from([False, False, False, True]),
        attempts=st.integers(1, 3),
        key=st.sampled_from([None, None, None, "x", "y"]),
        unique_for=st.sampled_from([None, None, 1, 5]),
        on_conflict=st.sampled_from(
            ["skip", "error", "replace", "follow", "follow", "cancel"]
        ),
        one=st.booleans(),
    )
    def enqueue(self, **options: Any) -> None:
        self.do_enqueue(**options)

    def do_enqueue(
        self,
        kind: str = "a",
        lane: str = "m",
        group: str = "",
        priority: int = 0,
        delay: int | None = None,
        expires: int | None = None,
        approval: bool = False,
        attempts: int = 2,
        key: str | None = None,
        unique_for: int | None = None,
        on_conflict: str = "skip",
        one: bool = False,
    ) -> int | None:
        unique_for = unique_for if key else None
        job = Job("new", kind, priority, attempts, lane, group, self.number(), key)
        job.unique_for, job.needed_approval = unique_for, approval
        job.run_at = None if delay is None else self.clock + delay
        if expires is not None:
            job.start_by = (job.run_at or self.clock) + expires
        holders = self.holders(lane, key)
        if any(holder in self.busy for holder in holders):
            return None
        given = (
            *(kind, job.payload, lane, priority, hours(delay), attempts, key),
            *(hours(unique_for), approval, group or None, hours(expires), on_conflict),
        )
        code, old = self.conflict(holders, job, on_conflict)
        if code == "avoid":
            return None
        self.note("enqueue", lane)
        self.note_options(job, delay, expires)
        if holders:
            self.note(f"unique_key {on_conflict}", lane)
        call = ENQUEUE.format("enqueue_one" if one else "enqueue")
        if code:
            self.refused(code, f"SELECT {call}", *given)
            return None
        if one:
            row = self.db.execute(f"SELECT * FROM {call}".encode(), given).fetchone()
            assert row is not None
            job_id, created = row
            assert created == (job_id not in self.jobs), "created is wrong"
        else:
            job_id = self.one(f"SELECT {call}", *given)
        self.enqueued(job_id, job, holders, on_conflict, old)
        return int(job_id)

    def note_options(self, job: Job, delay: int | None, expires: int | None) -> None:
        features = {
            "priority": job.priority,
            "delay": delay,
            "expires_in": expires,
            "requires_approval": job.needed_approval,
            "unique_for": job.unique_for,
        }
        for feature, given in features.items():
            if given:
                self.note(feature, job.lane)

    def conflict(
        self, holders: list[int], job: Job, on_conflict: str
    ) -> tuple[str | None, int | None]:
        """The code that refuses it, if any, and the waiting job that it changes."""
        if not holders or on_conflict == "skip":
            return None, None
        first = self.jobs[holders[0]]
        if on_conflict == "error":
            return "PU102", None
        if first.state in FINISHED:
            return None, None
        if job.kind != first.kind:
            return "PU102", None
        if (
            known_defects.A_FOLLOWER_ENDS_UNIQUE_FOR
            and on_conflict in ("follow", "cancel")
            and (first.unique_for or job.unique_for)
        ):
            return "avoid", None
        if on_conflict == "cancel":
            return None, None
        newest = holders[0] if on_conflict == "replace" else holders[-1]
        if self.jobs[newest].state == "running":
            return ("PU103" if on_conflict == "replace" else None), None
        old = self.jobs[newest]
        in_line = old.state in ("ready", "scheduled", "retrying")
        if in_line and (old.needed_approval or job.needed_approval):
            return "PU105", None
        return None, newest

    def enqueued(
        self,
        job_id: int,
        job: Job,
        holders: list[int],
        on_conflict: str,
        old: int | None,
    ) -> None:
        if not holders:
            self.created(job_id, job)
        elif on_conflict == "skip" or self.jobs[holders[0]].state in FINISHED:
            assert job_id == holders[0], "G16: another job than the one with the key"
        elif on_conflict == "cancel":
            self.cancel_for(holders, job_id, job)
        elif old is not None:
            self.change(old, job_id, job)
        else:
            self.followed(holders[0], job_id, job)

    def created(self, job_id: int, job: Job) -> None:
        assert job_id not in self.jobs, "G16: it should have been a new job"
        self.jobs[job_id] = job
        self.release([job])

    def followed(self, before: int, job_id: int, job: Job) -> None:
        assert job_id not in self.jobs, "it should have been a new job"
        job.state, job.after, job.after_failed = "blocked", {before}, "run"
        job.policy, job.given = "run", (job.run_at, None, None)
        self.jobs[job_id] = job

    def change(self, old_id: int, job_id: int, new: Job) -> None:
        old = self.jobs[old_id]
        if old.state == "awaiting_approval":
            new.max_attempts, new.needed_approval = old.max_attempts, True
            new.group, new.unique_for = old.group, old.unique_for
            new.after, new.met = set(old.after), set(old.met)
            new.after_failed, new.policy = old.after_failed, old.policy
            until = old.approval_until
            self.created(job_id, new)
            new.approval_until = until
            old.unique_for = None  # The new job has the key.
            self.ends(old, "cancelled")
            return
        assert job_id == old_id
        old.payload, old.start_by = new.payload, new.start_by
        old.needed_approval = old.needed_approval or new.needed_approval
        same = new.priority == old.priority
        old.priority = new.priority
        if old.state == "blocked":
            old.run_at = new.run_at
            old.given = (new.run_at, None, None)
        elif old.state != "ready" or not same or not self.due(new):
            old.held = old.held and same
            self.put(old, new.run_at, retrying=old.state == "retrying")

    def cancel_for(self, holders: list[int], job_id: int, job: Job) -> None:
        """Newest wins: what waits is cancelled, what runs is asked to stop."""
        first = self.jobs[holders[0]]
        if first.state == "running":
            self.followed(holders[0], job_id, job)
            first.cancel_asked = True
            for behind in holders[1:]:
                self.ends(self.jobs[behind], "cancelled")
            return
        for old in reversed(holders):
            self.jobs[old].last, self.jobs[old].unique_for = None, None
            self.ends(self.jobs[old], "cancelled")
        self.created(job_id, job)
