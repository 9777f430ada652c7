"""Many schedules that are due at the same moment, with a tick every 10 seconds."""

from __future__ import annotations

from bench.costs import Session, pass_time, ratio
from bench.harness import Bench, Database
from bench.sections.loads import backlogs, load
from bench.sections.report import Section

SCHEDULES = """
SELECT pulse.schedule('schedule ' || n, 'bench', every => '1 minute', lane => 'fired')
FROM generate_series(1, {number}) AS n
"""

# Occurrences of one schedule are a minute apart, so none meets another on its way.
MOVES = (
    "UPDATE pulse_internal.schedule SET anchor = anchor - interval '{0}',"
    " next_at = next_at - interval '{0}', retry_at = retry_at - interval '{0}'",
    "UPDATE pulse_internal.schedule_run SET occurrence = occurrence - interval '{0}',"
    " handled_at = handled_at - interval '{0}'",
)


def q_schedules(bench: Bench) -> Section:
    few, many = (3, 15) if bench.scale.quick else (15, 1_500)
    minutes = 1 if bench.scale.quick else 3
    section = Section(
        "q",
        f"minutely schedules, all due at once, a tick every 10 s, {minutes} min",
        ["jobs in line", "schedules", "fired", "skipped", "CPU µs a firing"],
    )
    costs: dict[tuple[int, int], float] = {}
    late = 0
    for backlog in backlogs(bench):
        for number in (few, many):
            with bench.database(f"q: {number:,} schedules") as database:
                load(database, backlog)
                cpu = ticked(database, number, minutes)
                fired = database.worked = database.value(
                    "SELECT count(job) FROM pulse_internal.schedule_run"
                )
                skipped = database.value(
                    "SELECT count(skipped) FROM pulse_internal.schedule_run"
                )
            late += skipped
            costs[backlog, number] = ratio(cpu, fired)
            section.rows.append(
                [
                    *(f"{backlog:,}", f"{number:,}", f"{fired:,}", f"{skipped:,}"),
                    f"{costs[backlog, number]:,.0f}",
                ]
            )
            if fired + skipped != number * minutes:
                section.notes.append(
                    f"{number * minutes:,} occurrences were to be handled"
                )
    small, large = backlogs(bench)
    section.limit("occurrences skipped as late", late, 0)
    section.limit(
        f"CPU of a firing, {many:,} schedules / {few}",
        ratio(costs[large, many], costs[large, few]),
        1.25,
    )
    section.limit(
        f"CPU of a firing, backlog of {large:,} / {small:,}",
        ratio(costs[large, many], costs[small, many]),
        1.25,
    )
    return section


def ticked(database: Database, number: int, minutes: int) -> float:
    """Let so many minutes pass; returns the microseconds that all ticks took."""
    database.do(
        SCHEDULES.format(number=number),
        "UPDATE pulse_internal.schedule"
        " SET anchor = now(), next_at = now() + interval '1 minute'",
    )
    session = Session(database)
    session.connection.execute("SELECT count(*) FROM pulse.tick()")
    cpu = 0.0
    for _ in range(6 * minutes + 5):
        database.do(*(move.format("10 seconds") for move in MOVES))
        pass_time(database, "10 seconds")
        # What a minute's sample of all lanes costs is section p's.
        database.do(
            "UPDATE pulse_internal.upkeep_run SET taken_at = clock_timestamp()"
            " WHERE step IN ('sample', 'samples')"
        )
        cpu += session.weigh("SELECT * FROM pulse.tick()").cpu
    return cpu
