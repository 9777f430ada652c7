"""The life of a job in plain Python, and what workers may do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

LANE = "model"
WAITING = {"awaiting_approval", "scheduled", "retrying", "ready"}
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
    place: int = 0
    attempts: int = 0
    failures: int = 0
    lease: int | None = None
    cancel_asked: bool = False
    last: tuple[int, str] | None = None
    """The report that brought it where it stands: that one may be repeated."""
    after: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)
    """Upstreams that have ended once, which is enough for it."""
    after_failed: str = "cancel"
    policy: str = "cancel"
    """after_failed, unless it was retried to wait for what has failed."""
    by_upstream: bool = False
    steps: dict[str, Any] = field(default_factory=dict)
    begun: dict[str, bool] = field(default_factory=dict)
    """Waits that have begun, and whether their time is over."""
    waits: str | None = None
    """The signal that it was given back for."""


def has(*states: str) -> Callable[[Reports], bool]:
    """A rule that needs a job in one of these states."""
    return lambda life: any(j.state in states for j in life.jobs.values())


class Reports(RuleBasedStateMachine):
    """What workers report."""

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

    def ends(self, job: Job, state: str) -> None:
        job.state = state

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

    def holders(self, key: str | None) -> list[int]:
        """Who has a key, and who follows that one."""
        return sorted(
            (
                job_id
                for job_id, job in self.jobs.items()
                if key and job.key == key and job.state not in FINISHED
            ),
            key=lambda job_id: self.jobs[job_id].state == "blocked",
        )

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
            job.waits = None
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
        self.ends(job, "completed")

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
        asked = job.cancel_asked
        self.end_run(job, verb)
        if asked:
            self.ends(job, "cancelled")
        elif fatal or job.failures >= job.max_attempts:
            self.ends(job, "dead")
        else:
            job.state, job.delayed = "retrying", True

    @precondition(has("running"))
    @rule(data=st.data(), verb=st.sampled_from(["release", "snooze"]))
    def give_back(self, data: st.DataObject, verb: str) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        if verb == "release":
            self.db.execute("SELECT pulse.release(ARRAY[%s::bigint])", (job.lease,))
        else:
            self.db.execute("SELECT pulse.snooze(%s, '1 hour')", (job.lease,))
        asked = job.cancel_asked
        self.end_run(job, verb)
        if asked:
            self.ends(job, "cancelled")
        elif verb == "release":
            self.line_up(job)
        else:
            job.state, job.delayed = "scheduled", True

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
        self.ends(job, "cancelled")

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
