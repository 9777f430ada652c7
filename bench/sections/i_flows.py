"""Flows: draining jobs that wait for jobs, beside the same number that do not."""

from __future__ import annotations

import time
from contextlib import nullcontext

from bench.costs import ratio
from bench.harness import Bench, Database, middle, old_snapshot, processor
from bench.sections.report import Section, alternated

# Each enqueues {jobs} jobs, or a few more.
MANY = "pulse.enqueue_many('k', array_fill('{{}}'::jsonb, ARRAY[{jobs}])"
LOADS = {
    "plain": f"SELECT count(*) FROM {MANY})",
    "1 → n → 1": f"""
        WITH part AS (
            SELECT {MANY}, after => ARRAY[pulse.enqueue('k')]) AS job
        )
        SELECT pulse.enqueue('k', after => array_agg(job)) FROM part""",
    "many of 1 → 3 → 1": """
        SELECT count(pulse.enqueue('k', after => array(
            SELECT pulse.enqueue_many(
                'k', array_fill('{{}}'::jsonb, ARRAY[3]), after => ARRAY[f.first]
            )
        ))) FROM (
            SELECT pulse.enqueue('k') AS first
            FROM generate_series(1, {jobs} / 5)
            OFFSET 0
        ) AS f""",
    "n → 1": f"""
        WITH part AS (SELECT {MANY}) AS job)
        SELECT pulse.enqueue('k', after => array_agg(job)) FROM part""",
}
GOALS = {"1 → n → 1": 0.75, "many of 1 → 3 → 1": 0.75, "n → 1": 0.95}


def i_flows(bench: Bench) -> Section:
    section = Section(
        "i",
        "flows: jobs that wait for jobs, claimed and completed by 100",
        ["jobs", "snapshot", "enqueue µs", "drain µs", "plain / it"],
    )
    jobs = 1000 if bench.scale.quick else 100_000
    rounds = 1 if bench.scale.quick else 5
    drained: dict[tuple[str, bool], float] = {}
    for pinned in (False, True):
        with bench.database(f"i: {'an old' if pinned else 'no old'}") as database:
            enqueue: dict[str, list[float]] = {name: [] for name in LOADS}
            drain: dict[str, list[float]] = {name: [] for name in LOADS}
            with old_snapshot(database) if pinned else nullcontext():
                for name in alternated(list(LOADS), rounds):
                    spent = work(database, LOADS[name].format(jobs=jobs), jobs)
                    enqueue[name].append(spent[0])
                    drain[name].append(spent[1])
            database.worked = database.finished()
        for name in LOADS:
            drained[name, pinned] = middle(drain[name])
            share = ratio(drained["plain", pinned], drained[name, pinned])
            section.rows.append(
                [
                    *(name, "old" if pinned else "none"),
                    *(f"{middle(enqueue[name]):.1f}", f"{drained[name, pinned]:.1f}"),
                    f"{share:.2f}",
                ]
            )
    for name, wanted in GOALS.items():
        share = ratio(drained["plain", False], drained[name, False])
        section.goal(f"CPU of a job, plain / {name}", share, wanted, must=False)
        held = ratio(drained[name, False], drained[name, True])
        section.goal(f"{name}: without an old snapshot / with", held, 0.9, must=False)
    return section


def work(database: Database, load: str, jobs: int) -> tuple[float, float]:
    """CPU a job, in microseconds, to enqueue and to drain, in one session."""
    connection = database.connect()
    pid = connection.info.backend_pid
    began = processor(pid)
    connection.execute(load.encode())
    enqueued = processor(pid)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        row = connection.execute(
            "SELECT count(*) FROM pulse.complete_batch(array("
            "SELECT c.lease FROM pulse.claim_batch('bench', max_jobs => 100) AS c))"
        ).fetchone()
        if row == (0,):
            released = connection.execute("SELECT pulse._tick_flows()").fetchone()
            if released == (0,):
                break
    ended = processor(pid)
    connection.close()
    return 1e6 * (enqueued - began) / jobs, 1e6 * (ended - enqueued) / jobs
