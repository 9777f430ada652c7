"""Flows in the model: jobs after jobs, spawned jobs, steps, waits and signals."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.life import FINISHED, LANE, WAITING, Job, Reports, has

ANY = (*sorted(WAITING), "blocked", "running", *sorted(FINISHED))


class Flows(Reports):
    """Whoever ends a job releases, cancels or leaves alone who depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.signals: dict[str, int] = {}
        self.numbers = 0

    # Helpers -----------------------------------------------------------------

    def waits_for(self, job: Job, upstream: int) -> bool:
        """Whether this end is still to come, or was not good enough."""
        if upstream in job.met:
            return False
        state = self.jobs[upstream].state
        return state != "completed" and not (
            state in FINISHED and job.after_failed == "run"
        )

    def children(self, upstream: int) -> list[Job]:
        return [job for job in self.jobs.values() if upstream in job.after]

    def id_of(self, job: Job) -> int:
        return next(i for i, other in self.jobs.items() if other is job)

    def edges(self) -> set[tuple[int, int]]:
        """Those of jobs that are gone are left out."""
        return {
            (job_id, upstream)
            for job_id, job in self.jobs.items()
            for upstream in job.after
        }

    def needed(self, job_id: int) -> bool:
        return any(
            child.state not in FINISHED
            or (child.state != "completed" and child.attempts == 0)
            for child in self.children(job_id)
        )

    def ends(self, job: Job, state: str) -> None:
        super().ends(job, state)
        level, free = [self.id_of(job)], list[Job]()
        while level:
            below = list[int]()
            for upstream in level:
                failed = self.jobs[upstream].state != "completed"
                for child in self.children(upstream):
                    if child.state != "blocked":
                        continue
                    if failed and child.policy == "cancel":
                        child.state, child.by_upstream = "cancelled", True
                        below.append(self.id_of(child))
                    elif not any(self.waits_for(child, u) for u in child.after):
                        child.state = "free"
                        free.append(child)
            level = below
        self.release(free)

    def release(self, jobs: list[Job]) -> None:
        """In line in the order of the database: that of one call is not promised."""
        ready = set[int]()
        for job in jobs:
            if job.needed_approval and job.attempts == 0:
                job.state = "awaiting_approval"
            elif job.delayed:
                job.state = "scheduled"
            else:
                ready.add(self.id_of(job))
        line = self.db.execute(
            "SELECT job FROM pulse_internal.ready WHERE job = ANY (%s) ORDER BY seq",
            (list(ready),),
        ).fetchall()
        assert {job_id for (job_id,) in line} == ready
        for (job_id,) in line:
            self.line_up(self.jobs[job_id])

    def retried(self, job: Job) -> None:
        job_id = self.id_of(job)
        self.note_met(job_id)
        job.by_upstream = False
        waits = [u for u in job.after if self.waits_for(job, u)]
        if job.attempts or not waits:
            super().retried(job)
        else:
            job.failures, job.last, job.delayed = 0, None, False
            job.state, job.policy = "blocked", job.after_failed
            if job.after_failed == "cancel" and self.failed(job):
                job.policy = "hold"
        self.revive(job_id)

    def note_met(self, job_id: int) -> None:
        """For those who take any end it has ended."""
        for child in self.children(job_id):
            if child.after_failed == "run":
                child.met.add(job_id)

    def failed(self, job: Job) -> bool:
        states = {self.jobs[u].state for u in job.after if u not in job.met}
        return bool(states & {"dead", "cancelled"})

    def revive(self, job_id: int) -> None:
        """What its end had cancelled comes back, unless another failure keeps it."""
        for child in self.children(job_id):
            if child.state == "cancelled" and child.by_upstream:
                states = {self.jobs[u].state for u in child.after}
                if states & {"dead", "cancelled"}:
                    continue
                child.state, child.by_upstream = "blocked", False
                child.policy, child.delayed = child.after_failed, False
                self.note_met(self.id_of(child))
                self.revive(self.id_of(child))

    # Producers ---------------------------------------------------------------

    @precondition(has(*ANY))
    @rule(
        data=st.data(),
        policy=st.sampled_from(["cancel", "cancel", "hold", "run"]),
        delayed=st.booleans(),
        approval=st.sampled_from([False, False, False, True]),
    )
    def enqueue_after(
        self, data: st.DataObject, policy: str, delayed: bool, approval: bool
    ) -> None:
        after = data.draw(
            st.lists(st.sampled_from(sorted(self.jobs)), min_size=1, max_size=4)
        )
        job_id = self.one(
            "SELECT pulse.enqueue('a', lane => %s, delay => %s, max_attempts => 2,"
            " requires_approval => %s, after => %s::bigint[], after_failed => %s)",
            *(LANE, "1 hour" if delayed else None, approval, after, policy),
        )
        job = Job("blocked", "a", 0, 2, None, delayed, approval)
        job.after, job.after_failed, job.policy = set(after), policy, policy
        self.jobs[job_id] = job
        if policy == "cancel" and self.failed(job):
            job.state, job.by_upstream = "cancelled", True
        elif not any(self.waits_for(job, upstream) for upstream in after):
            self.release([job])

    @rule(name=st.sampled_from("st"))
    def signal(self, name: str) -> None:
        self.numbers += 1
        woken = self.one("SELECT pulse.signal(%s, %s)", name, str(self.numbers))
        self.signals.setdefault(name, self.numbers)
        for _, job in sorted(self.jobs.items()):
            if job.waits == name and job.state in ("scheduled", "retrying"):
                self.line_up(job)
                woken -= 1
        assert woken == 0

    # Workers -----------------------------------------------------------------

    @precondition(has("running"))
    @rule(data=st.data(), n=st.integers(1, 2))
    def spawn(self, data: st.DataObject, n: int) -> None:
        """Who waits for the spawner waits for these; once for all attempts."""
        job_id = self.some(data, "running")
        job = self.jobs[job_id]
        call = "SELECT pulse.spawn(%s, 'spawn', %s)"
        element = {"kind": "b", "lane": LANE, "max_attempts": 2}
        rows = self.db.execute(call, (job.lease, json.dumps([element] * n))).fetchall()
        ids = [row[0] for row in rows]
        if "spawn" in job.steps:
            assert ids == job.steps["spawn"]
            return
        assert len(ids) == n
        job.steps["spawn"] = ids
        waiting = [child for child in self.children(job_id) if child.state == "blocked"]
        for spawned in ids:
            self.jobs[spawned] = Job("new", "b", 0, 2, None, False)
            self.line_up(self.jobs[spawned])
            for child in waiting:
                child.after.add(spawned)

    @precondition(has("running"))
    @rule(data=st.data(), step=st.sampled_from(["one", "two"]))
    def save_step(self, data: st.DataObject, step: str) -> None:
        """The first write wins, in every attempt."""
        job = self.jobs[self.some(data, "running")]
        self.numbers += 1
        kept = job.steps.setdefault(step, self.numbers)
        saved = "SELECT pulse.save_step(%s, %s, %s)"
        assert self.one(saved, job.lease, step, str(self.numbers)) == kept
        done = self.db.execute(
            "SELECT step, result FROM pulse.steps(%s)", (job.lease,)
        ).fetchall()
        assert dict(done) == {name: _stored(value) for name, value in job.steps.items()}

    @precondition(has("running"))
    @rule(data=st.data(), signal=st.sampled_from([None, "s", "t"]))
    def wait_for(self, data: st.DataObject, signal: str | None) -> None:
        """Given back until the signal or the hour; what it was told once stays."""
        job = self.jobs[self.some(data, "running")]
        step = f"wait {signal}"
        rows = self.db.execute(
            "SELECT verdict, payload FROM pulse.wait_for(%s, %s, '1 hour', %s)",
            (job.lease, step, signal),
        ).fetchall()
        told: tuple[str, Any] = ("waiting", None)
        if step in job.steps:
            told = job.steps[step]["verdict"], job.steps[step]["payload"]
        elif signal in self.signals:
            told = "received", self.signals[signal]
        elif job.begun.get(step):
            told = "timeout", None
        assert rows == [told]
        if told[0] != "waiting":
            job.steps[step] = {"verdict": told[0], "payload": told[1]}
            return
        job.begun.setdefault(step, False)
        asked = job.cancel_asked
        self.end_run(job, "wait_for")
        if asked:
            self.ends(job, "cancelled")
        else:
            job.state, job.delayed, job.waits = "scheduled", True, signal


def _stored(value: Any) -> Any:
    """What steps says of it: ids are text in JSON."""
    return [str(each) for each in value] if isinstance(value, list) else value
