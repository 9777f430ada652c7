"""Flows in the model: jobs after jobs, spawned jobs, steps, waits and signals."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.life import ANY, APPROVAL_HOURS, FINISHED, Job, has
from tests.engine.life_claims import Claims

GROUPS = ("", "g", "g", "h")


class Flows(Claims):
    """The end of a job releases, cancels or leaves alone what depends on it."""

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
        """A job that may still run depends on it, and reads its result."""
        return any(child.state != "completed" for child in self.children(job_id))

    def ends(self, job: Job, state: str) -> None:
        super().ends(job, state)
        level, free = [self.id_of(job)], list[Job]()
        while level:
            below = list[int]()
            for upstream in level:
                for child in self.children(upstream):
                    if child.state != "blocked" or child.loose:
                        continue
                    fate = self.fate(child)
                    if fate == "cancelled":
                        super().ends(child, "cancelled")
                        child.by_upstream = True
                        below.append(self.id_of(child))
                    elif fate == "free":
                        child.state = "free"
                        free.append(child)
            level = below
        self.release(free)

    def fate(self, child: Job) -> str:
        """What the ends of its upstreams make of a blocked job."""
        if child.policy == "cancel" and self.failed(child):
            return "cancelled"
        if any(self.waits_for(child, upstream) for upstream in child.after):
            return "blocked"
        return "free"

    def release(self, jobs: list[Job]) -> None:
        """In line in the order of the database: that of one call is not promised."""
        ready = set[int]()
        for job in jobs:
            if job.delay is not None:
                job.run_at = max(job.run_at or 0, self.clock + job.delay)
            if job.expires_in is not None:
                job.start_by = max(job.run_at or 0, self.clock) + job.expires_in
            if job.needed_approval and job.attempts == 0:
                job.state = "awaiting_approval"
                job.approval_until = self.clock + APPROVAL_HOURS
            elif not self.due(job):
                job.state = "scheduled"
            else:
                ready.add(self.id_of(job))
        line = self.db.execute(
            "SELECT job FROM pulse_internal.in_line WHERE job = ANY (%s) ORDER BY seq",
            (list(ready),),
        ).fetchall()
        assert {job_id for (job_id,) in line} == ready, "G20: released, not in line"
        for (job_id,) in line:
            self.line_up(self.jobs[job_id])

    def released(self, jobs: list[int]) -> None:
        """A claim that finds nothing releases what an end did not see, and takes it."""
        for job_id in jobs:
            job = self.jobs[job_id]
            if job.loose and job.state == "blocked" and self.fate(job) == "free":
                job.loose = False
                self.line_up(job)

    def settle_loose(self, at_once: bool) -> None:
        """G20: what an end and an enqueue did not see of each other is made good."""
        loose = [job for job in self.jobs.values() if job.loose]
        for job in sorted(loose, key=self.id_of):
            job_id = self.id_of(job)
            fate = self.fate(job) if job.state == "blocked" else "settled"
            if fate == "blocked" and not any(u in self.busy for u in job.after):
                job.loose = False
            if fate in ("blocked", "settled"):
                job.loose = job.loose and fate == "blocked"
                continue
            if job_id in self.busy:
                continue
            state = self.one("SELECT state FROM pulse.jobs WHERE job_id = %s", job_id)
            if state == "blocked":
                assert not at_once, f"G20: {job} is left behind"
                continue
            job.loose = False
            if fate == "free":
                self.release([job])
            else:
                job.by_upstream = True
                self.ends(job, "cancelled")

    def retried(self, job: Job) -> None:
        """Back in line; one that never ran goes through the gate again."""
        job_id = self.id_of(job)
        self.note_met(job_id)
        job.by_upstream, job.held = False, False
        job.failures, job.last, job.start_by = 0, None, None
        job.run_at, job.key_until = None, None
        waits = [u for u in job.after if self.waits_for(job, u)]
        if job.attempts or not waits:
            job.delay, job.expires_in = None, None
            self.release([job])
        else:
            job.state, job.policy = "blocked", job.after_failed
            job.run_at, job.delay, job.expires_in = job.given
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
        for child in sorted(self.children(job_id), key=self.id_of):
            if child.state == "cancelled" and child.by_upstream:
                states = {self.jobs[u].state for u in child.after}
                if states & {"dead", "cancelled"}:
                    continue
                child.state, child.by_upstream = "blocked", False
                child.policy, child.failures = child.after_failed, 0
                child.run_at, child.delay, child.expires_in = child.given
                self.note_met(self.id_of(child))
                self.revive(self.id_of(child))

    # Producers ---------------------------------------------------------------

    @precondition(has(*ANY))
    @rule(
        data=st.data(),
        lane=st.sampled_from("mmmo"),
        group=st.sampled_from(GROUPS),
        policy=st.sampled_from(["cancel", "cancel", "hold", "run"]),
        delay=st.sampled_from([None, None, 1, 3]),
        expires=st.sampled_from([None, None, None, 3]),
        approval=st.sampled_from([False, False, False, True]),
    )
    def enqueue_after(self, data: st.DataObject, **options: Any) -> None:
        known = sorted(set(self.jobs) - set(self.busy))
        after = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        self.do_enqueue_after(after, **options)

    def do_enqueue_after(
        self,
        after: list[int],
        lane: str = "m",
        group: str = "",
        policy: str = "cancel",
        delay: int | None = None,
        expires: int | None = None,
        approval: bool = False,
    ) -> int:
        self.note("after", lane)
        job = Job("blocked", "a", lane=lane, group=group, needed_approval=approval)
        job.delay, job.expires_in, job.payload = delay, expires, self.number()
        job.after, job.after_failed, job.policy = set(after), policy, policy
        job.given = (None, delay, expires)
        job_id = self.one(
            "SELECT pulse.enqueue('a', jsonb_build_object('n', %s::int), lane => %s,"
            " delay => %s, max_attempts => 2, requires_approval => %s, group_key => %s,"
            " expires_in => %s, after => %s::bigint[], after_failed => %s)",
            *(job.payload, lane, hours(delay), approval, group or None),
            *(hours(expires), after, policy),
        )
        self.enqueued_after(job_id, job)
        return int(job_id)

    def enqueued_after(self, job_id: int, job: Job) -> None:
        self.jobs[job_id] = job
        fate = self.fate(job)
        if fate == "cancelled":
            job.by_upstream = True
            super().ends(job, "cancelled")
        elif fate == "free":
            self.release([job])

    @precondition(lambda self: any(job.begun for job in self.jobs.values()))
    @rule(name=st.sampled_from("st"))
    def signal(self, name: str) -> None:
        self.note("signal")
        number = self.number()
        woken = self.one("SELECT pulse.signal(%s, %s)", name, str(number))
        self.signals.setdefault(name, number)
        for _, job in sorted(self.jobs.items()):
            if job.waits == name and job.state in ("scheduled", "retrying"):
                given = {"verdict": "received", "payload": self.signals[name]}
                job.steps[f"wait {name}"], job.waits = given, None
                self.line_up(job)
                woken -= 1
        assert woken == 0, "G22: a signal woke more or fewer jobs than wait for it"

    # Workers -----------------------------------------------------------------

    @precondition(has("running"))
    @rule(
        data=st.data(),
        n=st.integers(1, 2),
        lane=st.sampled_from("mo"),
        group=st.sampled_from(GROUPS),
    )
    def spawn(self, data: st.DataObject, n: int, lane: str, group: str) -> None:
        self.do_spawn(self.some(data, "running"), n, lane, group)

    def do_spawn(self, job_id: int, n: int, lane: str, group: str) -> None:
        """What waits for the spawner waits for these, but no follower; spawned once."""
        job = self.jobs[job_id]
        if any(self.id_of(child) in self.busy for child in self.children(job_id)):
            return
        self.note("spawn", job.lane)
        element = {"kind": "b", "lane": lane, "max_attempts": 2, "payload": {"n": 0}}
        element |= {"group_key": group} if group else {}
        rows = self.db.execute(
            "SELECT pulse.spawn(%s, 'spawn', %s)",
            (job.lease, json.dumps([element] * n)),
        ).fetchall()
        ids = [row[0] for row in rows]
        if "spawn" in job.steps:
            assert ids == job.steps["spawn"], "G21: spawned again"
            return
        assert len(ids) == n
        job.steps["spawn"] = ids
        followers = self.holders(job.lane, job.key)[1:]
        waiting = [
            child
            for child in self.children(job_id)
            if child.state == "blocked" and self.id_of(child) not in followers
        ]
        for spawned in ids:
            self.jobs[spawned] = Job("new", "b", lane=lane, group=group)
            self.line_up(self.jobs[spawned])
            for child in waiting:
                child.after.add(spawned)

    @precondition(has("running"))
    @rule(data=st.data(), step=st.sampled_from(["one", "two"]))
    def save_step(self, data: st.DataObject, step: str) -> None:
        """G21: the first write wins, in every attempt."""
        job = self.jobs[self.some(data, "running")]
        self.note("save_step", job.lane)
        number = self.number()
        kept = job.steps.setdefault(step, number)
        saved = "SELECT pulse.save_step(%s, %s, %s)"
        assert self.one(saved, job.lease, step, str(number)) == kept
        done = self.db.execute(
            "SELECT step, result FROM pulse.steps(%s)", (job.lease,)
        ).fetchall()
        assert dict(done) == {name: _stored(value) for name, value in job.steps.items()}

    @precondition(has("running"))
    @rule(data=st.data(), signal=st.sampled_from([None, "s", "t"]))
    def wait_for(self, data: st.DataObject, signal: str | None) -> None:
        self.do_wait_for(self.some(data, "running"), signal)

    def do_wait_for(self, job_id: int, signal: str | None) -> None:
        """Given back until the signal or the hour; what it was told once stays."""
        job = self.jobs[job_id]
        self.note("wait_for", job.lane)
        step = f"wait {signal}"
        rows = self.db.execute(
            "SELECT verdict, payload FROM pulse.wait_for(%s, %s, '1 hour', %s)",
            (job.lease, step, signal),
        ).fetchall()
        told: tuple[str, Any] = ("waiting", None)
        until = job.begun.setdefault(step, self.clock + 1)
        if step in job.steps:
            told = job.steps[step]["verdict"], job.steps[step]["payload"]
        elif signal in self.signals:
            told = "received", self.signals[signal]
        elif until <= self.clock:
            told = "timeout", None
        assert rows == [told], "G22: another answer to a wait"
        if told[0] != "waiting":
            job.steps[step] = {"verdict": told[0], "payload": told[1]}
            return
        self.back(job, "wait_for", until)
        if job.state == "scheduled":
            job.waits = signal


def hours(n: int | None) -> str | None:
    return None if n is None else f"{n} hours"


def _stored(value: Any) -> Any:
    """What steps says of it: ids are text in JSON."""
    return [str(each) for each in value] if isinstance(value, list) else value
