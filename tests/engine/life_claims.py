"""Claims in the model, judged by the promises of the contract, and what workers report.

The model does not say which job a claim takes: where groups take turns, several answers
are right. It says which job may start, by promise, and which job must not be left.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.life import BACKOFF_HOURS, Job, Lane, World, has

LINE = ("scheduled", "retrying", "ready")
VERBS = {
    "complete": "pulse.complete(%s)",
    "fail": "pulse.fail(%s)",
    "snooze": "pulse.snooze(%s, '1 second')",
    "release": "verdict FROM pulse.release(ARRAY[%s::bigint])",
    "ack_cancel": "pulse.ack_cancel(%s)",
    "progress": "pulse.progress(%s, 0.5)",
    "checkpoint": "pulse.checkpoint(%s, '{}')",
}
CLAIMED = "job_id, lease, attempt, failures, priority, kind, group_key"


class Violation(AssertionError):
    """A promise of the contract that a history broke."""


class Claims(World):
    """Which jobs may start, which must, and what becomes of their runs."""

    # What the promises say ----------------------------------------------------

    def running(self, lane: Lane, group: str | None = None) -> int:
        return sum(
            job.state == "running"
            and job.lane == lane.name
            and (group is None or job.group == group)
            for job in self.jobs.values()
        )

    def waited_for(self, lane: Lane, group: str) -> bool:
        """G23: a job of the group is to run again, and is not back in line."""
        return any(
            job.held
            and job.lane == lane.name
            and job.group == group
            and job.state in ("scheduled", "retrying")
            for job in self.jobs.values()
        )

    def kind_is_spent(self, kind: str) -> bool:
        rate = self.kind_rates.get(kind)
        return rate is not None and self.kind_starts[kind] >= rate

    def beside(self, lane: Lane, job: Job, kinds: list[str] | None) -> list[Job]:
        """Other jobs of its line that a claim of these kinds would look at."""
        return [
            other
            for job_id, other in self.jobs.items()
            if other is not job
            and other.state == "ready"
            and other.lane == lane.name
            and not self.late(other)
            and (job_id not in self.busy or lane.in_order)
            and (
                other.group == job.group
                if lane.grouped
                else (kinds is None or other.kind in kinds)
                and not self.kind_is_spent(other.kind)
            )
        ]

    def limit(self, lane: Lane, job: Job) -> str | None:
        """Which limit keeps it from starting."""
        if lane.max_slots is not None and self.running(lane) >= lane.max_slots:
            return "G9: no slot of the lane is free"
        if lane.rate is not None and lane.starts >= lane.rate:
            return "G24: the rate of the lane is used up"
        if self.kind_is_spent(job.kind):
            return "G24: the rate of the kind is used up"
        if not lane.grouped or not job.group:
            return None
        if job.group in lane.stopped:
            return "G10: its group is stopped"
        slots = lane.slots_of(job.group)
        if slots is not None and self.running(lane, job.group) >= slots:
            promise = "G23" if lane.in_order else "G18"
            return f"{promise}: no slot of the group is free"
        if lane.in_order and self.waited_for(lane, job.group):
            return "G23: its group waits for a job that keeps its place"
        if (
            lane.group_rate is not None
            and lane.group_starts[job.group] >= lane.group_rate
        ):
            return "G24: the rate of the group is used up"
        return None

    def objection(self, lane: Lane, job: Job, kinds: list[str] | None) -> str | None:
        """Which promise its start would break now."""
        if job.state != "ready" or job.lane != lane.name:
            return f"G2: it is {job.state} in lane {job.lane}"
        if self.late(job):
            return "T16: its start_by has passed"
        if kinds is not None and job.kind not in kinds:
            return "G15: it is of another kind"
        if limit := self.limit(lane, job):
            return limit
        for other in self.beside(lane, job, kinds):
            if other.priority > job.priority or (
                other.priority == job.priority
                and other.firm
                and job.firm
                and other.place < job.place
            ):
                promise = "G23" if lane.in_order else "G19" if lane.grouped else "R26"
                return f"{promise}: {other} is ahead of it"
        return None

    def certain(self, lane: Lane, kinds: list[str] | None) -> list[Job]:
        """Jobs that a claim which asks for more must not leave."""
        found = []
        for job_id, job in self.jobs.items():
            if job_id in self.busy or self.objection(lane, job, kinds):
                continue
            if lane.grouped and any(
                other.priority == job.priority
                and not (other.firm and job.firm)
                and (other.kind != job.kind or lane.in_order)
                for other in self.beside(lane, job, None)
            ):
                continue
            found.append(job)
        return found

    def take_turns(self, lane: Lane, job: Job, kinds: list[str] | None) -> None:
        """G19: while a group could start a job, each other one starts one at most."""
        lane.passed_over.pop(job.group, None)
        could = {other.group: other for other in self.certain(lane, kinds)}
        for other in could.values():
            if other.priority != job.priority or other.group == job.group:
                continue
            fresh = (other.priority, defaultdict[str, int](int))
            priority, starts = lane.passed_over.setdefault(other.group, fresh)
            if priority != other.priority:
                _, starts = lane.passed_over[other.group] = fresh
            starts[job.group] += 1
            if starts[job.group] > 1:
                raise Violation(
                    f"G19: group {job.group!r} starts {job} before {other} of"
                    f" {other.group!r}, for the second time"
                )

    def forget_turns(self) -> None:
        for lane in self.lanes.values():
            can_start = {(job.group, job.priority) for job in self.certain(lane, None)}
            lane.passed_over = {
                group: passed
                for group, passed in lane.passed_over.items()
                if (group, passed[0]) in can_start
            }

    def start(self, job: Job, row: tuple[Any, ...]) -> None:
        lane = self.lanes[job.lane]
        lane.starts += lane.rate is not None
        lane.group_starts[job.group] += lane.group_rate is not None
        self.kind_starts[job.kind] += job.kind in self.kind_rates
        _, lease, attempt, failures, priority, kind, group = row
        assert lease not in self.stale, "G17: a lease came again"
        job.state, job.lease, job.last, job.waits = "running", lease, None, None
        job.attempts += 1
        assert (attempt, failures, priority, kind, group or "") == (
            *(job.attempts, job.failures, job.priority, job.kind, job.group),
        )

    def judge(
        self,
        lane: Lane,
        n: int,
        kinds: list[str] | None,
        rows: list[tuple[Any, ...]],
        excused: bool = False,
    ) -> None:
        """What a claim answered, job by job."""
        if (self.held_lane(lane) or not lane.enabled) and rows:
            raise Violation(f"G10: a claim of a lane that is held started {rows}")
        if len(rows) > n:
            raise Violation(f"G2: {len(rows)} jobs for {n}")
        for row in rows:
            job = self.jobs[row[0]]
            if objection := self.objection(lane, job, kinds):
                raise Violation(f"{objection}: {job}")
            before = [
                other
                for other in self.certain(lane, kinds)
                if other.priority > job.priority
            ]
            if before:
                raise Violation(f"priority: {job} starts before {before[0]}")
            self.start(job, row)
            if lane.grouped:
                self.take_turns(lane, job, kinds)
        # Jobs that are late are cancelled in place of those behind them.
        late = any(self.late(j) for j in self.jobs.values() if j.lane == lane.name)
        shut = self.held_lane(lane) or not lane.enabled or excused or (rows and late)
        if len(rows) < n and not shut and (left := self.certain(lane, kinds)):
            raise Violation(f"a claim for {n} left {left[0]}, and started {len(rows)}")

    def held_lane(self, lane: Lane) -> bool:
        return any(name in (None, lane.name) for _, name in self.held)

    # Workers ------------------------------------------------------------------

    def due_order(self) -> list[int]:
        """What time alone puts in line, in the order in which that happens."""
        rows = self.db.execute(
            "SELECT job FROM pulse_internal.waiting"
            " WHERE run_at <= clock_timestamp() ORDER BY run_at, job"
        ).fetchall()
        return [job_id for (job_id,) in rows]

    def promoted(self, order: list[int]) -> None:
        """Those of them that are not waiting any more have joined their line."""
        if not order:
            return
        rows = self.db.execute("SELECT job FROM pulse_internal.waiting").fetchall()
        for job_id in order:
            job = self.jobs[job_id]
            if (job_id,) not in rows and job.state in ("scheduled", "retrying"):
                assert self.due(job), f"T5: {job} is not due"
                self.line_up(job)

    @rule(
        lane=st.sampled_from("mmmo"),
        n=st.integers(1, 4),
        kinds=st.sampled_from([None, None, None, ["a"], ["b"], ["a", "b"]]),
        by=st.sampled_from(["claim_batch", "claim_batch", "exchange"]),
    )
    def claim(self, lane: str, n: int, kinds: list[str] | None, by: str) -> None:
        self.do_claim(lane, n, kinds, by)

    @precondition(has(*LINE))
    @rule(n=st.integers(1, 3))
    def claim_more(self, n: int) -> None:
        self.do_claim("m", n)

    def do_claim(
        self,
        name: str,
        n: int,
        kinds: list[str] | None = None,
        by: str = "claim_batch",
    ) -> list[int]:
        lane = self.lanes[name]
        self.note("claim", name)
        order = self.due_order()
        if by == "exchange":
            call = (
                f"SELECT {CLAIMED} FROM pulse.exchange('w', %s, kinds => %s)"
                " WHERE item = 'job'"
            )
            given: tuple[Any, ...] = (json.dumps({name: n}), kinds)
        else:
            call = f"SELECT {CLAIMED} FROM pulse.claim_batch('w', %s, %s, kinds => %s)"
            given = (name, n, kinds)
        rows = self.db.execute(call.encode(), given).fetchall()
        self.promoted(order)
        busy = any(what == "claim" for what, _ in self.other_did)
        waiting = [
            job_id
            for job_id in order
            if self.jobs[job_id].lane == name
            and self.jobs[job_id].state in ("scheduled", "retrying")
            and job_id not in self.busy
        ]
        shut = self.held_lane(lane) or not lane.enabled
        if waiting and len(order) <= n and not shut:
            raise Violation(f"T5: a claim left {waiting} though they are due")
        self.released([row[0] for row in rows])
        self.judge(lane, n, kinds, rows, excused=busy)
        for row in rows:
            self.look_upstream(self.jobs[row[0]])
        return [row[0] for row in rows]

    def released(self, jobs: list[int]) -> None:
        raise NotImplementedError

    def look_upstream(self, job: Job) -> None:
        """A run can read what the jobs that it waited for have returned."""
        if not job.after:
            return
        rows = self.db.execute(
            "SELECT job_id, state FROM pulse.upstream(%s)", (job.lease,)
        ).fetchall()
        assert dict(rows) == {up: self.jobs[up].state for up in job.after}

    @precondition(has("running"))
    @rule(
        data=st.data(), by=st.sampled_from(["complete", "complete_batch", "exchange"])
    )
    def complete(self, data: st.DataObject, by: str) -> None:
        self.do_complete(self.some(data, "running"), by)

    def do_complete(self, job_id: int, by: str = "complete") -> None:
        job = self.jobs[job_id]
        self.note(by, job.lane)
        done = json.dumps([{"lease": str(job.lease), "result": 1}])
        call, given = {
            "complete": ("pulse.complete(%s, '1')", job.lease),
            "complete_batch": ("* FROM pulse.complete_batch(%s)", [job.lease]),
            "exchange": ("* FROM pulse.exchange('w', done => %s)", done),
        }[by]
        for _ in range(2):  # The second time, its answer was lost.
            self.db.execute(f"SELECT {call}".encode(), (given,))
        self.end_run(job, "complete")
        self.ends(job, "completed")

    @precondition(has("running"))
    @rule(
        data=st.data(),
        fatal=st.sampled_from([False, False, True]),
        by=st.sampled_from(["fail", "exchange"]),
    )
    def fail(self, data: st.DataObject, fatal: bool, by: str) -> None:
        self.do_fail(self.some(data, "running"), fatal, by)

    def do_fail(self, job_id: int, fatal: bool = False, by: str = "fail") -> None:
        job = self.jobs[job_id]
        self.note(by, job.lane)
        if by == "fail":
            self.db.execute(
                "SELECT pulse.fail(%s, 'boom', '1 hour', %s)", (job.lease, fatal)
            )
        else:
            failed = {"lease": str(job.lease), "error": "boom", "fatal": fatal}
            self.db.execute(
                "SELECT * FROM pulse.exchange('w', failed => %s)",
                (json.dumps([failed]),),
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
            self.keep_place(job)
            self.put(job, self.clock + BACKOFF_HOURS, retrying=True)

    def keep_place(self, job: Job) -> None:
        job.held = self.lanes[job.lane].in_order and bool(job.group)

    @precondition(has("running"))
    @rule(data=st.data(), verb=st.sampled_from(["release", "snooze"]))
    def give_back(self, data: st.DataObject, verb: str) -> None:
        self.do_give_back(self.some(data, "running"), verb)

    def do_give_back(self, job_id: int, verb: str) -> None:
        job = self.jobs[job_id]
        self.note(verb, job.lane)
        if verb == "release":
            self.db.execute("SELECT pulse.release(ARRAY[%s::bigint])", (job.lease,))
        else:
            self.db.execute("SELECT pulse.snooze(%s, '1 hour')", (job.lease,))
        self.back(job, verb, None if verb == "release" else self.clock + 1)

    def back(self, job: Job, verb: str, run_at: int | None) -> None:
        """Given back and not charged; cancelled if that was asked for."""
        asked = job.cancel_asked
        self.end_run(job, verb)
        if asked:
            self.ends(job, "cancelled")
            return
        self.keep_place(job)
        self.put(job, run_at)

    @precondition(has("running"))
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        job = self.jobs[self.some(data, "running")]
        verdict = self.one(
            "SELECT verdict FROM pulse.heartbeat(ARRAY[%s::bigint])", job.lease
        )
        assert verdict == ("cancel" if job.cancel_asked else "ok")

    @precondition(has("running"))
    @rule(data=st.data())
    def acknowledge_cancel(self, data: st.DataObject) -> None:
        self.do_ack_cancel(self.some(data, "running"))

    def do_ack_cancel(self, job_id: int) -> None:
        job = self.jobs[job_id]
        self.note("ack_cancel", job.lane)
        if not job.cancel_asked:
            self.refused("PU105", "SELECT pulse.ack_cancel(%s)", job.lease)
            return
        self.db.execute("SELECT pulse.ack_cancel(%s)", (job.lease,))
        self.end_run(job, "ack_cancel")
        self.ends(job, "cancelled")

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), verb=st.sampled_from(list(VERBS)))
    def a_stale_lease_changes_nothing(self, data: st.DataObject, verb: str) -> None:
        """G3, G16: refused, unless it brought the job where it stands."""
        lease = data.draw(st.sampled_from(self.stale))
        if any(job.last and job.last[0] == lease for job in self.busy_jobs()):
            return
        verdict = self.one(
            "SELECT verdict FROM pulse.heartbeat(ARRAY[%s::bigint])", lease
        )
        assert verdict == "lost", "G3: a lease that was taken away is alive"
        repeated = any(job.last == (lease, verb) for job in self.jobs.values())
        call = f"SELECT {VERBS[verb]}"
        if verb == "release":
            assert self.one(call, lease) == ("ok" if repeated else "lost")
        elif repeated:
            self.db.execute(call.encode(), (lease,))
        else:
            self.refused("PU101", call, lease)

    def busy_jobs(self) -> list[Job]:
        return [self.jobs[job_id] for job_id in self.busy if job_id in self.jobs]
