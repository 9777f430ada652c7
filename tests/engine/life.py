"""The life of a job in plain Python, and what producers and workers may do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

LANE = "model"
WAITING = {"awaiting_approval", "scheduled", "retrying", "ready", "blocked"}
FINISHED = {"completed", "dead", "cancelled"}
VERBS = {
    "complete": "pulse.complete(%s)",
    "fail": "pulse.fail(%s)",
    "snooze": "pulse.snooze(%s, '1 second')",
    "release": "verdict FROM pulse.release(ARRAY[%s::bigint])",
    "ack_cancel": "pulse.ack_cancel(%s)",
    "progress": "pulse.progress(%s, 0.5)",
    "checkpoint": "pulse.checkpoint(%s, '{}')",
}


@dataclass
class Job:
    state: str
    kind: str
    priority: int
    max_attempts: int
    key: str | None
    delayed: bool
    needed_approval: bool = False
    follows: int | None = None
    place: int = 0
    attempts: int = 0
    failures: int = 0
    lease: int | None = None
    cancel_asked: bool = False
    last: tuple[int, str] | None = None
    """The report that brought it where it stands: that one may be repeated."""


def has(*states: str) -> Callable[[Reports], bool]:
    """A rule that needs a job in one of these states."""
    return lambda life: any(j.state in states for j in life.jobs.values())


class Reports(RuleBasedStateMachine):
    """Producers and workers."""

    connect: Callable[[], psycopg.Connection[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.db = type(self).connect()
        self.db.execute("BEGIN")
        self.db.execute("SELECT pulse.set_lane(%s, enabled => true)", [LANE])
        self.jobs: dict[int, Job] = {}
        self.stale: list[int] = []
        self.places = 0
        self.held: set[tuple[str, str | None]] = set()
        self.slots: int | None = None
        self.enabled = True

    def teardown(self) -> None:
        self.db.execute("ROLLBACK")

    # Helpers -----------------------------------------------------------------

    def one(self, statement: str, *parameters: object) -> Any:
        row = self.db.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        return row[0]

    def refused(self, code: str, statement: str, *parameters: object) -> None:
        with (
            pytest.raises(psycopg.Error) as caught,
            self.db.transaction(),
        ):
            self.db.execute(statement.encode(), parameters)
        assert caught.value.sqlstate == code

    def line_up(self, job: Job) -> None:
        self.places += 1
        job.state, job.place = "ready", self.places

    def retried(self, job: Job) -> None:
        job.failures, job.last = 0, None
        if job.needed_approval and job.attempts == 0:
            job.state, job.delayed = "awaiting_approval", False
        else:
            self.line_up(job)

    def end_run(self, job: Job, verb: str | None) -> None:
        assert job.lease is not None
        self.stale.append(job.lease)
        job.last = (job.lease, verb) if verb else None
        job.lease = None
        job.cancel_asked = False

    def some(self, data: st.DataObject, *states: str) -> int:
        found = sorted(i for i, j in self.jobs.items() if j.state in states)
        return data.draw(st.sampled_from(found))

    def holder(self, key: str | None) -> int | None:
        for job_id, job in self.jobs.items():
            unfinished = job.state not in (*FINISHED, "blocked")
            if key and job.key == key and unfinished:
                return job_id
        return None

    def follower(self, key: str | None) -> int | None:
        for job_id, job in self.jobs.items():
            if key and job.key == key and job.state == "blocked":
                return job_id
        return None

    def release_followers(self) -> None:
        """The end of a job, whatever it was, lets the one behind it go."""
        for job in self.jobs.values():
            before = self.jobs.get(job.follows or 0)
            if job.state != "blocked" or (before and before.state not in FINISHED):
                continue
            self.place(job)

    def needed(self, job_id: int) -> bool:
        """A job that followed it has not run, and may yet."""
        return any(
            job.follows == job_id and job.state != "completed" and not job.attempts
            for job in self.jobs.values()
        )

    def place(self, job: Job) -> None:
        if job.needed_approval:
            job.state = "awaiting_approval"
        elif job.delayed:
            job.state = "scheduled"
        else:
            self.line_up(job)

    # Producers ---------------------------------------------------------------

    @rule(
        kind=st.sampled_from("ab"),
        priority=st.integers(-1, 1),
        delayed=st.booleans(),
        approval=st.sampled_from([False, False, True]),
        attempts=st.integers(1, 3),
        key=st.sampled_from([None, None, "x", "y"]),
        on_conflict=st.sampled_from(
            ["skip", "skip", "error", "replace", "follow", "follow", "merge", "cancel"]
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
        existing = self.holder(key)
        if existing is None:
            self.created(self.one(call, *given), job)
            self.place(job)
        elif on_conflict == "skip":
            assert self.one(call, *given) == existing
        elif code := self.conflict(existing, job, on_conflict):
            self.refused(code, call, *given)
        elif on_conflict == "cancel":
            self.cancel_for(existing, self.one(call, *given), job)
        elif (changed := self.changed(existing, on_conflict)) is None:
            job.state, job.follows = "blocked", existing
            self.created(self.one(call, *given), job)
        else:
            self.change(changed, self.one(call, *given), job, on_conflict == "merge")

    def created(self, job_id: int, job: Job) -> None:
        assert job_id not in self.jobs
        self.jobs[job_id] = job

    def changed(self, existing: int, on_conflict: str) -> int | None:
        """Which job replace, follow and merge change; None: a new one follows."""
        behind = self.follower(self.jobs[existing].key)
        if on_conflict != "replace" and behind is not None:
            return behind
        return None if self.jobs[existing].state == "running" else existing

    def conflict(self, existing: int, job: Job, on_conflict: str) -> str | None:
        """With what an enqueue that finds its key taken is refused."""
        if on_conflict == "error" or job.kind != self.jobs[existing].kind:
            return "PU102"
        if on_conflict == "cancel":
            return None
        changed = self.changed(existing, on_conflict)
        if changed is None:
            return "PU103" if on_conflict == "replace" else None
        old = self.jobs[changed]
        in_line = old.state in ("ready", "scheduled", "retrying")
        approved = old.needed_approval or job.needed_approval
        return "PU105" if in_line and approved else None

    def change(self, old_id: int, job_id: int, new: Job, merge: bool) -> None:
        old = self.jobs[old_id]
        if merge:
            new.priority = max(new.priority, old.priority)
            new.delayed = new.delayed and old.delayed and old.state != "ready"
        if old.state == "awaiting_approval":
            new.max_attempts, new.needed_approval = old.max_attempts, True
            self.created(job_id, new)
            self.place(new)
            old.state = "cancelled"
            return
        assert job_id == old_id
        if old.state == "ready":
            if new.delayed:
                old.state = "scheduled"
            elif new.priority != old.priority:
                self.line_up(old)
        elif old.state != "blocked" and not new.delayed:
            self.line_up(old)
        old.priority, old.delayed = new.priority, new.delayed
        old.needed_approval = old.needed_approval or new.needed_approval

    def cancel_for(self, existing: int, job_id: int, job: Job) -> None:
        """Newest wins: who waits is cancelled, who runs is asked to stop."""
        behind = self.follower(job.key)
        if behind is not None:
            self.jobs[behind].state = "cancelled"
        self.created(job_id, job)
        old = self.jobs[existing]
        if old.state == "running":
            old.cancel_asked = True
            job.state, job.follows = "blocked", existing
        else:
            old.state, old.last = "cancelled", None
            self.place(job)

    # Workers -----------------------------------------------------------------

    @rule(n=st.integers(1, 4), kinds=st.sampled_from([None, ["a"], ["b"], ["a", "b"]]))
    def claim(self, n: int, kinds: list[str] | None) -> None:
        rows = self.db.execute(
            "SELECT job_id, lease, attempt, failures, priority"
            " FROM pulse.claim_batch('w', %s, %s, kinds => %s)",
            (LANE, n, kinds),
        ).fetchall()
        running = sum(j.state == "running" for j in self.jobs.values())
        room = n if self.slots is None else max(0, min(n, self.slots - running))
        line = sorted(
            (-j.priority, j.place, i)
            for i, j in self.jobs.items()
            if j.state == "ready" and (kinds is None or j.kind in kinds)
        )
        shut = self.held or not self.enabled
        expected = [] if shut else [i for _, _, i in line[:room]]
        assert [row[0] for row in rows] == expected
        for job_id, lease, attempt, failures, priority in rows:
            job = self.jobs[job_id]
            job.state, job.lease, job.last = "running", lease, None
            job.attempts += 1
            assert (attempt, failures, priority) == (
                job.attempts,
                job.failures,
                job.priority,
            )

    @precondition(has("running"))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        for _ in range(2):  # the second time, its answer was lost
            self.db.execute("SELECT pulse.complete(%s, '1')", (job.lease,))
        self.end_run(job, "complete")
        job.state = "completed"

    @precondition(has("running"))
    @rule(data=st.data(), fatal=st.booleans())
    def fail(self, data: st.DataObject, fatal: bool) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        self.db.execute(
            "SELECT pulse.fail(%s, 'boom', '1 hour', %s)", (job.lease, fatal)
        )
        self.end_badly(job, "fail", fatal)

    def end_badly(self, job: Job, verb: str, fatal: bool = False) -> None:
        job.failures += 1
        if job.cancel_asked:
            job.state = "cancelled"
        elif fatal or job.failures >= job.max_attempts:
            job.state = "dead"
        else:
            job.state, job.delayed = "retrying", True
        self.end_run(job, verb)

    @precondition(has("running"))
    @rule(data=st.data(), verb=st.sampled_from(["release", "snooze"]))
    def give_back(self, data: st.DataObject, verb: str) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        if verb == "release":
            self.db.execute("SELECT pulse.release(ARRAY[%s::bigint])", (job.lease,))
        else:
            self.db.execute("SELECT pulse.snooze(%s, '1 hour')", (job.lease,))
        if job.cancel_asked:
            job.state = "cancelled"
        elif verb == "release":
            self.line_up(job)
        else:
            job.state, job.delayed = "scheduled", True
        self.end_run(job, verb)

    @precondition(has("running"))
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        verdict = self.one(
            "SELECT verdict FROM pulse.heartbeat(ARRAY[%s::bigint])", job.lease
        )
        assert verdict == ("cancel" if job.cancel_asked else "ok")

    @precondition(has("running"))
    @rule(data=st.data())
    def acknowledge_cancel(self, data: st.DataObject) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        if not job.cancel_asked:
            self.refused("PU105", "SELECT pulse.ack_cancel(%s)", job.lease)
            return
        self.db.execute("SELECT pulse.ack_cancel(%s)", (job.lease,))
        self.end_run(job, "ack_cancel")
        job.state = "cancelled"

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), verb=st.sampled_from(list(VERBS)))
    def a_stale_lease_changes_nothing(self, data: st.DataObject, verb: str) -> None:
        """Refused, unless it is the report that brought the job where it stands."""
        lease = data.draw(st.sampled_from(self.stale))
        verdict = self.one(
            "SELECT verdict FROM pulse.heartbeat(ARRAY[%s::bigint])", lease
        )
        assert verdict == "lost"
        repeated = any(job.last == (lease, verb) for job in self.jobs.values())
        call = f"SELECT {VERBS[verb]}"
        if verb == "release":
            assert self.one(call, lease) == ("ok" if repeated else "lost")
        elif repeated:
            self.db.execute(call.encode(), (lease,))
        else:
            self.refused("PU101", call, lease)
