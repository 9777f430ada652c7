"""Which fault when: a function of the seed and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What a fault takes, with the recovery after it, on a machine that has other work too.
SECONDS: Mapping[str, Mapping[str, float]] = {
    "server": {
        "crash": 4,
        "failover": 7,
        "failover_split": 7,
        "failover_async": 8,
        "disk_full": 7,
        "lock_storm": 4,
        "bouncer_restart": 2,
    },
    "client": {
        "kill_worker": 2,
        "kill_producer": 2,
        "freeze_worker": 8,
        "deploy": 3,
        "terminate_claim": 1,
        "terminate_complete": 1,
        "terminate_enqueue": 1,
        "terminate_random": 1,
        "proxy_stall": 5,
        "proxy_cut": 1,
        "proxy_delay": 3,
    },
    "pressure": {
        "statement_timeout": 4,
        "clock_step": 5,
        "hold_open": 4,
        "freeze_in_tick": 4,
        "hostile_values": 4,
    },
}
# These last as long as the run.
THROUGHOUT = ("old_snapshot", "operators")
NAMES = (*(name for track in SECONDS.values() for name in track), *THROUGHOUT)
# Jobs a second, unless another load is asked for.
RATE = 300.0
# The end of a run is left to faults that have begun.
SHARE = 0.9


@dataclass(frozen=True)
class Step:
    """At this second of the run, this fault, choosing its targets by this seed."""

    at: float
    fault: str
    seed: int


def plan(
    seed: int, seconds: float, chosen: Sequence[str] = NAMES
) -> dict[str, list[Step]]:
    """The steps of each track: every chosen fault once, then by chance."""
    return {track: steps(seed, track, seconds, chosen) for track in SECONDS}


def steps(seed: int, track: str, seconds: float, chosen: Sequence[str]) -> list[Step]:
    chance = random.Random(f"{seed} {track}")
    costs = {name: cost for name, cost in SECONDS[track].items() if name in chosen}
    if not costs:
        return []
    first = list(costs)
    chance.shuffle(first)
    # A short run has them all the same, closer together.
    pace = min(1.0, SHARE * seconds / (1.3 * sum(costs.values())))
    at, made = 1.0 * pace, list[Step]()
    while at < SHARE * seconds or first:
        name = first.pop() if first else chance.choice(list(costs))
        made.append(Step(round(at, 1), name, chance.getrandbits(32)))
        at += pace * costs[name] * chance.uniform(1.0, 1.6)
    return made
