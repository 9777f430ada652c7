"""Single-row enqueue, against a bare INSERT."""

from __future__ import annotations

from bench.harness import Bench, middle
from bench.sections.report import Section, alternated, spread


def e_enqueue(bench: Bench) -> Section:
    section = Section(
        "e",
        "single-row enqueue next to a bare INSERT into a table with two indexes",
        ["clients", "", "calls/s", "lowest - highest", "CPU µs a call"],
    )
    for clients in (8, 1):
        rates: dict[str, list[float]] = {"enqueue": [], "bare_insert": []}
        costs: dict[str, list[float]] = {"enqueue": [], "bare_insert": []}
        with bench.database(f"e: {clients} clients") as database:
            for each in alternated(list(rates), bench.scale.rounds):
                run = bench.pgbench(database, each, clients)
                rates[each].append(run.transactions / run.seconds)
                costs[each].append(1e6 * run.cpu / run.transactions)
                database.worked += run.transactions
        for each, name in (("enqueue", "enqueue"), ("bare_insert", "bare INSERT")):
            section.rows.append(
                [clients, name, *spread(rates[each]), f"{middle(costs[each]):.0f}"]
            )
        section.goal(
            f"enqueue / bare INSERT, {clients} client{'s' if clients > 1 else ''}",
            middle(rates["enqueue"]) / middle(rates["bare_insert"]),
            0.6,
            must=clients == 8,
        )
    return section
