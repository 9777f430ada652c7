"""Draining, against the one-table design."""

from __future__ import annotations

from bench.harness import BATCH, Bench, Database, middle
from bench.sections.loads import PAYLOAD, load
from bench.sections.report import Section, alternated, spread

DRAINS = {
    "pulse": "drain",
    "A2": "one_table_drain_a2",
    "A1": "one_table_drain_a1",
}


def load_one_table(database: Database, jobs: int) -> None:
    database.control.execute(
        """
        INSERT INTO one_table.job (kind, payload)
        SELECT 'bench', %s::jsonb FROM generate_series(1, %s)
        """,
        (PAYLOAD, jobs),
    )
    database.do("VACUUM ANALYZE one_table.job")


def c_drain(bench: Bench) -> Section:
    jobs = bench.clients(8) * BATCH * (2 if bench.scale.quick else 300)
    section = Section(
        "c",
        f"drain of {jobs:,} jobs at 8 clients: claim 100, complete 100",
        ["design", "jobs/s", "lowest - highest", "CPU µs a job", "history"],
    )
    rates: dict[str, list[float]] = {name: [] for name in DRAINS}
    costs: dict[str, list[float]] = {name: [] for name in DRAINS}
    for each in alternated(list(DRAINS), bench.scale.rounds):
        with bench.database(f"c: {each}") as database:
            if each == "pulse":
                load(database, jobs)
            else:
                load_one_table(database, jobs)
            run = bench.pgbench(
                database,
                DRAINS[each],
                8,
                transactions=jobs // BATCH // bench.clients(8),
                ticking=each == "pulse",
            )
            left = database.value(
                "SELECT (SELECT count(*) FROM pulse_internal.ready)"
                " + (SELECT count(*) FROM one_table.job WHERE state <> 'done')"
            )
            database.worked = jobs - left
            rates[each].append(database.worked / run.seconds)
            costs[each].append(1e6 * run.cpu / database.worked)
    names = {
        "pulse": "pulse",
        "A2": "A2 one table, UPDATE to done",
        "A1": "A1 one table, DELETE",
    }
    section.rows = [
        [
            names[d],
            *spread(rates[d]),
            f"{middle(costs[d]):.1f}",
            "none" if d == "A1" else "kept",
        ]
        for d in DRAINS
    ]
    section.goal(
        "drain with history / one table (A2)",
        middle(rates["pulse"]) / middle(rates["A2"]),
        1.5,
    )
    section.notes.append(
        f"pulse / A1, which keeps no history:"
        f" {middle(rates['pulse']) / middle(rates['A1']):.2f}"
    )
    return section
