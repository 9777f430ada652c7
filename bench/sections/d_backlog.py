"""Claiming, by backlog."""

from __future__ import annotations

import contextlib

from bench.harness import BATCH, Bench, middle
from bench.sections.loads import load
from bench.sections.report import Section, alternated, spread


def d_backlog(bench: Bench) -> Section:
    jobs = bench.clients(8) * BATCH * (2 if bench.scale.quick else 50)
    most = bench.scale.backlog
    sizes = sorted({min(most, n) for n in (10_000, 1_000_000, 10_000_000)})
    if bench.scale.quick:
        sizes = [most // 4, most]
    section = Section(
        "d",
        f"claim 100, complete 100 for {jobs:,} jobs at 8 clients, by backlog",
        ["jobs left in line", "jobs/s", "lowest - highest"],
    )
    if sizes[-1] > 2_000_000 and bench.free_gigabytes() < 12:
        section.notes.append(
            f"{sizes.pop():,} left out: it needs 12 GB of free disk,"
            f" there are {bench.free_gigabytes():.1f}"
        )
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    # All of them stand side by side, so that rounds can alternate.
    with contextlib.ExitStack() as stack:
        databases = {
            size: stack.enter_context(bench.database(f"d: {size:,}")) for size in sizes
        }
        for size, database in databases.items():
            load(database, size)
            database.do(
                "VACUUM (ANALYZE) pulse_internal.body",
                "VACUUM (ANALYZE) pulse_internal.ready",
            )
        order = alternated([str(s) for s in sizes], bench.scale.rounds)
        for size in map(int, order):
            load(databases[size], jobs)
            run = bench.pgbench(
                databases[size],
                "drain",
                8,
                transactions=jobs // BATCH // bench.clients(8),
            )
            before = databases[size].worked
            databases[size].worked = databases[size].finished()
            rates[size].append((databases[size].worked - before) / run.seconds)
    section.rows = [[f"{s:,}", *spread(rates[s])] for s in sizes]
    section.goal(
        f"backlog of {sizes[-1]:,} / backlog of {sizes[0]:,}",
        middle(rates[sizes[-1]]) / middle(rates[sizes[0]]),
        0.8,
    )
    return section
