"""Payloads as large as they may be: a claim hands them out like small ones."""

from __future__ import annotations

import os
from functools import partial

from bench.costs import Cost, Session, ratio
from bench.harness import Bench, Database
from bench.sections.loads import PAYLOAD, backlogs, load
from bench.sections.report import Section

# A little below 8 MB as text, and nothing that compression could make smaller.
LARGEST = 8_000_000


def w_payloads(bench: Bench) -> Section:
    jobs, times, largest = (
        (1, 1, LARGEST // 20) if bench.scale.quick else (5, 5, LARGEST)
    )
    section = Section(
        "w",
        f"a claim of {jobs} jobs ahead of a backlog, by payload",
        ["", "backlog", "jobs got", "buffers", "CPU µs", "CPU µs with the payloads"],
    )
    large_name = f"{largest:,} bytes"
    sizes = {"100 bytes": len(PAYLOAD), large_name: largest}
    claim = f"pulse.claim_batch('bench', max_jobs => {jobs})"
    costs: dict[tuple[str, int], Cost] = {}
    for backlog in backlogs(bench):
        with bench.database(f"w: {backlog:,}") as database:
            load(database, backlog)
            for name, size in sizes.items():
                session = Session(database)
                fill = partial(put_ahead, database, size, jobs)
                cost, read = (
                    session.usual(
                        f"SELECT {what} FROM {claim}", n, fill, session.complete
                    )
                    for what, n in (("*", times), ("sum(length(payload::text))", 1))
                )
                costs[name, backlog] = cost
                section.rows.append(
                    [
                        *(name, f"{backlog:,}", f"{cost.rows:.0f}"),
                        *(f"{cost.buffers:,.0f}", f"{cost.cpu:,.0f}"),
                        f"{read.cpu:,.0f}",
                    ]
                )
            database.worked = database.finished()
    small, large = backlogs(bench)
    section.goal("share of the large jobs that one claim got", cost.rows / jobs, 1)
    section.limit(
        f"buffers of a claim, {large_name} / 100 bytes",
        ratio(costs[large_name, large].buffers, costs["100 bytes", large].buffers),
        1.5,
    )
    section.limit(
        f"buffers of a claim, {large_name}, backlog of {large:,} / {small:,}",
        ratio(costs[large_name, large].buffers, costs[large_name, small].buffers),
        1.25,
    )
    return section


def put_ahead(database: Database, size: int, jobs: int) -> None:
    """Jobs of which nothing can be compressed, before all others in line."""
    payload = f'{{"pad": "{os.urandom(size // 2 - 6).hex()}"}}'
    database.control.execute(
        "SELECT pulse.enqueue('bench', %s::jsonb, priority => 9)"
        " FROM generate_series(1, %s)",
        (payload, jobs),
    )
