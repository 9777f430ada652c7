"""What kinds, slots, priorities, lanes and delayed jobs cost."""

from __future__ import annotations

from typing import Any

from bench.harness import Bench, middle
from bench.sections.a_sustained import sustained
from bench.sections.loads import delayed
from bench.sections.report import Section, alternated, spread


def g_growth(bench: Bench) -> Section:
    section = Section(
        "g",
        "growth: the sustained load at 8 clients, with",
        ["", "jobs/s", "lowest - highest", "of the first"],
    )
    pile = min(bench.scale.backlog, 1_000_000)
    cases: dict[str, dict[str, Any]] = {
        "one lane, kind, priority": {},
        "5 kinds, named in the claim": {"script": "cycle_kinds"},
        "max_slots": {
            "setup": lambda d: d.do(
                "SELECT pulse.set_lane('default', max_slots => 1000)"
            )
        },
        "20 priorities": {"script": "cycle_priorities"},
        "8 lanes, one a client": {"script": "cycle_own_lane"},
        "100 lanes": {"script": "cycle_lanes", "variables": {"lanes": 100}},
        f"{pile:,} delayed jobs": {"setup": lambda d: delayed(d, pile)},
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for each in alternated(list(cases), bench.scale.rounds):
        rates[each].append(sustained(bench, f"g: {each}", 8, **cases[each]))
    first = middle(rates["one lane, kind, priority"])
    for name, values in rates.items():
        ratio = middle(values) / first
        section.rows.append([name, *spread(values), f"{ratio:.2f}"])
        if values is not rates["one lane, kind, priority"]:
            section.goal(f"{name} / one of each", ratio, 1 / 1.2, must=False)
    return section
