"""Random verbs against a model of the life of a job, compared after every step.

The model is the table of states in plain Python (life.py). Whatever it says must be
what the database says: states, counts, who is claimed in which order, which report is
refused.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import Database
from tests.engine.life import FINISHED, LANE, WAITING, has
from tests.engine.life_keys import Keys


class Life(Keys):
    """And time, operators, and the comparison."""

    # Time --------------------------------------------------------------------

    @rule(by_claim=st.booleans())
    def an_hour_passes_for_what_waits(self, by_claim: bool) -> None:
        self.db.execute(
            "UPDATE pulse_internal.waiting SET run_at = run_at - interval '2 hours'"
        )
        self.db.execute(
            "UPDATE pulse_internal.approval SET run_at = run_at - interval '2 hours'"
        )
        self.db.execute(
            "UPDATE pulse_internal.blocked SET run_at = run_at - interval '2 hours'"
        )
        self.db.execute(
            "UPDATE pulse_internal.job_step SET until = until - interval '2 hours'"
        )
        self.db.execute("DELETE FROM pulse_internal.due_mark")
        order = self.db.execute(
            "SELECT job FROM pulse_internal.waiting ORDER BY run_at, job"
        ).fetchall()
        if by_claim and not self.held and self.enabled:
            # Whoever claims moves what is due into line, whatever it can take of it.
            nothing = "SELECT FROM pulse.claim_batch('w', %s, 100, kinds => '{none}')"
            assert self.db.execute(nothing, (LANE,)).fetchall() == []
        else:
            self.db.execute("SELECT pulse_internal.tick_promote()")
        for (job_id,) in order:
            self.line_up(self.jobs[job_id])
        for job in self.jobs.values():
            job.begun = dict.fromkeys(job.begun, True)
            # The delay of one that is blocked begins with its release, but for a key's.
            job.delayed = job.delayed and job.state == "blocked" and not job.key

    @precondition(has("running"))
    @rule(data=st.data(), why=st.sampled_from(["lost", "deadline", "cancel"]))
    def a_run_has_had_its_time(self, data: st.DataObject, why: str) -> None:
        """Its worker is lost, max_runtime is over, or the grace after a cancel."""
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        if why == "cancel" and not job.cancel_asked:
            why = "lost"
        bound = {
            "lost": "",
            "deadline": ", deadline = {}",
            "cancel": ", cancel_by = {}",
        }
        past = "claimed_at - interval '1 day'"
        change = f"reap_at = {past}, lease_until = {past}" + bound[why].format(past)
        self.db.execute(
            f"UPDATE pulse_internal.lease SET {change} WHERE job = %s".encode(),
            (job_id,),
        )
        if why != "lost":
            # No heartbeat extends it; that of a lost worker does not come.
            verdict, over = self.db.execute(
                "SELECT verdict, lease_until < clock_timestamp()"
                " FROM pulse.heartbeat(ARRAY[%s::bigint])",
                (job.lease,),
            ).fetchall()[0]
            assert (verdict, over) == ("cancel" if job.cancel_asked else why, True)
        assert self.one("SELECT pulse.reap()") == 1
        self.end_badly(job, "reap")

    @precondition(has("awaiting_approval"))
    @rule(data=st.data())
    def nobody_approves_in_time(self, data: st.DataObject) -> None:
        job_id = self.some(data, "awaiting_approval")
        self.db.execute(
            "UPDATE pulse_internal.approval SET expires_at = asked_at WHERE job = %s",
            (job_id,),
        )
        assert self.one("SELECT pulse_internal.expire_approvals(1000)") == 1
        self.ends(self.jobs[job_id], "cancelled")

    @precondition(has(*FINISHED))
    @rule(data=st.data(), by=st.sampled_from(["prune", "delete_job"]))
    def a_finished_job_goes(self, data: st.DataObject, by: str) -> None:
        job_id = self.some(data, *FINISHED)
        assert self.one("SELECT pulse.prune()") == 0
        needed = self.needed(job_id)
        if by == "prune":
            self.db.execute(
                "UPDATE pulse_internal.finished SET finished_at = now() - interval "
                "'8 days'"
                " WHERE job = %s",
                (job_id,),
            )
            assert self.one("SELECT pulse.prune()") == (not needed)
            self.db.execute(
                "UPDATE pulse_internal.finished SET finished_at = clock_timestamp()"
            )
        elif needed:
            self.refused("PU105", "SELECT pulse.delete_job(%s)", job_id)
        else:
            self.db.execute("SELECT pulse.delete_job(%s)", (job_id,))
        if needed:
            return
        for child in self.children(job_id):
            child.after.discard(job_id)
        del self.jobs[job_id]
        self.refused("PU004", "SELECT pulse.cancel(%s)", job_id)

    @rule()
    def marks_advance(self) -> None:
        self.db.execute(
            "UPDATE pulse_internal.horizon SET seen_at = seen_at - interval '1 second'"
        )
        self.db.execute("SELECT pulse_internal.tick_marks()")

    # Operators ---------------------------------------------------------------

    @precondition(has(*WAITING, "blocked", "running", *FINISHED))
    @rule(data=st.data(), force=st.booleans())
    def cancel(self, data: st.DataObject, force: bool) -> None:
        job_id = self.some(data, *WAITING, "blocked", "running", *FINISHED)
        job = self.jobs[job_id]
        call = "SELECT pulse.cancel(%s, force => %s)"
        if job.state in ("completed", "dead"):
            self.refused("PU105", call, job_id, force)
            return
        state = self.one(call, job_id, force)
        if job.state == "running" and not force:
            job.cancel_asked = True
        elif job.state == "running":
            self.end_run(job, None)
            self.ends(job, "cancelled")
        elif job.state != "cancelled":
            job.last = None
            self.ends(job, "cancelled")
        assert state == job.state

    @precondition(has(*WAITING, "blocked", *FINISHED))
    @rule(data=st.data(), approve=st.booleans())
    def decide(self, data: st.DataObject, approve: bool) -> None:
        job_id = self.some(data, *WAITING, "blocked", *FINISHED)
        job = self.jobs[job_id]
        call = f"SELECT pulse.{'approve' if approve else 'reject'}(%s)"
        if job.state != "awaiting_approval":
            self.refused("PU105", call, job_id)
            return
        self.db.execute(call.encode(), (job_id,))
        if not approve:
            self.ends(job, "cancelled")
        elif job.delayed:
            job.state = "scheduled"
        else:
            self.line_up(job)

    @precondition(has(*WAITING, "blocked", *FINISHED))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = self.some(data, *WAITING, "blocked", *FINISHED)
        job = self.jobs[job_id]
        if job.state not in ("dead", "cancelled"):
            self.refused("PU105", "SELECT pulse.retry(%s)", job_id)
        elif self.holders(job.key):
            self.refused("PU102", "SELECT pulse.retry(%s)", job_id)
        else:
            self.db.execute("SELECT pulse.retry(%s)", (job_id,))
            self.retried(job)

    @precondition(has(*WAITING, "blocked", "running", *FINISHED))
    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        job_id = self.some(data, *WAITING, "blocked", "running", *FINISHED)
        job = self.jobs[job_id]
        if job.state not in ("scheduled", "retrying", "ready"):
            self.refused("PU105", "SELECT pulse.run_now(%s)", job_id)
            return
        assert self.one("SELECT pulse.run_now(%s)", job_id) == "ready"
        if job.state != "ready":
            self.line_up(job)

    @precondition(has("ready", "scheduled", "retrying"))
    @rule(data=st.data())
    def reschedule(self, data: st.DataObject) -> None:
        job_id = self.some(data, "ready", "scheduled", "retrying")
        job = self.jobs[job_id]
        if job.state == "ready":
            job.state = "retrying" if job.failures else "scheduled"
        call = "SELECT pulse.reschedule(%s, now() + interval '1 hour')"
        assert self.one(call, job_id) == job.state

    @rule(state=st.sampled_from(["dead", "cancelled"]))
    def retry_where(self, state: str) -> None:
        """In the order of the ids; a job whose key is taken by then stays."""
        chosen = f'{{"lane": "{LANE}", "state": "{state}"}}'
        done = self.one("SELECT done FROM pulse.retry_where(%s)", chosen)
        chosen_ones = [j for _, j in sorted(self.jobs.items()) if j.state == state]
        for job in chosen_ones:
            if job.state != state:
                done -= 1  # It came back with one that it depends on.
            elif not self.holders(job.key):
                self.retried(job)
                done -= 1
        assert done == 0

    @precondition(has("ready", "scheduled", "retrying", "blocked"))
    @rule(data=st.data(), priority=st.integers(-1, 1))
    def reprioritize(self, data: st.DataObject, priority: int) -> None:
        job_id = self.some(data, "ready", "scheduled", "retrying", "blocked")
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

    @rule(seldom=st.integers(0, 4))
    def disable_or_enable(self, seldom: int) -> None:
        enabled = not self.enabled or bool(seldom)
        self.db.execute("SELECT pulse.set_lane(%s, enabled => %s)", (LANE, enabled))
        self.enabled = enabled

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
        assert self.edges() == set(
            self.db.execute("SELECT job_id, after_job_id FROM pulse.dependencies")
        )
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
