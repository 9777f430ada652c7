"""Transactions, processor time and WAL of a job."""

from __future__ import annotations

from bench.harness import BATCH, Bench, Database
from bench.sections.report import Section


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
