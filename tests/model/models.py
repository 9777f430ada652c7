"""The models: their bounds, what has to hold, and what each variant leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.checker import Constants


@dataclass(frozen=True)
class Bounds:
    """How much happens; within that, every interleaving is explored."""

    constants: Constants
    # Whether what has to happen in the end is checked, which costs more than the rest.
    live: bool = True


@dataclass(frozen=True)
class Model:
    """A module of TLA+. Of its bounds, each is small where another one is large."""

    module: str
    invariants: list[str]
    # What happens in the end.
    liveness: str
    bounds: dict[str, Bounds]
    larger: dict[str, Bounds]
    # The rule that is left out, the bounds, and what the checker then finds violated.
    variants: dict[str, tuple[str, str]]


LEASE = Model(
    "LeaseAndFence",
    [
        "JobHasOneState",
        "LostLeaseChangesNothing",
        "RepeatedReportSucceeds",
        "ReapTakesLapsedLeases",
        "AttemptsNeverRepeat",
        "FailuresAreBounded",
    ],
    "EveryJobEnds",
    bounds={
        "two workers": Bounds(
            {
                "Workers": {"w1", "w2"},
                "MaxAttempts": 2,
                "Beats": 1,
                "Reports": 2,
                "Releases": 1,
                "Rollbacks": 0,
                "Cancels": 0,
            },
            live=False,
        ),
        "cancel and rollback": Bounds(
            {
                "Workers": {"w1"},
                "MaxAttempts": 2,
                "Beats": 0,
                "Reports": 1,
                "Releases": 1,
                "Rollbacks": 1,
                "Cancels": 1,
            }
        ),
    },
    larger={
        "two workers and a cancel": Bounds(
            {
                "Workers": {"w1", "w2"},
                "MaxAttempts": 2,
                "Beats": 1,
                "Reports": 2,
                "Releases": 1,
                "Rollbacks": 0,
                "Cancels": 1,
            },
            live=False,
        ),
    },
    variants={
        "the fence": ("two workers", "LostLeaseChangesNothing"),
        "claim locks": ("two workers", "JobHasOneState"),
        "repeats are looked up in a later statement": (
            "two workers",
            "RepeatedReportSucceeds",
        ),
        "reap checks again": ("two workers", "ReapTakesLapsedLeases"),
        "attempts grow": ("two workers", "AttemptsNeverRepeat"),
        "lapsed leases are reaped": ("cancel and rollback", "EveryJobEnds"),
    },
)

SLOTS = Model(
    "SlotsAndRates",
    ["SlotsHold", "RateHolds"],
    "EveryJobStarts",
    bounds={
        "one slot": Bounds(
            {
                "Sessions": {"c1", "c2"},
                "Jobs": 3,
                "MaxSlots": 1,
                "Rate": 3,
                "Per": 0,
                "Rollbacks": 1,
            }
        ),
        "one start in two ticks": Bounds(
            {
                "Sessions": {"c1", "c2"},
                "Jobs": 2,
                "MaxSlots": 2,
                "Rate": 1,
                "Per": 2,
                "Rollbacks": 1,
            },
            live=False,
        ),
    },
    larger={
        "three claims": Bounds(
            {
                "Sessions": {"c1", "c2", "c3"},
                "Jobs": 3,
                "MaxSlots": 2,
                "Rate": 3,
                "Per": 0,
                "Rollbacks": 1,
            }
        ),
        "both limits": Bounds(
            {
                "Sessions": {"c1", "c2"},
                "Jobs": 3,
                "MaxSlots": 2,
                "Rate": 2,
                "Per": 2,
                "Rollbacks": 1,
            },
            live=False,
        ),
    },
    variants={
        "the lock": ("one slot", "SlotsHold"),
        "the lock (rate)": ("one start in two ticks", "RateHolds"),
        "look in a later statement": ("one slot", "SlotsHold"),
        "look in a later statement (rate)": ("one start in two ticks", "RateHolds"),
        "roster and lease commit together": ("one slot", "SlotsHold"),
        "a full roster is looked up": ("one slot", "EveryJobStarts"),
    },
)

FLOWS = Model(
    "BlockedAndUnblock",
    ["ReleasedOnce", "NeverReleasedEarly", "NoJobIsForgotten"],
    "EveryJobIsReleased",
    bounds={"one rollback": Bounds({"Ticks": {"t1"}, "Rollbacks": 1})},
    larger={
        "two rollbacks": Bounds({"Ticks": {"t1"}, "Rollbacks": 2}),
    },
    variants={
        "an enqueue doubts": ("one rollback", "NoJobIsForgotten"),
        "a move doubts": ("one rollback", "NoJobIsForgotten"),
        "own doubts stay": ("one rollback", "NoJobIsForgotten"),
        "a doubt waits for open ends": ("one rollback", "NoJobIsForgotten"),
        "what is held is noted": ("one rollback", "NoJobIsForgotten"),
        "all upstreams are judged": ("one rollback", "NeverReleasedEarly"),
        "portions are taken": ("one rollback", "EveryJobIsReleased"),
    },
)

MARKS = Model(
    "LowWaterMarks",
    ["MarkNeverPassesALiveRow"],
    "MarkPassesWhatIsGone",
    bounds={
        "two producers": Bounds(
            {"Producers": {"p1", "p2"}, "Ticks": {"t1"}, "Rows": 2}, live=False
        ),
        "one producer": Bounds({"Producers": {"p1"}, "Ticks": {"t1"}, "Rows": 2}),
    },
    larger={
        "two producers, to the end": Bounds(
            {"Producers": {"p1", "p2"}, "Ticks": {"t1"}, "Rows": 2}
        ),
    },
    variants={
        "two statements": ("two producers", "MarkNeverPassesALiveRow"),
        "the lock before the number": ("two producers", "MarkNeverPassesALiveRow"),
        "the number before the holders": ("two producers", "MarkNeverPassesALiveRow"),
        "holders hold the mark back": ("two producers", "MarkNeverPassesALiveRow"),
        "a new holder has the number of the look before": (
            "two producers",
            "MarkNeverPassesALiveRow",
        ),
        "a holder keeps its floor": ("two producers", "MarkNeverPassesALiveRow"),
        "a prepared holder has the lowest floor": (
            "two producers",
            "MarkNeverPassesALiveRow",
        ),
        "the look is a plain SELECT": ("two producers", "MarkNeverPassesALiveRow"),
    },
)

ALL = {model.module: model for model in (LEASE, SLOTS, FLOWS, MARKS)}


def constants(bounds: Bounds, without: str) -> Constants:
    """A rule may be left out in two bounds: then its name here ends with "(which)"."""
    return {"Without": without.partition(" (")[0], **bounds.constants}
