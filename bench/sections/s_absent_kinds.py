"""Claims that name kinds of which the backlog has none."""

from __future__ import annotations

from bench.costs import Cost, Session, ratio
from bench.harness import Bench
from bench.sections.loads import backlogs, load
from bench.sections.report import Section

ABSENT = ", ".join(f"'absent {n}'" for n in range(20))
CLAIMS = {
    "no kind": "",
    "the kind there is": ", kinds => ARRAY['bench']",
    "20 absent kinds": f", kinds => ARRAY[{ABSENT}]",
    "20 absent and that": f", kinds => ARRAY[{ABSENT}, 'bench']",
}


def s_absent_kinds(bench: Bench) -> Section:
    section = Section(
        "s",
        "claims of 100 at a backlog of one kind, analysed, that name",
        ["", "backlog", "jobs got", "buffers", "CPU µs", "CPU of the first"],
    )
    times = 2 if bench.scale.quick else 15
    costs: dict[tuple[str, int], Cost] = {}
    for backlog in backlogs(bench):
        with bench.database(f"s: {backlog:,}") as database:
            load(database, backlog)
            for name, kinds in CLAIMS.items():
                cost = costs[name, backlog] = Session(database).claim(times, more=kinds)
                section.rows.append(
                    [
                        *(name, f"{backlog:,}", f"{cost.rows:.0f}"),
                        *(f"{cost.buffers:,.0f}", f"{cost.cpu:,.0f}"),
                        f"{ratio(cost.cpu, costs['no kind', backlog].cpu):.2f}",
                    ]
                )
            database.worked = database.finished()
    small, large = backlogs(bench)
    for name in ("20 absent kinds", "20 absent and that"):
        section.limit(
            f"CPU of a claim, {name} / no kind",
            ratio(costs[name, large].cpu, costs["no kind", large].cpu),
            2,
        )
        section.limit(
            f"buffers of a claim, {name}, {large:,} / {small:,}",
            ratio(costs[name, large].buffers, costs[name, small].buffers),
            1.25,
        )
    return section
