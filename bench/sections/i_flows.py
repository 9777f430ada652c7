"""Flows: draining jobs that wait for jobs, beside the same number that do not.

And what plain jobs pay for flows: in a database whose functions have the looks for
flows taken out ("before"), in one where nothing ever waited, and beside jobs that do.
By SQL means the engine alone; by a worker, the processor time of pulse.Worker with 100
slots and handlers that do nothing, and of its sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

import pulse
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
    "the same in lists": """
        SELECT count(*) FROM (
            SELECT jsonb_agg(e.job ORDER BY f.flow, e.nth) AS jobs
            FROM generate_series(1, {jobs} / 5) AS f (flow)
            CROSS JOIN LATERAL jsonb_array_elements(
                replace(
                    '[{{"kind": "k", "name": "a#"}},
                    {{"kind": "k", "name": "b#", "after": ["a#"]}},
                    {{"kind": "k", "name": "b#", "after": ["a#"]}},
                    {{"kind": "k", "name": "b#", "after": ["a#"]}},
                    {{"kind": "k", "after": ["b#"]}}]',
                    '#', f.flow::text
                )::jsonb
            ) WITH ORDINALITY AS e (job, nth)
            GROUP BY f.flow / 100
        ) AS l
        CROSS JOIN LATERAL pulse.enqueue_many(l.jobs)""",
    "n → 1": f"""
        WITH part AS (SELECT {MANY}) AS job)
        SELECT pulse.enqueue('k', after => array_agg(job)) FROM part""",
}
PARTS = 50
GOALS = {"1 → n → 1": 0.75, "many of 1 → 3 → 1": 0.75, "n → 1": 0.95}

# Where a claim and a report look for flows, and what they did before.
LOOKS = {
    "claim_batch": {
        "pg_sequence_last_value('pulse_internal.note_seq') IS NOT NULL AS has_flows": (
            "false AS has_flows"
        )
    },
    "complete_batch": {
        "(SELECT pg_sequence_last_value('pulse_internal.blocked_seq') IS "
        "NOT NULL)": "false",
        "IF pg_sequence_last_value('pulse_internal.blocked_seq') IS "
        "NOT NULL": "IF false",
    },
}
BLOCKED = """
    SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[1000]), lane => 'flow',
        after => ARRAY[pulse.enqueue('k', lane => 'flow', after => ARRAY[
            pulse.enqueue('k', lane => 'flow')
        ])])
"""
# Autovacuum comes upon one load and not the other: its work is done between them.
QUIET = """
DO $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN SELECT oid FROM pg_class
        WHERE relnamespace = 'pulse_internal'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', v_table);
    END LOOP;
