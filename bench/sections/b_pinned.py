"""The load beside an old snapshot."""

from __future__ import annotations

import contextlib

from bench.harness import Bench, Sampler, Window, old_snapshot
from bench.sections.report import Section


def b_pinned(bench: Bench) -> Section:
    """One round: what a first minute hides is worth more than a second round."""
    seconds = bench.scale.pinned_seconds
    window = min(60.0, seconds / 4)
    section = Section(
        "b",
        f"the same for {seconds} s at 8 clients, with an old snapshot held",
        ["", *columns(f"first {window:g} s"), *columns(f"last {window:g} s"), "all"],
    )
    last: dict[str, Window] = {}
    for each in ("unpinned", "pinned"):
        with bench.database(f"b: {each}") as database:
            pin = (
                old_snapshot(database) if each == "pinned" else contextlib.nullcontext()
            )
            with pin, Sampler(database) as sampler:
                bench.pgbench(database, "cycle", 8, seconds=seconds)
            database.worked = database.claimed()
            first, last[each], whole = sampler.windows(window)
        section.rows.append(
            [
                *(each, f"{first.rate:,.0f}", f"{first.cost:.1f}"),
                *(f"{last[each].rate:,.0f}", f"{last[each].cost:.1f}"),
                f"{whole.rate:,.0f}",
            ]
        )
    section.goal(
        f"pinned / unpinned, jobs/s of the last {window:g} s",
        last["pinned"].rate / last["unpinned"].rate,
        0.8,
    )
    return section


def columns(when: str) -> list[str]:
    return [f"jobs/s {when}", "CPU µs/job"]
