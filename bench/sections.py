"""The sections a to g: each measures, fills a table and names its goals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.harness import (
    BATCH,
    Bench,
    Database,
    Sampler,
    middle,
    old_snapshot,
)

PAYLOAD = '{"pad": "' + "x" * 89 + '"}'


@dataclass
class Goal:
    """A ratio that must not be missed."""

    section: str
    name: str
    ratio: float
    wanted: float
    must: bool = True

    @property
    def met(self) -> bool:
        return self.ratio >= self.wanted


@dataclass
class Section:
    letter: str
    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def goal(self, name: str, ratio: float, wanted: float, must: bool = True) -> None:
        self.goals.append(Goal(self.letter, name, ratio, wanted, must))


def alternated(names: list[str], rounds: int) -> list[str]:
    """A B C, C B A, A B C: what drifts on the machine hits all of them alike."""
    return [n for r in range(rounds) for n in (names if r % 2 == 0 else names[::-1])]


def spread(values: list[float]) -> list[str]:
    return [f"{middle(values):,.0f}", f"{min(values):,.0f} - {max(values):,.0f}"]


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


def b_pinned(bench: Bench) -> Section:
    """One round: what a first minute hides is worth more than a second round."""
    seconds = bench.scale.pinned_seconds
    window = min(60.0, seconds / 4)
    section = Section(
        "b",
        f"the same for {seconds} s at 8 clients, with an old snapshot held",
        ["", f"first {window:g} s", f"last {window:g} s", "all", "CPU us/job"],
    )
    last: dict[str, float] = {}
    for each in ("unpinned", "pinned"):
        with bench.database(f"b: {each}") as database:
            pin = (
                old_snapshot(database) if each == "pinned" else contextlib.nullcontext()
            )
            with pin, Sampler(database) as sampler:
                run = bench.pgbench(database, "cycle", 8, seconds=seconds)
            database.worked = database.claimed()
            first, last[each], whole = sampler.rates(window)
        section.rows.append(
            [
                each,
                *(f"{rate:,.0f}" for rate in (first, last[each], whole)),
                f"{run.cpu * 1e6 / max(database.worked, 1):.1f}",
            ]
        )
    section.goal(
        f"pinned / unpinned, last {window:g} s of both",
        last["pinned"] / last["unpinned"],
        0.8,
    )
    return section


DRAINS = {
    "pulse": "drain",
    "A2": "one_table_drain_a2",
    "A1": "one_table_drain_a1",
}


def load(database: Database, jobs: int, chunk: int = 500_000) -> None:
    """Ready jobs, written by the owner as fast as it goes."""
    database.do("SET synchronous_commit = off")
    for first in range(0, jobs, chunk):
        some = min(chunk, jobs - first)
        database.control.execute(
            """
            WITH body AS (
                INSERT INTO pulse.body (kind, payload, max_attempts, owner)
                SELECT 'bench', %s::jsonb, 3, (SELECT pulse._role_number('loader'))
                FROM generate_series(1, %s)
                RETURNING job
            )
            INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
            SELECT 'default', 0, 'bench', job, 0, 0, false
            FROM body
            """,
            (PAYLOAD, some),
        )
    database.do("RESET synchronous_commit", "ANALYZE")


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
                "SELECT (SELECT count(*) FROM pulse.ready)"
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
            database.do("VACUUM (ANALYZE) pulse.body", "VACUUM (ANALYZE) pulse.ready")
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


def f_cost(bench: Bench) -> Section:
    section = Section(
        "f",
        "cost of a job: enqueue, claim, complete, at 8 clients",
        [
            *("design", "batch", "transactions", "CPU µs"),
            *("WAL bytes", "with page images"),
        ],
    )
    cases = {
        "pulse": ("cycle", BATCH),
        "pulse, one at a time": ("cycle_one", 1),
        "A2 one table, UPDATE to done": ("one_table_cycle_a2", BATCH),
        "A1 one table, DELETE": ("one_table_cycle_a1", BATCH),
    }
    for name, (script, batch) in cases.items():
        wal: dict[str, float] = {}
        for images in ("off", "on"):
            bench.server.psql(
                "postgres",
                *("-c", f"ALTER SYSTEM SET full_page_writes = {images}"),
                *("-c", "SELECT pg_reload_conf()"),
                *("-c", "SELECT pg_sleep(0.2)"),
            )
            with bench.database(f"f: {name}, page images {images}") as database:
                rounds = 2 if bench.scale.quick else 2000 // min(batch, 20)
                # Plans are made and tables have pages before anything is counted.
                if not bench.scale.quick:
                    bench.pgbench(database, script, 8, transactions=5)
                before = counters(database)
                run = bench.pgbench(database, script, 8, transactions=rounds)
                after = counters(database)
                jobs = database.worked = bench.clients(8) * rounds * batch
            wal[images] = (after[1] - before[1]) / jobs
            transactions = (after[0] - before[0]) / jobs
        section.rows.append(
            [
                *(name, batch, f"{transactions:.3f}", f"{1e6 * run.cpu / jobs:.1f}"),
                *(f"{wal['off']:,.0f}", f"{wal['on']:,.0f}"),
            ]
        )
    section.notes.append(
        "page images (full_page_writes) depend on how lately a checkpoint was made:"
        " here right before the run, which is the most they can be"
    )
    return section


def counters(database: Database) -> tuple[int, int]:
    """Transactions committed and bytes of WAL written, in this cluster so far."""
    row = database.control.execute(
        """
        SELECT
            pg_stat_get_db_xact_commit(oid),
            pg_current_wal_insert_lsn() - '0/0'
        FROM pg_database
        WHERE datname = current_database()
        """
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def delayed(database: Database, jobs: int) -> None:
    database.control.execute(
        """
        WITH body AS (
            INSERT INTO pulse.body (kind, payload, max_attempts, owner)
            SELECT 'bench', %s::jsonb, 3, (SELECT pulse._role_number('loader'))
            FROM generate_series(1, %s)
            RETURNING job
        )
        INSERT INTO pulse.waiting
            (lane, run_at, job, kind, rank, attempts, failures, keyed, retrying)
        SELECT
            'default', clock_timestamp() + interval '1 day', job, 'bench', 0, 0, 0,
            false, false
        FROM body
        """,
        (PAYLOAD, jobs),
    )


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


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "a": a_sustained,
    "b": b_pinned,
    "c": c_drain,
    "d": d_backlog,
    "e": e_enqueue,
    "f": f_cost,
    "g": g_growth,
}
