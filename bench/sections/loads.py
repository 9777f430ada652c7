"""Queues in a given state, written by the owner as fast as it goes."""

from __future__ import annotations

from bench.harness import Bench, Database

PAYLOAD = '{"pad": "' + "x" * 89 + '"}'

BODY = """
WITH body AS (
    INSERT INTO pulse_internal.body (kind, payload, max_attempts, owner)
    SELECT 'bench', %(payload)s::jsonb, 3, (SELECT pulse_internal.role_number('loader'))
    FROM generate_series(1, %(jobs)s)
    RETURNING job
)
"""

READY = """
INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
SELECT 'default', 0, 'bench', job, 0, 0, false
FROM body
"""

WAITING = """
INSERT INTO pulse_internal.waiting
    (lane, run_at, job, kind, rank, attempts, failures, keyed, retrying)
SELECT
    'default', clock_timestamp() + %(due_in)s::interval, job, 'bench', 0, 0, 0,
    false, false
FROM body
"""

FINISHED = """
INSERT INTO pulse_internal.finished
    (job, lane, kind, rank, state, ended_by, attempts, failures, keyed, finished_at)
SELECT
    job, 'default', 'bench', 0, 'completed', 'complete', 1, 0, false,
    clock_timestamp() + %(due_in)s::interval
FROM body
"""


def write(
    database: Database, place: str, jobs: int, due_in: str = "0", chunk: int = 500_000
) -> None:
    database.do("SET synchronous_commit = off")
    for first in range(0, jobs, chunk):
        database.control.execute(
            (BODY + place).encode(),
            {
                "jobs": min(chunk, jobs - first),
                "payload": PAYLOAD,
                "due_in": due_in,
            },
        )
    database.do("RESET synchronous_commit", "ANALYZE")


def load(database: Database, jobs: int) -> None:
    """Ready jobs."""
    write(database, READY, jobs)


def delayed(database: Database, jobs: int, due_in: str = "1 day") -> None:
    """Waiting jobs; a negative time makes them due."""
    write(database, WAITING, jobs, due_in)


def finished(database: Database, jobs: int) -> None:
    """Completed jobs, long past what any lane keeps."""
    write(database, FINISHED, jobs, "-1 year")


def backlogs(bench: Bench, most: int = 500_000) -> tuple[int, int]:
    """A small and a large one: what a shape costs must be the same with both."""
    if bench.scale.quick:
        return 2_000, 4_000
    return 10_000, min(most, bench.scale.backlog)
