"""Random verbs against a model of the life of a job, compared after every step.

The lane is a parameter: plain, fair, with slots or a rate, of the lane, its groups or a
kind. It is crossed with everything else that the model does. What the model says must
be what the database says; what a claim starts is judged by the promises.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

from tests.conftest import Database
from tests.engine.life import FINISHED, LANES, Scratch
from tests.engine.life_claims import Violation
from tests.engine.life_flows import GROUPS
from tests.engine.life_time import Time

SORTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fair": {"fair": True},
    "group_slots": {"group_slots": 1},
    "in_order": {"in_order": True},
    "max_slots": {"max_slots": 2},
    "rate": {"rate": 3},
    "group_rate": {"group_rate": 2},
    "kind_rate": {},
}
HISTORIES = 25
STEPS = 50
EVERY = 12
"""check() costs more than all else together: it looks after so many steps."""
ROUNDS = 60


class Life(Time):
    """The comparison, and the end of each history."""

    sorts: ClassVar[tuple[str, ...]] = ()
    """What the lane of each history is, if not everything in turn."""

    @initialize(
        sort=st.sampled_from(sorted(SORTS)),
        also=st.sampled_from(sorted(SORTS)),
        jobs=st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from(GROUPS)),
            min_size=1,
            max_size=8,
        ),
    )
    def a_lane_of_this_sort(
        self, sort: str, also: str, jobs: list[tuple[str, str]]
    ) -> None:
        """Half of all histories have a lane of two sorts; most begin with jobs."""
        self.choose(*(self.sorts or (sort, *([also] if also < sort else []))))
        for kind, group in jobs:
            self.do_enqueue(kind, group=group)

    def choose(self, *sorts: str) -> None:
        for lane in LANES:
            self.do_set_lane(lane, {"enabled": True})
        for sort in sorts:
            self.do_set_lane("m", SORTS[sort])
            if sort == "kind_rate":
                self.do_set_kind("a", 2)

    @invariant()
    def the_database_agrees(self) -> None:
        self.settle_loose(at_once=False)
        self.expire(must=False)
        self.forget_turns()
        rows = self.db.execute(
            "SELECT job_id, state, attempts, failures, priority, lane,"
            " (payload->>'n')::int,"
            " round(extract(epoch FROM run_at - clock_timestamp()) / 3600)::int,"
            " round(extract(epoch FROM start_by - clock_timestamp()) / 3600)::int"
            " FROM pulse.jobs"
        ).fetchall()
        found = {row[0]: row[1:] for row in rows}
        assert sorted(found) == sorted(self.jobs)
        for job_id, job in self.jobs.items():
            expected = (
                *(job.state, job.attempts, job.failures, job.priority, job.lane),
                job.payload,
            )
            assert found[job_id][:6] == expected, f"{job_id}: {job}"
            run_at, start_by = found[job_id][6:]
            if job.state in ("scheduled", "retrying"):
                assert self.clock + run_at == job.run_at, f"{job_id}: {run_at} {job}"
            if (
                job.start_by is not None
                and job.attempts == 0
                and (job.state not in FINISHED)
            ):
                assert start_by is not None, f"T16: {job} lost its start_by"
                assert self.clock + start_by == job.start_by, f"{start_by} {job}"
        dependencies = "SELECT job_id, after_job_id FROM pulse.dependencies"
        assert self.edges() == set(self.db.execute(dependencies))
        self.compared += 1
        if self.compared % EVERY == 0:
            self.check()

    def check(self) -> None:
        assert self.db.execute("SELECT * FROM pulse.check()").fetchall() == []

    def teardown(self) -> None:
        try:
            # Not after a step that failed: that one is to be told.
            if sys.exc_info()[0] is None:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        """A committed job runs until it has ended: nothing is left behind."""
        if self.other_did:
            self.other_ends(commit=True)
        for holder, held in sorted(self.held, key=str):
            self.one("SELECT pulse.resume(%s, %s)", holder, held)
        self.held.clear()
        for name, lane in self.lanes.items():
            self.do_set_lane(name, {"enabled": True})
            for group in sorted(lane.stopped):
                self.db.execute(
                    "SELECT pulse.set_group(%s, %s, enabled => true)", (name, group)
                )
            lane.stopped.clear()
        for _ in range(ROUNDS):
            for job_id, job in sorted(self.jobs.items()):
                if job.state == "awaiting_approval":
                    self.do_decide(job_id, True, False)
            started = [j for name in LANES for j in self.do_claim(name, 4)]
            for job_id, job in sorted(self.jobs.items()):
                if job.state == "running":
                    self.do_complete(job_id)
            self.the_database_agrees()
            left = [
                job
                for job in self.jobs.values()
                if job.state not in (*FINISHED, "blocked")
                or (job.state == "blocked" and self.fate(job) != "blocked")
            ]
            if not left:
                self.check()
                return
            if not started:
                self.do_pass(2)
                self.do_tick()
        raise Violation(f"G20: left behind: {left}")


@pytest.mark.filterwarnings("default")
def test_random_verbs_agree_with_the_model(db: Database) -> None:
    Life.scratch = Scratch(db.connect)
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=True,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
