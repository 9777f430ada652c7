"""Random verbs against a model of the life of a job, compared after every step.

The model is the table of states in plain Python. Whatever it says must be what the
database says: states, counts, who is claimed in which order, which report is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import Database

LANE = "model"
WAITING = {"awaiting_approval", "scheduled", "retrying", "ready"}
FINISHED = {"completed", "dead", "cancelled"}


@dataclass
class Job:
    state: str
    kind: str
    priority: int
    max_attempts: int
    key: str | None
    delayed: bool
    place: int = 0
    attempts: int = 0
    failures: int = 0
    lease: int | None = None
    cancel_asked: bool = False


def has(*states: str) -> Callable[[Life], bool]:
    """A rule that needs a job in one of these states."""
    return lambda life: any(j.state in states for j in life.jobs.values())


class Life(RuleBasedStateMachine):
    connect: Callable[[], psycopg.Connection[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.db = type(self).connect()
        self.db.execute("BEGIN")
        self.jobs: dict[int, Job] = {}
        self.stale: list[int] = []
        self.places = 0
        self.held: set[tuple[str, str | None]] = set()
        self.slots: int | None = None

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

    def end_run(self, job: Job) -> None:
        assert job.lease is not None
        self.stale.append(job.lease)
        job.lease = None
        job.cancel_asked = False

    def some(self, data: st.DataObject, *states: str) -> int:
        found = sorted(i for i, j in self.jobs.items() if j.state in states)
        return data.draw(st.sampled_from(found))

    def holder(self, key: str | None) -> int | None:
        for job_id, job in self.jobs.items():
            if key and job.key == key and job.state not in FINISHED:
                return job_id
        return None

    # Producers ---------------------------------------------------------------

    @rule(
        kind=st.sampled_from("ab"),
        priority=st.integers(-1, 1),
        delayed=st.booleans(),
        approval=st.sampled_from([False, False, True]),
        attempts=st.integers(1, 3),
        key=st.sampled_from([None, None, "x", "y"]),
    )
    def enqueue(
        self,
        kind: str,
        priority: int,
        delayed: bool,
        approval: bool,
        attempts: int,
        key: str | None,
    ) -> None:
        job_id = self.one(
            "SELECT pulse.enqueue(%s, lane => %s, priority => %s, delay => %s,"
            " max_attempts => %s, unique_key => %s, requires_approval => %s)",
            kind,
            LANE,
            priority,
            "1 hour" if delayed else None,
            attempts,
            key,
            approval,
        )
        if (existing := self.holder(key)) is not None:
            assert job_id == existing
            return
        assert job_id not in self.jobs
        job = Job("new", kind, priority, attempts, key, delayed)
        self.jobs[job_id] = job
        if approval:
            job.state = "awaiting_approval"
        elif delayed:
            job.state = "scheduled"
        else:
            self.line_up(job)

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
        expected = [] if self.held else [i for _, _, i in line[:room]]
        assert [row[0] for row in rows] == expected
        for job_id, lease, attempt, failures, priority in rows:
            job = self.jobs[job_id]
            job.state, job.lease = "running", lease
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
        self.end_run(job)
        job.state = "completed"

    @precondition(has("running"))
    @rule(data=st.data(), fatal=st.booleans())
    def fail(self, data: st.DataObject, fatal: bool) -> None:
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        self.db.execute(
            "SELECT pulse.fail(%s, 'boom', '1 hour', %s)", (job.lease, fatal)
        )
        self.end_badly(job, fatal)

    def end_badly(self, job: Job, fatal: bool = False) -> None:
        job.failures += 1
        if job.cancel_asked:
            job.state = "cancelled"
        elif fatal or job.failures >= job.max_attempts:
            job.state = "dead"
        else:
            job.state, job.delayed = "retrying", True
        self.end_run(job)

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
        self.end_run(job)

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
        self.end_run(job)
        job.state = "cancelled"

    @precondition(lambda self: self.stale)
    @rule(
        data=st.data(),
        call=st.sampled_from(
            [
                "pulse.progress(%s, 0.5)",
                "pulse.checkpoint(%s, '{}')",
                "pulse.snooze(%s, '1 second')",
            ]
        ),
    )
    def a_stale_lease_changes_nothing(self, data: st.DataObject, call: str) -> None:
        lease = data.draw(st.sampled_from(self.stale))
        verdict = self.one(
            "SELECT verdict FROM pulse.heartbeat(ARRAY[%s::bigint])", lease
        )
        assert verdict == "lost"
        if "snooze" not in call:  # a repeated snooze is not stale
            self.refused("PU101", f"SELECT {call}", lease)

    # Time --------------------------------------------------------------------

    @rule()
    def an_hour_passes_for_what_waits(self) -> None:
        self.db.execute("UPDATE pulse.waiting SET run_at = run_at - interval '2 hours'")
        self.db.execute(
            "UPDATE pulse.approval SET run_at = run_at - interval '2 hours'"
        )
        self.db.execute("DELETE FROM pulse.due_mark")
        order = self.db.execute(
            "SELECT job FROM pulse.waiting ORDER BY run_at, job"
        ).fetchall()
        self.db.execute("SELECT pulse._tick_promote()")
        for (job_id,) in order:
            self.line_up(self.jobs[job_id])
        for job in self.jobs.values():
            job.delayed = False

    @precondition(has("running"))
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        job_id = self.some(data, "running")
        self.db.execute(
            "UPDATE pulse.lease SET reap_at = claimed_at - interval '1 day',"
            " lease_until = claimed_at - interval '1 day' WHERE job = %s",
            (job_id,),
        )
        assert self.one("SELECT pulse.reap()") == 1
        self.end_badly(self.jobs[job_id])

    @rule()
    def marks_advance(self) -> None:
        self.db.execute(
            "UPDATE pulse.horizon SET seen_at = seen_at - interval '1 second'"
        )
        self.db.execute("SELECT pulse._tick_marks()")

    # Operators ---------------------------------------------------------------

    @precondition(has(*WAITING, "running", *FINISHED))
    @rule(data=st.data(), force=st.booleans())
    def cancel(self, data: st.DataObject, force: bool) -> None:
        job_id = self.some(data, *WAITING, "running", *FINISHED)
        job = self.jobs[job_id]
        call = "SELECT pulse.cancel(%s, force => %s)"
        if job.state in ("completed", "dead"):
            self.refused("PU105", call, job_id, force)
            return
        state = self.one(call, job_id, force)
        if job.state == "running" and not force:
            job.cancel_asked = True
        elif job.state == "running":
            self.end_run(job)
            job.state = "cancelled"
        else:
            job.state = "cancelled"
        assert state == job.state

    @precondition(has(*WAITING, *FINISHED))
    @rule(data=st.data(), approve=st.booleans())
    def decide(self, data: st.DataObject, approve: bool) -> None:
        job_id = self.some(data, *WAITING, *FINISHED)
        job = self.jobs[job_id]
        call = f"SELECT pulse.{'approve' if approve else 'reject'}(%s)"
        if job.state != "awaiting_approval":
            self.refused("PU105", call, job_id)
            return
        self.db.execute(call.encode(), (job_id,))
        if not approve:
            job.state = "cancelled"
        elif job.delayed:
            job.state = "scheduled"
        else:
            self.line_up(job)

    @precondition(has(*WAITING, *FINISHED))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = self.some(data, *WAITING, *FINISHED)
        job = self.jobs[job_id]
        if job.state not in ("dead", "cancelled"):
            self.refused("PU105", "SELECT pulse.retry(%s)", job_id)
        elif self.holder(job.key) is not None:
            self.refused("PU102", "SELECT pulse.retry(%s)", job_id)
        else:
            self.db.execute("SELECT pulse.retry(%s)", (job_id,))
            job.failures = 0
            self.line_up(job)

    @precondition(has("ready", "scheduled", "retrying"))
    @rule(data=st.data(), priority=st.integers(-1, 1))
    def reprioritize(self, data: st.DataObject, priority: int) -> None:
        job_id = self.some(data, "ready", "scheduled", "retrying")
        job = self.jobs[job_id]
        self.db.execute("SELECT pulse.reprioritize(%s, %s)", (job_id, priority))
        if job.state == "ready" and job.priority != priority:
            self.line_up(job)
        job.priority = priority

    @precondition(lambda self: len(self.held) < 2)
    @rule(
        holder=st.sampled_from(["ann", "bob"]),
        lane=st.sampled_from([None, LANE]),
        seldom=st.integers(0, 4),
    )
    def pause(self, holder: str, lane: str | None, seldom: int) -> None:
        if seldom:
            return
        new = (holder, lane) not in self.held
        assert self.one("SELECT pulse.pause(%s, lane => %s)", holder, lane) == new
        self.held.add((holder, lane))

    @precondition(lambda self: self.held)
    @rule()
    def resume(self) -> None:
        holder, lane = self.held.pop()
        assert self.one("SELECT pulse.resume(%s, %s)", holder, lane)

    @rule(slots=st.sampled_from([None, None, None, 1, 2, 3]))
    def set_slots(self, slots: int | None) -> None:
        self.db.execute(
            "SELECT pulse.set_lane(%s, max_slots => %s)", (LANE, slots or 0)
        )
        self.slots = slots

    # What must hold ----------------------------------------------------------

    @invariant()
    def the_database_agrees(self) -> None:
        rows = self.db.execute(
            "SELECT job_id, state, attempts, failures, priority FROM pulse.jobs"
        ).fetchall()
        assert {row[0]: row[1:] for row in rows} == {
            job_id: (j.state, j.attempts, j.failures, j.priority)
            for job_id, j in self.jobs.items()
        }
        assert self.db.execute("SELECT * FROM pulse.check()").fetchall() == []


@pytest.mark.filterwarnings("default")
def test_random_verbs_agree_with_the_model(db: Database) -> None:
    connection = db.connect()
    Life.connect = staticmethod(lambda: connection)
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
