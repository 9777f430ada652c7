"""One test for each known defect, which fails as long as the defect is there.

The points are those of the issue "promises that hold in every pair of features". A fix
removes the mark here and the flag in known_defects.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection, Database


class Queue:
    """A fresh database, and the few calls that these tests need."""

    def __init__(self, db: Connection) -> None:
        self.db = db

    def one(self, statement: str, *parameters: object) -> Any:
        row = self.db.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        return row[0]

    def enqueue(self, **options: object) -> int:
        given = {"kind": "k", "lane": "f"} | options
        arguments = ", ".join(f"{name} => %s" for name in given)
        return int(self.one(f"SELECT pulse.enqueue({arguments})", *given.values()))

    def claim(self, n: int = 1) -> list[tuple[int, int]]:
        """Pairs of job and lease, in claim order."""
        return self.db.execute(
            "SELECT job_id, lease FROM pulse.claim_batch('w', 'f', %s)", (n,)
        ).fetchall()

    def claimed(self, n: int = 1) -> list[int]:
        return [job for job, _ in self.claim(n)]

    def run(self, verb: str, *parameters: object) -> None:
        self.db.execute(f"SELECT pulse.{verb}".encode(), parameters)

    def state(self, job: int) -> str:
        return str(self.one("SELECT state FROM pulse.jobs WHERE job_id = %s", job))

    def why(self, job: int) -> str:
        rows = self.db.execute("SELECT * FROM pulse.why(%s)", (job,)).fetchall()
        return "; ".join(str(row) for row in rows)

    def expire(self, job: int) -> None:
        """Its start_by passes."""
        for table in ("body", "expiry"):
            self.db.execute(
                f"UPDATE pulse_internal.{table} SET start_by = start_by"
                " - interval '1 day' WHERE job = %s".encode(),
                (job,),
            )

    def tick(self) -> None:
        self.db.execute("SELECT pulse.tick()")


@pytest.fixture
def queue(db: Database) -> Queue:
    return Queue(db.connect())


def defect(point: int, what: str) -> Callable[[Any], Any]:
    mark: Callable[[Any], Any] = pytest.mark.xfail(
        strict=True, reason=f"point {point}: {what}", raises=AssertionError
    )
    return mark


def test_first_lease_of_an_installation_takes_a_slot(queue: Queue) -> None:
    queue.run("set_lane('f', fair => true, max_slots => 1)")
    for group in "ab":
        queue.enqueue(group_key=group)
    assert len(queue.claim()) == 1
    assert queue.claim() == []


def test_batch_keeps_strict_priority_across_groups(queue: Queue) -> None:
    queue.run("set_lane('f', fair => true, max_slots => 2)")
    high = [queue.enqueue(group_key="a", priority=p) for p in (9, 8)]
    queue.enqueue(group_key="b")
    assert queue.claimed(10) == high


@pytest.mark.parametrize("by", ["reschedule", "reschedule_where", "replace", "follow"])
def test_job_back_in_line_keeps_its_place(queue: Queue, by: str) -> None:
    queue.run("set_lane('f', in_order => true)")
    first = queue.enqueue(group_key="a", unique_key="x")
    queue.enqueue(group_key="a")
    ((_, lease),) = queue.claim()
    queue.run("release(ARRAY[%s::bigint])", lease)
    if by == "reschedule":
        queue.run("reschedule(%s, now() + interval '1 hour')", first)
    elif by == "reschedule_where":
        queue.run(
            'reschedule_where(\'{"lane": "f", "kind": "k",'
            f' "job_ids": ["{first}"]}}\', now() + interval \'1 hour\')'
        )
    else:
        queue.enqueue(group_key="a", unique_key="x", delay="1 hour", on_conflict=by)
    assert queue.claimed() == []


def test_in_order_switched_on_holds_for_a_run(queue: Queue) -> None:
    queue.run("set_lane('f', group_slots => 1)")
    for _ in range(2):
        queue.enqueue(group_key="a")
    ((_, lease),) = queue.claim()
    queue.run("set_lane('f', in_order => true)")
    queue.run("fail(%s, 'boom', '1 hour')", lease)
    assert queue.claimed() == []


def test_in_order_switched_off_sends_a_run_to_the_end(queue: Queue) -> None:
    queue.run("set_lane('f', in_order => true)")
    queue.enqueue(group_key="a")
    second = queue.enqueue(group_key="a")
    ((_, lease),) = queue.claim()
    queue.run("set_lane('f', in_order => false)")
    queue.run("release(ARRAY[%s::bigint])", lease)
    assert queue.claimed() == [second]


def test_late_jobs_use_up_no_turn(queue: Queue) -> None:
    queue.run("set_lane('f', fair => true)")
    late = [queue.enqueue(group_key="a", expires_in="1 hour") for _ in range(3)]
    mine = queue.enqueue(group_key="a")
    for _ in range(4):
        queue.enqueue(group_key="b")
    for job in late:
        queue.expire(job)
    assert mine in [job for _ in range(2) for job in queue.claimed()]


def test_claim_looks_behind_late_jobs(queue: Queue) -> None:
    queue.run("set_lane('f', fair => true)")
    for _ in range(3):
        queue.expire(queue.enqueue(group_key="a", expires_in="1 hour"))
    mine = queue.enqueue(group_key="a")
    assert queue.claimed() == [mine]


def test_pause_of_a_flow_is_not_offered(queue: Queue) -> None:
    names = queue.one(
        "SELECT proargnames FROM pg_proc WHERE oid = (SELECT min(oid) FROM pg_proc"
        " WHERE proname = 'pause' AND pronamespace = 'pulse'::regnamespace)"
    )
    assert "flow" not in names


def fail_upstream_and_retry(queue: Queue, upstream: int, retry: bool = True) -> None:
    ((job, lease),) = queue.claim()
    assert job == upstream
    queue.run("fail(%s, 'boom', NULL, true)", lease)
    if retry:
        queue.run("retry(%s)", upstream)


@pytest.mark.parametrize("option", ["delay", "run_at"])
def test_revived_child_keeps_its_time(queue: Queue, option: str) -> None:
    upstream = queue.enqueue()
    when = queue.one("SELECT clock_timestamp() + interval '1 hour'")
    given = when if option == "run_at" else "1 hour"
    child = queue.enqueue(after=[upstream], **{option: given})
    fail_upstream_and_retry(queue, upstream)
    ((_, lease),) = queue.claim()
    queue.run("complete(%s)", lease)
    assert queue.state(child) == "scheduled"


def test_revived_child_keeps_expires_in(queue: Queue) -> None:
    upstream = queue.enqueue()
    child = queue.enqueue(after=[upstream], expires_in="1 hour")
    fail_upstream_and_retry(queue, upstream)
    ((_, lease),) = queue.claim()
    queue.run("complete(%s)", lease)
    assert queue.one("SELECT start_by FROM pulse.jobs WHERE job_id = %s", child)


def test_retried_child_keeps_its_delay(queue: Queue) -> None:
    upstream = queue.enqueue()
    child = queue.enqueue(after=[upstream], delay="1 hour")
    queue.run("cancel(%s)", child)
    queue.run("retry(%s)", child)
    ((_, lease),) = queue.claim()
    queue.run("complete(%s)", lease)
    assert queue.state(child) == "scheduled"


def test_revived_child_expires_by_its_start_by(queue: Queue) -> None:
    upstream = queue.enqueue()
    when = queue.one("SELECT clock_timestamp() + interval '1 hour'")
    child = queue.enqueue(after=[upstream], start_by=when)
    ((_, lease),) = queue.claim()
    queue.run("fail(%s, 'boom', NULL, true)", lease)
    queue.expire(child)
    queue.tick()
    queue.run("retry(%s)", upstream)
    queue.db.execute(
        "UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval '1 hour'"
    )
    queue.tick()
    assert queue.state(child) == "cancelled"


def test_results_stay_for_a_dead_job_that_may_be_retried(queue: Queue) -> None:
    upstream = queue.enqueue()
    child = queue.enqueue(after=[upstream])
    ((_, lease),) = queue.claim()
    queue.run("complete(%s, '1')", lease)
    ((_, lease),) = queue.claim()
    queue.run("fail(%s, 'boom', NULL, true)", lease)
    queue.db.execute(
        "UPDATE pulse_internal.finished SET finished_at = now() - interval '3 days'"
    )
    queue.run("prune()")
    queue.run("retry(%s)", child)
    ((_, lease),) = queue.claim()
    assert queue.one("SELECT count(*) FROM pulse.upstream(%s)", lease) == 1


def test_retried_child_is_held_when_its_upstream_dies_again(queue: Queue) -> None:
    upstream = queue.enqueue()
    child = queue.enqueue(after=[upstream])
    ((_, lease),) = queue.claim()
    queue.run("fail(%s, 'boom', NULL, true)", lease)
    queue.run("retry(%s)", child)
    queue.run("retry(%s)", upstream)
    fail_upstream_and_retry(queue, upstream, retry=False)
    assert queue.state(child) == "blocked"


@defect(11, "a follower that ends takes the key of the job before it along")
def test_cancelled_follower_leaves_unique_for_alone(queue: Queue) -> None:
    first = queue.enqueue(unique_key="x", unique_for="1 hour")
    ((_, lease),) = queue.claim()
    follower = queue.enqueue(unique_key="x", on_conflict="follow")
    queue.run("complete(%s)", lease)
    queue.run("cancel(%s)", follower)
    assert queue.enqueue(unique_key="x") == first


def test_follower_waits_for_the_run_alone(queue: Queue) -> None:
    queue.enqueue(unique_key="x")
    ((_, lease),) = queue.claim()
    follower = queue.enqueue(unique_key="x", on_conflict="follow")
    queue.run('spawn(%s, \'s\', \'[{"kind": "k", "lane": "other"}]\')', lease)
    queue.run("complete(%s)", lease)
    assert queue.state(follower) == "ready"


def test_last_change_reaches_a_follower_that_waits(queue: Queue, db: Database) -> None:
    queue.enqueue(unique_key="x", unique_for="1 hour")
    ((_, lease),) = queue.claim()
    other = Queue(db.connect())
    with other.db.transaction():
        follower = other.enqueue(
            unique_key="x", on_conflict="follow", payload='{"n": 1}'
        )
        queue.run("complete(%s)", lease)
    assert queue.state(follower) == "blocked"
    queue.enqueue(unique_key="x", on_conflict="follow", payload='{"n": 2}')
    payload = queue.one("SELECT payload FROM pulse.jobs WHERE job_id = %s", follower)
    assert payload == {"n": 2}


def test_merge_is_not_offered(queue: Queue) -> None:
    queue.enqueue(unique_key="x")
    with pytest.raises(psycopg.Error) as caught:
        queue.enqueue(unique_key="x", on_conflict="merge")
    assert caught.value.sqlstate == "PU002"


def test_new_job_for_an_approver_is_called_created(queue: Queue) -> None:
    call = (
        "SELECT created FROM pulse.enqueue_one('k', lane => 'f', unique_key => 'x',"
        " requires_approval => true, on_conflict => 'replace')"
    )
    assert queue.one(call)
    assert queue.one(call)
    assert queue.one("SELECT count(*) FROM pulse.jobs") == 2


@defect(15, "why looks at jobs in groups before a claim has sorted them")
def test_why_names_one_first_job_of_two_groups(queue: Queue) -> None:
    queue.run("hello('w', '{f}')")
    queue.run("set_lane('f', fair => true)")
    jobs = [queue.enqueue(group_key=group) for group in "ab"]
    first = ["the next claim takes it" in queue.why(job) for job in jobs]
    assert first == [True, False]


def test_why_sees_a_due_job_of_higher_priority(queue: Queue) -> None:
    queue.run("hello('w', '{f}')")
    job = queue.enqueue()
    queue.enqueue(priority=9, delay="1 hour")
    queue.db.execute(
        "UPDATE pulse_internal.waiting SET run_at = run_at - interval '2 hours'"
    )
    assert "the next claim takes it" not in queue.why(job)


def test_reschedule_where_to_now_keeps_the_place(queue: Queue) -> None:
    queue.run("set_lane('f', fair => true)")
    first = queue.enqueue(group_key="a")
    queue.enqueue(group_key="a")
    queue.run(
        'reschedule_where(\'{"lane": "f", "state": "ready",'
        f' "job_ids": ["{first}"]}}\', now() - interval \'1 minute\')'
    )
    assert queue.claimed() == [first]


def test_rate_of_a_kind_costs_a_group_no_turn(queue: Queue) -> None:
    queue.one("SELECT nextval('pulse_internal.lease_seq')")
    queue.run("set_lane('f', fair => true)")
    queue.run("set_kind('b', rate => 3, rate_per => '1 hour')")
    jobs = {
        queue.enqueue(kind=kind, group_key=group): group + kind
        for group, kind in ("hb", "ha", "ga", "ga", "xb")
    }
    assert [jobs[job] for job in queue.claimed(4)] == ["hb", "ga", "xb", "ha"]


def test_late_job_uses_up_no_start_of_its_kind(queue: Queue) -> None:
    queue.run("set_kind('a', rate => 1, rate_per => '1 hour')")
    queue.expire(queue.enqueue(kind="a", priority=1, expires_in="1 hour"))
    high = queue.enqueue(kind="a", priority=1)
    low = queue.enqueue(kind="b")
    assert queue.claimed(4) == [high, low]
