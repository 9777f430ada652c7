"""Time in the model, what tick does by then, and a second session."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.life import FINISHED, Job, has
from tests.engine.life_claims import CLAIMED, Violation
from tests.engine.life_flows import GROUPS
from tests.engine.life_verbs import Operators


class Time(Operators):
    """Hours pass; claims and ticks find out."""

    @precondition(lambda self: not self.other_did)
    @rule()
    def two_hours_pass(self) -> None:
        self.do_pass(2)

    def do_pass(self, hours: int) -> None:
        self.note("time passes")
        self.scratch.shift(hours)
        self.clock += hours
        for lane in self.lanes.values():
            lane.starts = 0
            lane.group_starts.clear()
            lane.passed_over.clear()
        self.kind_starts.clear()

    @rule()
    def tick(self) -> None:
        self.do_tick()

    def do_tick(self) -> None:
        """After it, nothing that is due, late or free is left behind."""
        self.note("tick")
        for table, column in (("upkeep_run", "taken_at"), ("horizon", "seen_at")):
            self.db.execute(
                f"UPDATE pulse_internal.{table} SET {column} = {column}"
                " - interval '1 minute' WHERE ctid = ANY (array(SELECT ctid"
                f" FROM pulse_internal.{table} FOR UPDATE SKIP LOCKED))".encode()
            )
        order = self.due_order()
        steps = self.db.execute("SELECT step, error FROM pulse.tick()").fetchall()
        assert not [error for _, error in steps if error]
        self.promoted(order)
        # What an open transaction holds is left to the next one.
        must = not self.other_did
        for job in self.jobs.values():
            if must and job.state in ("scheduled", "retrying") and self.due(job):
                raise Violation(f"T5: a tick left {job}")
        self.settle_loose(at_once=must)
        self.expire(must)

    def expire(self, must: bool) -> None:
        """T4, T16: cancelled, if a claim or a tick has come that far."""
        for job_id, job in sorted(self.jobs.items()):
            waits = job.state == "awaiting_approval"
            over = waits and (job.approval_until or 0) <= self.clock
            if not (over or self.late(job)) or job_id in self.busy:
                continue
            state = self.one("SELECT state FROM pulse.jobs WHERE job_id = %s", job_id)
            if state == "cancelled":
                job.last = None
                self.ends(job, "cancelled")
            elif must:
                raise Violation(f"{'T4' if over else 'T16'}: a tick left {job}")

    @precondition(has("running"))
    @rule(data=st.data(), why=st.sampled_from(["lost", "deadline", "cancel"]))
    def a_run_has_had_its_time(self, data: st.DataObject, why: str) -> None:
        self.do_reap(self.some(data, "running"), why)

    def do_reap(self, job_id: int, why: str = "lost") -> None:
        """G4, G5: its worker is lost, max_runtime is over, or the cancel grace."""
        job = self.jobs[job_id]
        self.note("reap", job.lane)
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

    @precondition(has(*FINISHED))
    @rule(data=st.data(), by=st.sampled_from(["prune", "delete_job", "discard"]))
    def a_finished_job_goes(self, data: st.DataObject, by: str) -> None:
        self.do_remove(self.some(data, *FINISHED), by)

    def do_remove(self, job_id: int, by: str) -> None:
        job = self.jobs[job_id]
        if any(
            did == "after" and job_id in what[1].after for did, what in self.other_did
        ):
            return
        keyed = (job.key_until or 0) > self.clock
        needed = self.needed(job_id)
        self.note(by, job.lane)
        if by == "prune":
            # Its time alone has come: in a year all others would go as well.
            self.db.execute(
                "UPDATE pulse_internal.finished SET finished_at = now() - interval"
                " '1 year' WHERE job = %s",
                (job_id,),
            )
            gone = not needed and not keyed
            assert self.one("SELECT pulse.prune()") == gone
            self.db.execute(
                "UPDATE pulse_internal.finished SET finished_at = clock_timestamp()"
                " WHERE job = %s",
                (job_id,),
            )
        else:
            gone = not needed
            if by == "discard":
                done = self.by_filter("discard", job_id)
                gone = done == 1
                assert not (gone and needed)
            elif needed:
                self.refused("PU105", "SELECT pulse.delete_job(%s)", job_id)
            else:
                self.db.execute("SELECT pulse.delete_job(%s)", (job_id,))
        if not gone:
            return
        for child in self.children(job_id):
            child.after.discard(job_id)
        del self.jobs[job_id]
        self.refused("PU004", "SELECT pulse.cancel(%s)", job_id)

    # A second session ---------------------------------------------------------

    @precondition(lambda self: not self.other_did)
    @rule(
        data=st.data(),
        did=st.sampled_from(
            ["enqueue", "enqueue", "after", "cancel", "claim", "complete", "fail"]
        ),
        lane=st.sampled_from("mmmo"),
        group=st.sampled_from(GROUPS),
    )
    def another_session_begins(
        self, data: st.DataObject, did: str, lane: str, group: str
    ) -> None:
        """It does one thing, and keeps its transaction open."""
        running = [i for i, j in self.jobs.items() if j.state == "running"]
        waiting = [
            i
            for i, j in self.jobs.items()
            if j.state in ("ready", "scheduled", "retrying")
            and not (j.key or j.after or self.children(i) or j.waits)
        ]
        choice = {"after": running, "complete": running, "fail": running}
        choice["cancel"] = waiting
        if did in choice and not choice[did]:
            return
        job_id = data.draw(st.sampled_from(sorted(choice[did]))) if did in choice else 0
        if did in ("complete", "fail") and self.jobs[job_id].key:
            return
        self.other_begins(did, job_id, lane, group)

    def other_begins(self, did: str, job_id: int, lane: str, group: str) -> None:
        self.note(f"open {did}", lane if not job_id else self.jobs[job_id].lane)
        if did == "claim":
            self.do_tick()
        self.other.execute("BEGIN")
        if did in ("enqueue", "after"):
            job = Job("blocked" if job_id else "new", "b", lane=lane, group=group)
            job.after = {job_id} if job_id else set()
            row = self.other.execute(
                "SELECT pulse.enqueue('b', '{\"n\": 0}', lane => %s, group_key => %s,"
                " max_attempts => 2, after => %s::bigint[])",
                (lane, group or None, [job_id] if job_id else None),
            ).fetchone()
            assert row is not None
            self.other_did.append((did, (row[0], job)))
        elif did == "claim":
            rows = self.other.execute(
                f"SELECT {CLAIMED} FROM pulse.claim_batch('v', %s, 1)".encode(), (lane,)
            ).fetchall()
            self.other_did.append((did, rows))
            for row in rows:
                objection = self.objection(self.lanes[lane], self.jobs[row[0]], None)
                assert objection is None, objection
                self.busy[row[0]] = did
        else:
            job = self.jobs[job_id]
            call = {
                "cancel": "pulse.cancel(%s)",
                "complete": "pulse.complete(%s, '1')",
                "fail": "pulse.fail(%s, 'boom', '1 hour', true)",
            }[did]
            given = job_id if did == "cancel" else job.lease
            self.other.execute(f"SELECT {call}".encode(), (given,))
            self.other_did.append((did, job_id))
            self.busy |= dict.fromkeys(self.below(job_id), did)

    @precondition(lambda self: self.other_did)
    @rule(commit=st.sampled_from([True, True, False]))
    def the_other_session_ends(self, commit: bool) -> None:
        self.other_ends(commit)

    def other_ends(self, commit: bool) -> None:
        self.note("commit" if commit else "rollback")
        done, self.other_did = self.other_did, []
        busy = set(self.busy)
        self.busy.clear()
        self.other.execute("COMMIT" if commit else "ROLLBACK")
        for did, what in done if commit else ():
            if did == "enqueue":
                job_id, job = what
                self.jobs[job_id] = job
                self.release([job])
                job.firm = False
            elif did == "after":
                job_id, job = what
                job.loose = True
                job.after &= set(self.jobs)
                self.jobs[job_id] = job
            elif did == "claim":
                for row in what:
                    self.start(self.jobs[row[0]], row)
            else:
                self.other_ended(did, what, busy)

    def below(self, job_id: int) -> list[int]:
        """The job, and what its end may change: the session holds their rows."""
        found = [job_id]
        for each in found:
            found += [
                child
                for child in map(self.id_of, self.children(each))
                if child not in found and self.jobs[child].state == "blocked"
            ]
        return found

    def other_ended(self, did: str, job_id: int, busy: set[int]) -> None:
        job = self.jobs[job_id]
        for child in self.children(job_id):
            child.loose = self.id_of(child) not in busy
        if did == "cancel":
            job.last = None
            self.ends(job, "cancelled")
        elif did == "complete":
            self.end_run(job, "complete")
            self.ends(job, "completed")
        else:
            self.end_badly(job, "fail", fatal=True)
