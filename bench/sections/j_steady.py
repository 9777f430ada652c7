"""Ten minutes at four fifths of what the server can do, with all upkeep running."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

from bench.harness import BATCH, Bench, Database, Sampler, Window, old_snapshot
from bench.sections.report import Section

SHARE = 0.8
# What is finished for longer is removed: sizes are to stay as they are from then on.
RETAIN = "30 seconds"
SIZE = """
SELECT sum(pg_total_relation_size(c.oid))
FROM pg_class AS c
WHERE c.relnamespace = 'pulse_internal'::regnamespace AND c.relkind = 'r'
"""


def j_steady(bench: Bench) -> Section:
    seconds = bench.scale.steady_seconds
    minute = min(60.0, seconds / 4)
    section = Section(
        "j",
        f"{SHARE:.0%} of saturation for {seconds} s at 8 clients, retention {RETAIN}",
        [
            "",
            *(f"jobs/s first {minute:g} s", "CPU µs/job"),
            *(f"jobs/s last {minute:g} s", "CPU µs/job"),
            *(f"MB after {2 * minute:g} s", "MB at the end"),
        ],
    )
    with bench.database("j: saturation") as database:
        run = bench.pgbench(database, "cycle", 8, seconds=min(20, seconds))
        database.worked = database.finished()
        rate = SHARE * database.worked / run.seconds / BATCH
    section.notes.append(f"asked for: {rate * BATCH:,.0f} jobs/s")

    last: dict[str, Window] = {}
    for each in ("free", "pinned"):
        with bench.database(f"j: {each}") as database:
            database.do(
                f"SELECT pulse.set_lane('default', retain_completed => '{RETAIN}')"
            )
            pin = (
                old_snapshot(database) if each == "pinned" else contextlib.nullcontext()
            )
            sizes = Sizes(database, 2 * minute)
            with pin, sizes, Sampler(database) as sampler:
                bench.pgbench(database, "cycle", 8, seconds=seconds, rate=rate)
            database.worked = database.claimed()
            first, last[each], _ = sampler.windows(minute)
            end = float(database.value(SIZE))
        section.rows.append(
            [
                *(each, f"{first.rate:,.0f}", f"{first.cost:.1f}"),
                *(f"{last[each].rate:,.0f}", f"{last[each].cost:.1f}"),
                *(f"{sizes.early / 1e6:,.0f}", f"{end / 1e6:,.0f}"),
            ]
        )
        if each == "free":
            section.goal(
                "jobs/s of the last minute / the first",
                last[each].rate / first.rate,
                0.95,
            )
            section.limit("size at the end / after two minutes", end / sizes.early, 1.1)
    section.goal(
        "pinned / free, jobs/s of the last minute",
        last["pinned"].rate / last["free"].rate,
        0.8,
    )
    return section


@dataclass
class Sizes:
    """How large all tables and indexes are, a while after the start."""

    database: Database
    after: float
    early: float = field(default=0.0, init=False)

    def __enter__(self) -> None:
        self.timer = threading.Timer(self.after, self.look)
        self.timer.start()

    def look(self) -> None:
        with self.database.connect() as connection:
            row = connection.execute(SIZE.encode()).fetchone()
            assert row is not None
            self.early = float(row[0])

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
        self.timer.join()
        if not self.early:
            self.look()
