"""Retention at full load: does tick remove jobs as fast as they finish?"""

from __future__ import annotations

from bench.costs import Session, pass_time, ratio
from bench.harness import Bench
from bench.sections.loads import backlogs, finished
from bench.sections.report import Section


def t_retention(bench: Bench) -> Section:
    section = Section(
        "t",
        "jobs beyond their retention, removed by a tick a second",
        ["", "jobs to remove", "finished/s", "removed/s", "CPU µs a job removed"],
    )
    small, large = backlogs(bench)
    costs = {pile: alone(bench, section, pile) for pile in (small, large)}
    seconds = 20
    # More than can be removed meanwhile, so that it is the rate that shows.
    pile = large if bench.scale.quick else 2 * large
    with bench.database("t: at full load") as database:
        database.do("SELECT pulse.set_lane('default', retain_completed => '1 day')")
        finished(database, pile)
        run = bench.pgbench(
            database, "cycle", 8, seconds=None if bench.scale.quick else seconds
        )
        database.worked = database.claimed()
        removed = pile + database.worked - database.finished()
    section.rows.append(
        [
            *("at full load", f"{pile:,}"),
            f"{database.worked / run.seconds:,.0f}",
            *(f"{removed / run.seconds:,.0f}", ""),
        ]
    )
    section.goal("removed / finished, at full load", ratio(removed, database.worked), 1)
    section.limit(
        f"CPU of a job removed, {large:,} to remove / {small:,}",
        ratio(costs[large], costs[small]),
        1.25,
    )
    return section


def alone(bench: Bench, section: Section, pile: int) -> float:
    """Microseconds of tick for a job that it removes, with no other load."""
    with bench.database(f"t: {pile:,} to remove") as database:
        finished(database, pile)
        session = Session(database)
        cpu, ticks = 0.0, 0
        while database.finished() and ticks < 100:
            pass_time(database, "1 second")
            cpu += session.weigh("SELECT * FROM pulse.tick()").cpu
            ticks += 1
        database.worked = pile - database.finished()
    cost = ratio(cpu, database.worked)
    removed = database.worked / max(ticks, 1)
    section.rows.append(["alone", f"{pile:,}", "0", f"{removed:,.0f}", f"{cost:,.1f}"])
    return cost