END $$
"""
PLAIN = ("plain, before", "plain, none ever waited", "plain, beside 1,000 blocked")


def i_flows(bench: Bench) -> Section:
    section = Section(
        "i",
        "flows: jobs that wait for jobs, claimed and completed by 100",
        ["jobs", "snapshot", "by", "enqueue µs", "drain µs", "plain / it"],
    )
    jobs = 1000 if bench.scale.quick else int(os.environ.get("BENCH_JOBS", "100000"))
    rounds = bench.scale.rounds
    # Both take turns, as the loads do: what drifts on the machine hits them alike.
    with (
        bench.database("i: no old") as free,
        bench.database("i: an old") as pinned,
        old_snapshot(pinned),
    ):
        databases = {"none": free, "old": pinned}
        cases = [(snapshot, name) for name in LOADS for snapshot in databases]
        spent: dict[tuple[str, str], list[tuple[float, list[float]]]] = {
            case: [] for case in cases
        }
        for database in databases.values():
            database.do(QUIET)
        for snapshot, name in alternated(cases, rounds):
            load = LOADS[name].format(jobs=jobs)
            spent[snapshot, name].append(work(databases[snapshot], load, jobs))
        for database in databases.values():
            database.worked = database.finished()
    drained = {case: least([drain for _, drain in spent[case]], jobs) for case in cases}
    for snapshot, name in sorted(cases, key=lambda case: case[0]):
        enqueued = middle([enqueue for enqueue, _ in spent[snapshot, name]])
        share = ratio(drained[snapshot, "plain"], drained[snapshot, name])
        section.rows.append(
            [
                *(name, snapshot, "SQL", f"{enqueued:.1f}"),
                *(f"{drained[snapshot, name]:.1f}", f"{share:.2f}"),
            ]
        )
    by_worker(bench, section, jobs, rounds)
    plain(bench, section, jobs, 2 * rounds)
    for name, wanted in GOALS.items():
        share = ratio(drained["none", "plain"], drained["none", name])
        section.goal(f"CPU of a job, plain / {name}", share, wanted, must=False)
        held = ratio(drained["none", name], drained["old", name])
        section.goal(f"{name}: without an old snapshot / with", held, 0.9, must=False)
    return section


def by_worker(bench: Bench, section: Section, jobs: int, rounds: int) -> None:
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in LOADS}
    with bench.database("i: a worker") as database:
        database.do(QUIET)
        for name in alternated(list(LOADS), rounds):
            load = LOADS[name].format(jobs=jobs)
            spent[name].append(asyncio.run(served(database, load)))
            database.do("VACUUM")
        database.worked = database.finished()
    drained = {name: middle([drain for _, drain in spent[name]]) for name in LOADS}
    for name in LOADS:
        enqueued = middle([enqueue for enqueue, _ in spent[name]])
        share = ratio(drained["plain"], drained[name])
        section.rows.append(
            [
                *(name, "none", "a worker", f"{enqueued:.1f}", f"{drained[name]:.1f}"),
                f"{share:.2f}",
            ]
        )
        if name in GOALS:
            what = f"CPU of a worker and its sessions, plain / {name}"
            section.goal(what, share, GOALS[name], must=False)


def plain(bench: Bench, section: Section, jobs: int, rounds: int) -> None:
    with (
        bench.database("i: before") as before,
        bench.database("i: never") as never,
        bench.database("i: beside") as beside,
    ):
        for function, looks in LOOKS.items():
            take_out(before, function, looks)
        with beside.connect() as connection:
            connection.execute(BLOCKED.encode())
            connection.execute("SELECT pulse_internal.tick_flows()")
        databases = dict(zip(PLAIN, (before, never, beside), strict=True))
        for database in databases.values():
            database.do(QUIET)
        spent: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in PLAIN}
        load = LOADS["plain"].format(jobs=jobs // 5)
        for name in alternated(list(PLAIN), rounds):
            spent[name].append(work(databases[name], load, jobs // 5))
        for database in databases.values():
            database.worked = database.finished()
    drained = {
        name: least([drain for _, drain in spent[name]], jobs // 5) for name in PLAIN
    }
    for name in PLAIN:
        enqueued = middle([enqueue for enqueue, _ in spent[name]])
        share = ratio(drained[PLAIN[0]], drained[name])
        section.rows.append(
            [
                *(name, "none", "SQL", f"{enqueued:.1f}", f"{drained[name]:.1f}"),
                f"{share:.2f}",
            ]
        )
    for name, wanted in zip(PLAIN[1:], (0.98, 0.95), strict=True):
        share = ratio(drained[PLAIN[0]], drained[name])
        section.goal(f"CPU of a job, before / {name}", share, wanted, must=False)


def take_out(database: Database, function: str, looks: dict[str, str]) -> None:
    with database.connect() as connection:
        row = connection.execute(
            "SELECT pg_get_functiondef(%s::regproc)", (f"pulse.{function}",)
        ).fetchone()
        assert row is not None
        body = str(row[0])
        for look, instead in looks.items():
            assert look in body, f"{function} has changed: {look}"
            body = body.replace(look, instead)
        connection.execute(body.encode())


async def served(database: Database, load: str) -> tuple[float, float]:
    """As work, by a worker: its processor time and that of its sessions."""
    with database.connect() as connection:
        pid = connection.info.backend_pid
        began = processor(pid)
        before = database.value("SELECT count(*) FROM pulse_internal.body")
        connection.execute(load.encode())
        enqueued = processor(pid) - began
    jobs = database.value("SELECT count(*) FROM pulse_internal.body") - before
    logging.getLogger("pulse").setLevel(logging.ERROR)
    worker = pulse.Worker(database.server.dsn(database.name), concurrency=100)
    sessions = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = %s AND pid <> %s AND backend_type = 'client backend'"
    )
    spent: list[float] = []
    handled = 0

    def look() -> None:
        own = database.control.info.backend_pid
        pids = database.control.execute(sessions, (database.name, own)).fetchall()
        spent.append(time.process_time() + sum(processor(pid) for (pid,) in pids))

    @worker.handle("k")
    async def handle(job: pulse.Job) -> None:
        nonlocal handled
        handled += 1
        # What a start costs is not of a job.
        if handled == 1:
            look()
        elif handled == jobs:
            look()
            worker.stop()

    await asyncio.wait_for(worker.run_async(), 600)
    return 1e6 * enqueued / jobs, 1e6 * (spent[1] - spent[0]) / jobs


def work(database: Database, load: str, jobs: int) -> tuple[float, list[float]]:
    """CPU in one session: µs to enqueue a job, seconds of each part of the drain."""
    connection = database.connect()
    pid = connection.info.backend_pid
    began = processor(pid)
    connection.execute(load.encode())
    enqueued = ended = processor(pid)
    parts = [0.0] * (PARTS + 1)
    drained = 0
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        row = connection.execute(
            "SELECT count(*) FROM pulse.complete_batch(array("
            "SELECT c.lease FROM pulse.claim_batch('bench', max_jobs => 100) AS c))"
        ).fetchone()
        assert row is not None
        if row == (0,):
            released = connection.execute(
                "SELECT pulse_internal.tick_flows()"
            ).fetchone()
            if released == (0,):
                break
        before, ended = ended, processor(pid)
        parts[min(PARTS, PARTS * drained // jobs)] += ended - before
        drained += row[0]
    connection.close()
    database.do("VACUUM")
    return 1e6 * (enqueued - began) / jobs, parts


def least(rounds: list[list[float]], jobs: int) -> float:
    """CPU a job, in microseconds, to drain.

    Each part counts by the round in which it took least, since what else the machine
    does only adds. The more rounds, the less: compare what has as many.
    """
    return 1e6 * sum(map(min, zip(*rounds, strict=True))) / jobs
