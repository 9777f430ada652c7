"""Many kinds with settings: what a claim pays for them."""

from __future__ import annotations

from bench.costs import Cost, Session, ratio
from bench.harness import Bench
from bench.sections.loads import backlogs, load
from bench.sections.report import Section

# Settings that a claim has to look for, and settings that it need not know.
CASES = {
    "no kind has settings": "",
    "max_attempts": "max_attempts",
    "lease_for as well": "lease_for",
}


def u_kind_settings(bench: Bench) -> Section:
    kinds = 200 if bench.scale.quick else 50_000
    times = 2 if bench.scale.quick else 25
    section = Section(
        "u",
        f"claims, with settings for {kinds:,} kinds",
        ["", "backlog", "jobs a claim", "buffers", "CPU µs", "CPU of the first"],
    )
    costs: dict[tuple[str, int, int], Cost] = {}
    for backlog in backlogs(bench):
        with bench.database(f"u: {backlog:,}") as database:
            load(database, backlog)
            for name, setting in CASES.items():
                if setting == "max_attempts":
                    database.do(
                        "INSERT INTO pulse_internal.kind (kind, max_attempts)"
                        " SELECT 'kind ' || n, 5"
                        f" FROM generate_series(1, {kinds}) AS n",
                        "ANALYZE",
                    )
                elif setting == "lease_for":
                    database.do(
                        "UPDATE pulse_internal.kind SET lease_for = '1 minute'",
                        "VACUUM ANALYZE",
                    )
                for jobs in (1, 100):
                    cost = Session(database).claim(times, jobs)
                    costs[name, backlog, jobs] = cost
                    plain = costs["no kind has settings", backlog, jobs]
                    section.rows.append(
                        [
                            *(name, f"{backlog:,}", jobs),
                            *(f"{cost.buffers:,.0f}", f"{cost.cpu:,.0f}"),
                            f"{ratio(cost.cpu, plain.cpu):.2f}",
                        ]
                    )
            database.worked = database.finished()
    small, large = backlogs(bench)
    for name, setting in list(CASES.items())[1:]:
        for jobs in (1, 100):
            section.limit(
                f"CPU of a claim of {jobs}, {kinds:,} kinds with {setting} / none",
                ratio(
                    costs[name, large, jobs].cpu,
                    costs["no kind has settings", large, jobs].cpu,
                ),
                1.5,
            )
        section.limit(
            f"buffers of a claim of 100 with {setting}, {large:,} / {small:,} jobs",
            ratio(costs[name, large, 100].buffers, costs[name, small, 100].buffers),
            1.25,
        )
    return section
