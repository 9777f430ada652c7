"""Each judge on a history made by hand: a good one passes, a bad one does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.history import Event, Transaction
from tests.chaos.invariants import Invariant
from tests.chaos.invariants_counters import COUNTED
from tests.chaos.invariants_rates import RatesAreExact
from tests.chaos.journal import Steps
from tests.chaos.story import (
    JOB,
    Story,
    began,
    blocked,
    depends,
    finished,
    fired,
    group_slots,
    hold,
    in_order,
    leased,
    lost,
    ready,
    run_at,
    saved,
    scheduled,
    slots,
    stepped,
    told,
    whole,
)


def lowered() -> Story:
    """Two run when max_slots becomes one; the next claim waits for both."""
    story = Story().enqueue(1).enqueue(2).enqueue(3).claim(1, 1).claim(2, 2)
    story = story.tell(slots("l", 1)).complete(1, 1).complete(2, 2)
    return story.claim(3, 3).complete(3, 3)


GOOD: dict[str, Callable[[], Story]] = {
    "a job from enqueue to completion": whole,
    "a lapsed run and its second attempt": lambda: (
        Story().enqueue().claim(7).retry(7, "reap").claim(8, attempt=2, failures=1)
        .complete(8)
    ),
    "a job retried by hand fails anew": lambda: (
        Story().enqueue(max_attempts=1).claim(7)
        .tell(leased("-", 7), finished(7, verb="fail", state="dead"))
        .tell(Event("finished", "-", job=JOB, state="dead"), ready("+"))
        .claim(8, attempt=2)
        .tell(leased("-", 8), finished(8, verb="fail", state="dead"))
    ),
    "a forced cancel names no lease": lambda: (
        Story().enqueue().claim(7)
        .tell(leased("-", 7), finished(None, verb="cancel", state="cancelled"))
    ),
    "a finished job is pruned": lambda: (
        whole().tell(Event("finished", "-", job=JOB), Event("body", "-", job=JOB))
    ),
    "fewer slots than run are waited for": lowered,
    "claims before a pause and after it": lambda: (
        Story().enqueue(1).enqueue(2).claim(1, 1).tell(hold("+")).complete(1, 1)
        .tell(hold("-")).claim(2, 2).complete(2, 2)
    ),
    "a job that was invisible may be passed": lambda: (
        Story().tell(slots("l", 1)).enqueue(1, pid=5).enqueue(2, pid=6).claim(1, 2)
    ),
    "a schedule fires and skips": lambda: (
        fired(scheduled(), 110.0, 1)
        .tell(run_at(120.0, skipped="late; this row stands for 3 occurrences"))
        .tell(run_at(150.0, skipped="late"))
    ),
    "a unique key finds the first job": lambda: (
        told(told(whole(), unique_key="x"), op="op2", unique_key="x")
        .note("enqueue_ack", op="op2", job_id=JOB)
    ),
    "a stopped process may be late once": lambda: (
        began(Story().enqueue().claim(7).retry(7, "reap"), 7)
        .note("fault", name="stop", stopped="p", until=3.0)
    ),
    "a forced cancel is noticed later": lambda: began(forced(until=9.0), 7),
    "a promotion may lose what was reported": lambda: (
        lost(told(Story()).note("enqueue_ack", op="op1024", job_id=JOB)
             .note("verb_ack", verb="complete", lease=7, job_id=JOB), whole())
    ),
    "an effect of a claim that was lost": lambda: (
        lost(began(Story().enqueue(), 7), Story().claim(7))
        .claim(8).complete(8)
    ),
    "an effect of a lease whose heartbeat was lost": lambda: (
        lost(began(Story().enqueue().claim(7).retry(7, "reap"), 7), Story())
    ),
    "an effect of a lease that lapsed by a step": lambda: (
        began(lapsed_by_a_step(until=7.0), 7)
    ),
    "an effect of a lease that lapsed by a step within its claim": lambda: (
        began(reaped_by_its_claim(), 7)
    ),
    "a lease that was reaped as the clock stepped back": lambda: (
        stepped(Story(), 2.6, -5.0).enqueue().claim(7)
        .tell(leased("-", 7, until=2.5, ahead=-5.0), finished(7, verb="reap"))
    ),
    "a job runs after another": lambda: (
        Story().enqueue(1).enqueue_after(2, 1).claim(1, 1)
        .tell(leased("-", 1, 1), finished(1, 1), blocked("-", 2), ready("+", 2))
        .claim(2, 2).complete(2, 2)
    ),
    "any end counts for who takes any": lambda: (
        Story().enqueue(1).enqueue_after(2, 1, after_failed="run").claim(1, 1)
        .tell(leased("-", 1, 1), finished(1, 1, verb="fail", state="dead"),
              blocked("-", 2), ready("+", 2))
        .claim(2, 2).complete(2, 2)
    ),
    "a spawned job is waited for": lambda: (
        spawn(Story().enqueue(1).enqueue_after(2, 1).claim(1, 1), depends(2, 3))
    ),
    "who waits later does not wait for the spawned": lambda: (
        spawn(Story().enqueue(1).claim(1, 1)).enqueue_after(2, 1)
    ),
    "a step is run again when it was not saved": lambda: (
        stepped_in(stepped_in(Story().enqueue().claim(7), 7).retry(7, "reap")
                   .claim(8, attempt=2, failures=1), 8).tell(saved("a"))
    ),
    "a signal is kept": lambda: (
        Story().note("signal_ack", signal="go 1")
        .tell(Event("signal", "+", name="go 1"), saved("go 1", verdict="received"))
    ),
    "a promotion may lose a signal": lambda: (
        lost(Story().note("signal_ack", signal="go 1"),
             Story().tell(Event("signal", "+", name="go 1")))
    ),
    "ticks and claims under pressure": lambda: pressed([]),
    "a hostile value is refused": lambda: sent("PU003", refuse=True),
    "everything is counted once": lambda: counted(),
    "an odd value is kept": lambda: sent("", refuse=False),
}  # fmt: skip

BAD: list[tuple[str, str, Callable[[], Story]]] = [
    ("stands in exactly one", "in two places", lambda: (
        Story().enqueue().tell(leased("+", 7)))),
    ("stands in exactly one", "in none", lambda: Story().enqueue().tell(ready("-"))),
    ("stands in exactly one", "gone without a word", lambda: (
        gone(Story().enqueue()))),
    ("completed job is never", "run again", lambda: (
        whole().tell(Event("finished", "-", job=JOB), ready("+")))),
    ("at most one live lease", "two leases", lambda: (
        Story().enqueue().claim(7).tell(leased("+", 8, attempt=2)))),
    ("at most one live lease", "a smaller lease", lambda: (
        Story().enqueue().claim(7).retry(7, "release", failures=0)
        .claim(6, attempt=2))),
    ("at most one live lease", "an attempt twice", lambda: (
        Story().enqueue().claim(7).retry(7, "release", failures=0).claim(8))),
    ("names the lease", "ended by another lease", lambda: (
        Story().enqueue().claim(7).retry(7, "reap").claim(8, attempt=2, failures=1)
        .tell(leased("-", 8), finished(7)))),
    ("names the lease", "reaped too early", lambda: (
        Story().enqueue().claim(7)
        .tell(leased("-", 7, until=99.0), finished(7, verb="reap", state="dead")))),
    ("names the lease", "progress of a stale lease", lambda: (
        Story().enqueue().claim(7).retry(7, "release", failures=0)
        .tell(Event("job_progress", "+", job=JOB, lease=7)))),
    ("at most max_attempts", "a third run of two", lambda: (
        Story().enqueue().claim(7).retry(7, "fail").claim(8, attempt=2, failures=1)
        .retry(8, "reap", failures=2).claim(9, attempt=3, failures=2))),
    ("at most max_attempts", "a release that was charged", lambda: (
        Story().enqueue().claim(7).retry(7, "release")
        .claim(8, attempt=2, failures=1))),
    ("beyond max_slots", "two in one slot", lambda: (
        Story().tell(slots("l", 1)).enqueue(1).enqueue(2).claim(1, 1).claim(2, 2))),
    ("beyond group_slots", "two of one group in one slot", lambda: (
        Story().tell(group_slots("l", 1)).enqueue(1).enqueue(2)
        .claim(1, 1, extra={"group_key": "a"}).claim(2, 2, extra={"group_key": "a"}))),
    ("may come back", "another while one was snoozed", lambda: (
        Story().tell(in_order("l")).enqueue(1).enqueue(2)
        .claim(1, 1, extra={"group_key": "a"})
        .tell(leased("-", 1, 1), Event("waiting", "+", job=1, extra={"place": 1}))
        .claim(2, 2, extra={"group_key": "a"}))),
    ("starts in any window", "three in a period of two", lambda: (
        Story().tell(Event("lane", "+", lane="l", extra={"rate": 2, "rate_per": 10}))
        .enqueue(1).enqueue(2).enqueue(3).claim(1, 1, extra={"started": 1.0})
        .claim(2, 2, extra={"started": 5.0}).claim(3, 3, extra={"started": 10.9}))),
    ("starts in any window", "three of a kind, in two lanes", lambda: (
        Story().tell(Event("kind", "+", kind="k", extra={"rate": 2, "rate_per": 10}))
        .enqueue(1).enqueue(2, "other").enqueue(3).claim(1, 1, extra={"started": 1.0})
        .claim(2, 2, lane="other", extra={"started": 5.0})
        .claim(3, 3, extra={"started": 10.9}))),
    ("first jobs in line", "the second of a group before the first", lambda: (
        Story().tell(in_order("l"))
        .tell(ready("+", 1, extra={"group_key": "a"}))
        .tell(ready("+", 2, extra={"group_key": "a"}))
        .tell(ready("-", 2, extra={"group_key": "a"}),
              leased("+", 1, 2, extra={"group_key": "a"})))),
    ("held or disabled", "every lane is paused", lambda: (
        Story().enqueue().tell(hold("+")).claim(7))),
    ("held or disabled", "its lane is paused", lambda: (
        Story().enqueue().tell(hold("+", "l")).claim(7))),
    ("held or disabled", "the lane is disabled", lambda: (
        Story().enqueue().tell(slots("l", None, enabled=False)).claim(7))),
    ("gets no other", "a kind it cannot run", lambda: (
        Story().note("worker", name="w", kinds=["other"]).enqueue().claim(7))),
    ("first jobs in line", "the second before the first", lambda: (
        Story().tell(slots("l", 1)).enqueue(1).enqueue(2).claim(1, 2))),
    ("first jobs in line", "the lower priority first", lambda: (
        Story().tell(slots("l", 1)).enqueue(1).enqueue(2, rank=-5).enqueue(3)
        .claim(1, 1))),
    ("fires once", "twice", lambda: fired(fired(scheduled(), 110.0, 1), 110.0, 2)),
    ("fires once", "an occurrence left out", lambda: fired(scheduled(), 120.0, 1)),
    ("fires once", "a job that is not there", lambda: (
        scheduled().tell(run_at(110.0, 5)))),
    ("acknowledged enqueue", "lost", lambda: (
        told(Story()).note("enqueue_ack", op="op1024", job_id=JOB))),
    ("acknowledged enqueue", "another job", lambda: (
        told(Story(), op="x").enqueue().note("enqueue_ack", op="x", job_id=JOB))),
    ("acknowledged enqueue", "twice", lambda: (
        told(Story()).enqueue().enqueue(2048, op="op1024"))),
    ("acknowledged enqueue", "rolled back, yet there", lambda: (
        told(Story()).enqueue().note("enqueue_rolled_back", op="op1024"))),
    ("report that was accepted", "of a stale lease", lambda: (
        Story().enqueue().claim(7).retry(7, "reap")
        .note("verb_ack", verb="complete", lease=7, job_id=JOB))),
    ("report that was accepted", "without a change", lambda: (
        Story().enqueue().claim(7)
        .note("verb_ack", verb="complete", lease=7, job_id=JOB))),
    ("effect began once", "after the lease", lambda: (
        began(Story().enqueue().claim(7).retry(7, "reap"), 7))),
    ("effect began once", "without a lease", lambda: began(Story().enqueue(), 7)),
    ("effect began once", "twice", lambda: (
        began(began(Story().enqueue().claim(7), 7), 7))),
    ("effect began once", "of another attempt", lambda: (
        began(Story().enqueue().claim(7), 7, attempt=2))),
    ("effect began once", "late twice after one stop", lambda: late_twice()),
    ("effect began once", "after a forced cancel and its own time", lambda: (
        began(forced(until=3.1), 7))),
    ("effect began once", "long after a step", lambda: (
        began(lapsed_by_a_step(until=3.1), 7))),
    ("handed out twice", "a job id that was lost", lambda: (
        lost(Story().enqueue(op="new"), Story().enqueue()))),
    ("handed out twice", "a lease that was lost", lambda: (
        lost(Story().enqueue(1).claim(7, 1), Story().claim(7, 2)))),
    ("acknowledged enqueue", "lost, though a promotion lost another", lambda: (
        lost(told(Story()).note("enqueue_ack", op="op1024", job_id=JOB),
             Story().enqueue(2048)))),
    ("acknowledged enqueue", "lost, and its number another's", lambda: (
        lost(told(Story(), op="x").note("enqueue_ack", op="x", job_id=JOB).enqueue(),
             Story().enqueue(op="x")))),
    ("report that was accepted", "another verb than was lost", lambda: (
        lost(Story().enqueue().claim(7).retry(7, "reap")
             .note("verb_ack", verb="fail", lease=7, job_id=JOB),
             Story().complete(7)))),
    ("effect began once", "of another job than was lost", lambda: (
        lost(began(Story().enqueue(), 7), Story().claim(7, 2048)))),
    ("before all that it depends on", "at once", lambda: (
        Story().enqueue(1).enqueue_after(2, 1)
        .tell(blocked("-", 2), ready("+", 2)).claim(2, 2))),
    ("before all that it depends on", "after a failure", lambda: (
        Story().enqueue(1).enqueue_after(2, 1).claim(1, 1)
        .tell(leased("-", 1, 1), finished(1, 1, verb="fail", state="dead"),
              blocked("-", 2), ready("+", 2))
        .claim(2, 2))),
    ("spawns its jobs once", "twice", lambda: (
        Story().enqueue(by=1, n=0).enqueue(2048, by=1, n=0))),
    ("spawns its jobs once", "and nobody waits for it", lambda: (
        spawn(Story().enqueue(1).enqueue_after(2, 1).claim(1, 1)))),
    ("step that has succeeded", "run again", lambda: (
        stepped_in(Story().enqueue().claim(7).tell(saved("a")).retry(7, "reap")
                   .claim(8, attempt=2, failures=1), 8))),
    ("signal that was acknowledged", "lost", lambda: (
        Story().note("signal_ack", signal="go 1"))),
    ("signal that was acknowledged", "in vain", lambda: (
        Story().tell(saved("go 1", verdict="timeout")))),
    ("Ticks and claims", "no tick", lambda: pressed(["tick"])),
    ("Ticks and claims", "no claim", lambda: pressed(["claim"], "clock_step")),
    ("hostile value", "a bug", lambda: sent("XX000", refuse=True)),
    ("hostile value", "pulse's own bug", lambda: sent("PU901", refuse=True)),
    ("hostile value", "too large and taken", lambda: sent("", refuse=True)),
    ("counters of each lane", "a start too many", lambda: counted(started=2)),
    ("counters of each lane", "an end too few", lambda: counted(completed=0)),
    ("counters of each lane", "an enqueue too few", lambda: counted(enqueued=0)),
    ("counters of each lane", "one that did not happen", lambda: counted(reaped=1)),
    ("Everything drains", "a job is left", lambda: left_over()),
    ("check() is empty", "a problem", lambda: problem()),
]  # fmt: skip


def spawn(story: Story, *edges: Event) -> Story:
    """Job 1 spawns job 3."""
    return story.tell(
        Event("body", "+", job=3, kind="k", extra={"max_attempts": 2}),
        ready("+", 3),
        *edges,
        saved("s", 1, jobs=[3]),
    )


def stepped_in(story: Story, lease: int) -> Story:
    return story.note("step", job_id=JOB, step="a", lease=lease)


def gone(story: Story) -> Story:
    """A job that the journal has and the tables have not."""
    story.final.places[2048] = "ready"
    return story


def forced(until: float) -> Story:
    """A lease that would have lasted until then is taken away at second 3."""
    gone = finished(None, verb="cancel", state="cancelled")
    return Story().enqueue().claim(7).tell(leased("-", 7, until=until), gone)


def lapsed_by_a_step(until: float) -> Story:
    """A lease until then is reaped, because the clock stepped five seconds forward."""
    story = stepped(Story().enqueue().claim(7), 2.1, 5.0)
    late = leased("-", 7, until=until, ahead=5.0)
    return story.tell(late, ready("+", lease=7, verb="reap", failures=1))


def reaped_by_its_claim() -> Story:
    """The clock was 40 seconds back, and returns in the middle of a claim."""
    story = stepped(stepped(Story().enqueue(), 1.2, -40.0), 1.7, 0.0)
    return story.tell(
        ready("-"),
        leased("+", 7, until=-35.0, ahead=-40.0),
        leased("-", 7, until=-35.0),
        ready("+", lease=7, verb="reap", failures=1),
    )


def counted(**wrong: int) -> Story:
    """A job that completed, and what the counters say."""
    story, right = whole(), {"enqueued": 1, "started": 1, "completed": 1}
    zeros = dict.fromkeys(COUNTED, 0)
    story.final.counters = [("l", "k", {**zeros, **right, **wrong})]
    return story


def pressed(missed: list[str], name: str = "hold_open") -> Story:
    return Story().note("fault", name=name, detail="", waited=10.0, missed=missed)


def sent(code: str, refuse: bool) -> Story:
    return Story().note("hostile", sort="a value", code=code, error="", refuse=refuse)


def late_twice() -> Story:
    story = Story().enqueue(1).enqueue(2).claim(1, 1).claim(2, 2)
    story = story.retry(1, "reap", 1).retry(2, "reap", 2)
    story = story.note("fault", name="stop", stopped="p", until=story.now)
    return began(began(story, 1, job_id=1), 2, job_id=2)


def left_over() -> Story:
    story = Story().enqueue()
    story.final.unfinished.append((JOB, "ready", "k"))
    return story


def problem() -> Story:
    story = Story()
    story.final.problems.append("job stands nowhere: job 1")
    return story


@pytest.mark.parametrize("story", GOOD.values(), ids=GOOD)
def test_a_good_history_passes(story: Callable[[], Story]) -> None:
    assert story().violations() == set()


@pytest.mark.parametrize(
    ("promise", "story"),
    [(promise, story) for promise, _, story in BAD],
    ids=[f"{promise}: {what}" for promise, what, _ in BAD],
)
def test_a_bad_history_is_caught(promise: str, story: Callable[[], Story]) -> None:
    assert any(promise in broken for broken in story().violations())


@pytest.mark.parametrize("judge", Invariant.__subclasses__())
def test_every_promise_has_a_history_that_breaks_it(judge: type[Invariant]) -> None:
    assert any(promise in str(judge.__doc__) for promise, _, _ in BAD)


@pytest.mark.parametrize(
    ("looked_at", "ahead", "steps", "wrong"),
    [
        pytest.param(10.5, 0.0, (), 1, id="too soon"),
        pytest.param(11.5, 0.0, (), 0, id="after its period"),
        # The claim read the clock, then it stepped, then the journal read it.
        pytest.param(12.0, 2.0, ((12.01, 12.02, 2.0),), 0, id="a step in between"),
    ],
)
def test_starts_at_a_rate(
    looked_at: float,
    ahead: float,
    steps: tuple[tuple[float, float, float], ...],
    wrong: int,
) -> None:
    judge = RatesAreExact(Steps(steps))
    asked = Event("kind", "+", kind="k", extra={"rate": 1, "rate_per": 1.0})
    first = Event("lease", "+", at=10.0, kind="k", extra={"started": 10.0})
    said = {"started": looked_at}
    second = Event("lease", "+", looked_at + 0.1, ahead, kind="k", extra=said)
    for event in (asked, first, second):
        judge.commit(Transaction(1, 1, event.at, event.at, [event]))
    assert len(judge.found) == wrong
