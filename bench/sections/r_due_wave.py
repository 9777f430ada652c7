"""Many jobs of low priority come due at once, then an urgent one does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.costs import Cost, Session, pass_time, ratio
from bench.harness import BATCH, Bench, Database
from bench.sections.loads import backlogs, delayed, load
from bench.sections.report import Section

# What is not found by then is looked for no longer.
MOST_CLAIMS = 50


def r_due_wave(bench: Bench) -> Section:
    small, large = backlogs(bench, 300_000)
    cases: dict[str, Callable[[Database, int], None]] = {
        "ready": load,
        "due": partial(delayed, due_in="-1 minute"),
    }
    section = Section(
        "r",
        "a wave of due jobs, and an urgent one due after them: claims of 100",
        ["", "jobs", "claims until it ran", "buffers a claim", "CPU µs a claim"],
    )
    claims: dict[tuple[str, int], int] = {}
    costs: dict[tuple[str, int], Cost] = {}
    for name, loader in cases.items():
        for jobs in (small, large):
            with bench.database(f"r: {jobs:,} {name}") as database:
                loader(database, jobs)
                session = Session(database)
                times = 3 if bench.scale.quick else 15
                alone = until_urgent(database, session)
                cost = costs[name, jobs] = session.claim(times)
                # The tick puts many of them into line before the urgent one is due.
                pass_time(database, "1 second")
                database.do("SELECT count(*) FROM pulse.tick()")
                claims[name, jobs] = max(alone, until_urgent(database, session))
                database.worked = database.finished()
            section.rows.append(
                [
                    *(name, f"{jobs:,}", claims[name, jobs]),
                    *(f"{cost.buffers:,.0f}", f"{cost.cpu:,.0f}"),
                ]
            )
    section.limit("claims until the urgent job ran", claims["due", large], 1)
    section.limit(
        f"buffers of a claim, wave of {large:,} / {small:,}",
        ratio(costs["due", large].buffers, costs["due", small].buffers),
        1.25,
    )
    section.limit(
        "CPU of a claim, due jobs / ready ones",
        ratio(costs["due", large].cpu, costs["ready", large].cpu),
        3,
        must=False,
    )
    return section


def until_urgent(database: Database, session: Session) -> int:
    """How many claims pass until an urgent job is claimed, that was due the last."""
    job = database.value("SELECT pulse.enqueue('bench', priority => 9, delay => '1 h')")
    database.do(
        "UPDATE pulse_internal.waiting SET run_at = clock_timestamp() WHERE job "
        f"= {job}"
    )
    claims = 0
    while claims < MOST_CLAIMS:
        claims += 1
        session.connection.execute(
            "SELECT count(*) FROM pulse.claim_batch('bench', max_jobs => %s)", [BATCH]
        )
        session.complete()
        if database.value(
            f"SELECT count(*) FROM pulse_internal.finished WHERE job = {job}"
        ):
            break
    return claims
