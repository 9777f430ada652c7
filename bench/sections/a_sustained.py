"""Sustained load, by clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.harness import Bench, Database
from bench.sections.report import Section, alternated, spread


def sustained(
    bench: Bench,
    scenario: str,
    clients: int,
    script: str = "cycle",
    setup: Callable[[Database], None] | None = None,
    variables: Mapping[str, object] | None = None,
) -> float:
    """Jobs a second through enqueue, claim and completion, in a fresh database."""
    with bench.database(scenario) as database:
        if setup:
            setup(database)
        run = bench.pgbench(database, script, clients, variables=variables)
        database.worked = database.finished()
        return database.worked / run.seconds


def a_sustained(bench: Bench) -> Section:
    section = Section(
        "a",
        "sustained load: enqueue 100, claim 100, complete 100",
        ["clients", "jobs/s", "lowest - highest"],
    )
    clients = ["1", "2", "8", "32"]
    rates: dict[str, list[float]] = {c: [] for c in clients}
    for each in alternated(clients, bench.scale.rounds):
        rates[each].append(sustained(bench, f"a: {each} clients", int(each)))
    section.rows = [[c, *spread(rates[c])] for c in clients]
    return section
