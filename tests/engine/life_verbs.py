"""Operators in the model: every verb that moves a job, in every state."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.life import ANY, FINISHED, LANES, WAITING, Job, has
from tests.engine.life_claims import LINE
from tests.engine.life_keys import Keys


class Operators(Keys):
    """One job, or several by a filter that names them."""

    def by_filter(self, verb: str, job_id: int, *arguments: object) -> int:
        """The number of jobs that verb_where acted on."""
        marks = "".join(", %s" for _ in arguments)
        return int(
            self.one(
                f"SELECT done FROM pulse.{verb}_where(%s{marks})",
                json.dumps({"job_ids": [str(job_id)]}),
                *arguments,
            )
        )

    @precondition(has(*ANY))
    @rule(
        data=st.data(),
        verb=st.sampled_from(
            [
                *("cancel", "cancel", "force", "retry", "retry", "run_now"),
                *("reschedule", "reschedule", "reprioritize", "reprioritize"),
                *("move", "move", "approve", "approve", "reject", "rerun"),
            ]
        ),
        where=st.booleans(),
    )
    def operate(self, data: st.DataObject, verb: str, where: bool) -> None:
        job_id = self.some(data, *ANY)
        self.do_verb(verb, job_id, where, data.draw(st.integers(-1, 1)))

    @precondition(has(*LINE))
    @rule(
        data=st.data(),
        verb=st.sampled_from(
            ["cancel", "run_now", "reschedule", "reprioritize", "move"]
        ),
        where=st.booleans(),
    )
    def operate_on_a_line(self, data: st.DataObject, verb: str, where: bool) -> None:
        job_id = self.some(data, *LINE)
        self.do_verb(verb, job_id, where, data.draw(st.integers(-1, 1)))

    def do_verb(self, verb: str, job_id: int, where: bool, n: int = 0) -> None:
        """n is a priority, or says which other lane or time is meant."""
        job = self.jobs[job_id]
        if verb in ("cancel", "force"):
            self.do_cancel(job_id, verb == "force", where)
        elif verb in ("approve", "reject"):
            self.do_decide(job_id, verb == "approve", where)
        elif verb == "retry":
            self.do_retry(job_id, where)
        elif verb == "run_now":
            self.do_run_now(job_id, where)
        elif verb == "reschedule":
            self.do_reschedule(job_id, 3 if n else None, where)
        elif verb == "reprioritize":
            self.do_reprioritize(job_id, n, where)
        elif verb == "move":
            self.do_move(job_id, LANES[job.lane == LANES[0]], where)
        else:
            self.do_rerun(job_id, where)

    def do_cancel(self, job_id: int, force: bool, where: bool) -> None:
        job = self.jobs[job_id]
        self.note("cancel", job.lane)
        if where and not force:
            able = job.state not in FINISHED
            asked = able and not (job.state == "running" and job.cancel_asked)
            assert self.by_filter("cancel", job_id) == asked
            if not able:
                return
        elif job.state in ("completed", "dead"):
            self.refused("PU105", "SELECT pulse.cancel(%s, force => %s)", job_id, force)
            return
        else:
            self.one("SELECT pulse.cancel(%s, force => %s)", job_id, force)
        if job.state == "running" and not force:
            job.cancel_asked = True
        elif job.state == "running":
            self.end_run(job, None)
            self.ends(job, "cancelled")
        elif job.state != "cancelled":
            job.last = None
            self.ends(job, "cancelled")

    def do_decide(self, job_id: int, approve: bool, where: bool) -> None:
        job = self.jobs[job_id]
        verb = "approve" if approve else "reject"
        self.note(verb, job.lane)
        able = job.state == "awaiting_approval"
        if where:
            assert self.by_filter(verb, job_id) == able
        elif not able:
            self.refused("PU105", f"SELECT pulse.{verb}(%s)", job_id)
        else:
            self.db.execute(f"SELECT pulse.{verb}(%s)".encode(), (job_id,))
        if able and approve:
            self.put(job, job.run_at)
        elif able:
            self.ends(job, "cancelled")

    def do_retry(self, job_id: int, where: bool) -> None:
        job = self.jobs[job_id]
        self.note("retry", job.lane)
        able = job.state in ("dead", "cancelled")
        taken = set(self.holders(job.lane, job.key)) - {job_id}
        if where:
            assert self.by_filter("retry", job_id) == (able and not taken)
        elif not able:
            self.refused("PU105", "SELECT pulse.retry(%s)", job_id)
        elif taken:
            self.refused("PU102", "SELECT pulse.retry(%s)", job_id)
        else:
            self.db.execute("SELECT pulse.retry(%s)", (job_id,))
        if able and not taken:
            self.retried(job)

    def do_run_now(self, job_id: int, where: bool) -> None:
        job = self.jobs[job_id]
        self.note("run_now", job.lane)
        able = job.state in LINE
        if where:
            done = self.by_filter("run_now", job_id)
            assert done == (job.state in ("scheduled", "retrying"))
        elif able:
            assert self.one("SELECT pulse.run_now(%s)", job_id) == "ready"
        else:
            self.refused("PU105", "SELECT pulse.run_now(%s)", job_id)
        if able and job.state != "ready":
            self.line_up(job)

    def do_reschedule(self, job_id: int, wait: int | None, where: bool) -> None:
        """To three hours from now, or to now."""
        job = self.jobs[job_id]
        self.note("reschedule", job.lane)
        able = job.state in LINE
        when = self.one(
            "SELECT clock_timestamp() + %s::int * interval '1 hour'", wait or 0
        )
        if where:
            self.by_filter("reschedule", job_id, when)
        elif able:
            self.one("SELECT pulse.reschedule(%s, %s)", job_id, when)
        else:
            self.refused("PU105", "SELECT pulse.reschedule(%s, %s)", job_id, when)
        if not able or (wait is None and job.state == "ready"):
            return
        retrying = job.state == "retrying" or (job.state == "ready" and job.failures)
        self.put(job, wait and self.clock + wait, retrying=bool(retrying))

    def do_reprioritize(self, job_id: int, priority: int, where: bool) -> None:
        job = self.jobs[job_id]
        self.note("reprioritize", job.lane)
        able = job.state not in FINISHED
        if where:
            self.by_filter("reprioritize", job_id, priority)
        elif able:
            self.db.execute("SELECT pulse.reprioritize(%s, %s)", (job_id, priority))
        else:
            self.refused("PU105", "SELECT pulse.reprioritize(%s, %s)", job_id, priority)
        if able and job.priority != priority:
            job.priority, job.held = priority, job.held and job.state == "running"
            self.again(job)
        elif job.state in ("scheduled", "retrying") and not where:
            self.again(job)

    def again(self, job: Job) -> None:
        """Taken out and put in again: one that is due joins its line now."""
        if job.state in LINE:
            self.put(job, job.run_at, retrying=job.state == "retrying")

    def do_move(self, job_id: int, lane: str, where: bool) -> None:
        job = self.jobs[job_id]
        if job.key and (
            len(self.holders(job.lane, job.key)) > 1 or job.state == "blocked"
        ):
            return  # Its follower stays: what becomes of it is not promised.
        self.note("move", job.lane, lane)
        able = job.state in (*WAITING, "blocked")
        taken = able and self.holders(lane, job.key)
        if where:
            done = self.by_filter("move", job_id, lane)
            assert done == (able and not taken)
        elif able and not taken:
            self.db.execute("SELECT pulse.move(%s, %s)", (job_id, lane))
        else:
            code = "PU102" if taken else "PU105"
            self.refused(code, "SELECT pulse.move(%s, %s)", job_id, lane)
        if able and not taken:
            job.lane, job.held = lane, False
            self.again(job)

    def do_rerun(self, job_id: int, where: bool) -> None:
        """A new job that repeats one that has ended."""
        job = self.jobs[job_id]
        if job.key or job.after:
            return
        self.note("rerun", job.lane)
        if job.state not in FINISHED:
            if not where:
                self.refused("PU105", "SELECT pulse.rerun(%s)", job_id)
            return
        if where:
            repeated = any(other.rerun_of == job_id for other in self.jobs.values())
            assert self.by_filter("rerun", job_id) == (not repeated)
            if repeated:
                return
            new = self.one("SELECT max(job_id) FROM pulse.jobs")
        else:
            new = self.one("SELECT pulse.rerun(%s)", job_id)
        copy = Job("new", job.kind, job.priority, job.max_attempts, job.lane, job.group)
        copy.rerun_of = job_id
        copy.payload, copy.needed_approval = job.payload, job.needed_approval
        self.created(new, copy)

    @precondition(has("dead", "cancelled"))
    @rule(state=st.sampled_from(["dead", "cancelled"]), lane=st.sampled_from(LANES))
    def retry_where(self, state: str, lane: str) -> None:
        """In the order of the ids; a job whose key is taken by then stays."""
        chosen = [
            job
            for _, job in sorted(self.jobs.items())
            if job.state == state and job.lane == lane
        ]
        if self.busy:
            return
        self.note("retry_where", lane)
        given = json.dumps({"lane": lane, "state": state})
        done = self.one("SELECT done FROM pulse.retry_where(%s)", given)
        for job in chosen:
            if job.state != state:
                done -= 1  # It came back with one that it depends on.
            elif not set(self.holders(lane, job.key)) - {self.id_of(job)}:
                self.retried(job)
                done -= 1
        assert done == 0

    # Lanes --------------------------------------------------------------------

    @precondition(lambda self: len(self.held) < 2 and not self.other_did)
    @rule(
        holder=st.sampled_from(["ann", "bob"]),
        lane=st.sampled_from([None, "m", "o"]),
        seldom=st.integers(0, 1),
    )
    def pause(self, holder: str, lane: str | None, seldom: int) -> None:
        if seldom:
            return
        self.note("pause", *([lane] if lane else LANES))
        new = (holder, lane) not in self.held
        assert self.one("SELECT pulse.pause(%s, lane => %s)", holder, lane) == new
        self.held.add((holder, lane))

    @precondition(lambda self: self.held)
    @rule()
    def resume(self) -> None:
        holder, lane = min(self.held, key=str)
        self.held.discard((holder, lane))
        assert self.one("SELECT pulse.resume(%s, %s)", holder, lane)

    @precondition(lambda self: not self.other_did)
    @rule(name=st.sampled_from("mmmo"), data=st.data())
    def set_lane(self, name: str, data: st.DataObject) -> None:
        """Settings change while jobs exist: one of them, to another value."""
        values: dict[str, list[Any]] = {
            "fair": [False, True],
            "group_slots": [None, 1, 2],
            "in_order": [False, True],
            "max_slots": [None, 1, 2, 3],
            "rate": [None, 2, 4],
            "group_rate": [None, 1, 2],
            "enabled": [True, True, False],
        }
        setting = data.draw(st.sampled_from(sorted(values)))
        self.do_set_lane(name, {setting: data.draw(st.sampled_from(values[setting]))})
        self.note("set_lane", name)

    def do_set_lane(self, name: str, changes: dict[str, Any]) -> None:
        lane = self.lanes[name]
        new_order = changes.get("in_order", lane.in_order)
        if new_order != lane.in_order:
            if self.has_been_tried(name):
                return
            for job in self.jobs.values():
                if (job.lane, job.state) == (name, "running"):
                    job.held = new_order and bool(job.group)
        if new_order:
            changes = {"group_slots": 1} | changes | {"group_slots": 1}
        elif lane.in_order and "group_slots" not in changes:
            changes = changes | {"group_slots": None}
        was = lane.grouped
        arguments, given = ["name => %s"], list[object]([name])
        for setting, value in changes.items():
            arguments.append(f"{setting} => %s")
            given.append(0 if value is None else value)
            if setting.endswith("rate") and value:
                arguments.append(f"{setting}_per => '1 hour'")
            setattr(lane, setting, value)
        self.db.execute(
            f"SELECT pulse.set_lane({', '.join(arguments)})".encode(), given
        )
        if lane.rate is None:
            lane.starts = 0
        if lane.group_rate is None:
            lane.group_starts.clear()
        if not lane.grouped:
            lane.stopped.clear()
        if lane.grouped != was:
            for job in self.jobs.values():
                job.firm = job.firm and (job.lane, job.state) != (name, "ready")
        lane.passed_over.clear()

    def has_been_tried(self, name: str) -> bool:
        """Jobs that ran and wait again: what they keep in another order is not told."""
        return any(
            job.lane == name and job.state in LINE and (job.held or job.attempts)
            for job in self.jobs.values()
        )

    @precondition(lambda self: not self.other_did)
    @rule(group=st.sampled_from("gh"), kind=st.sampled_from("ab"), n=st.integers(0, 4))
    def set_group_or_kind(self, group: str, kind: str, n: int) -> None:
        if self.lanes["m"].grouped and n < 3:
            self.set_group(group, n == 0)
        else:
            self.do_set_kind(kind, {2: None, 3: 1, 4: 3}.get(n))
            self.note("set_kind")

    def set_group(self, group: str, enabled: bool) -> None:
        self.note("set_group", "m")
        self.db.execute(
            "SELECT pulse.set_group('m', %s, enabled => %s)", (group, enabled)
        )
        (set.discard if enabled else set.add)(self.lanes["m"].stopped, group)

    def do_set_kind(self, kind: str, rate: int | None) -> None:
        per = "1 hour" if rate else None
        self.db.execute(
            "SELECT pulse.set_kind(%s, rate => %s, rate_per => %s)",
            (kind, rate or 0, per),
        )
        self.kind_rates.pop(kind, None)
        if rate:
            self.kind_rates[kind] = rate
        else:
            self.kind_starts.pop(kind, None)
