"""Many leases that lapse at once: how many ticks until all have ended."""

from __future__ import annotations

from bench.costs import Session, pass_time, ratio
from bench.harness import Bench, Database
from bench.sections.loads import load
from bench.sections.report import Section

MOST_TICKS = 120


def v_lapsed(bench: Bench) -> Section:
    few, many = (300, 900) if bench.scale.quick else (10_000, 100_000)
    section = Section(
        "v",
        "leases that lapse at once, a tick a second",
        ["leases", "ticks until all had ended", "CPU µs a lease", "left"],
    )
    costs: dict[int, float] = {}
    for leases in (few, many):
        with bench.database(f"v: {leases:,}") as database:
            lapse(database, leases)
            ticks, cpu = reaped(database)
            left = database.value("SELECT count(*) FROM pulse_internal.lease")
            database.worked = leases - left
        costs[leases] = ratio(cpu, database.worked)
        section.rows.append(
            [f"{leases:,}", ticks, f"{costs[leases]:,.1f}", f"{left:,}"]
        )
    section.limit(f"ticks until {many:,} leases had ended", ticks, 60)
    section.limit(
        f"CPU of a lease, {many:,} / {few:,}", ratio(costs[many], costs[few]), 1.25
    )
    return section


def lapse(database: Database, leases: int) -> None:
    """Workers took so many jobs, and never reported again."""
    load(database, leases)
    database.do("SELECT pulse.set_lane('default', max_batch => 10000)")
    for _ in range(0, leases, 10_000):
        database.do("SELECT count(*) FROM pulse.claim_batch('lost', max_jobs => 10000)")
    database.do(
        "UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval "
        "'1 second'"
    )
    database.do("VACUUM ANALYZE pulse_internal.lease")


def reaped(database: Database) -> tuple[int, float]:
    session = Session(database)
    cpu = 0.0
    ticks = 0
    while ticks < MOST_TICKS:
        ticks += 1
        pass_time(database, "1 second")
        cpu += session.weigh("SELECT * FROM pulse.tick()").cpu
        if not database.value("SELECT EXISTS (SELECT FROM pulse_internal.lease)"):
            break
    return ticks, cpu
