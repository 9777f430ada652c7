"""The flows of examples/flows, while a worker is killed at every boundary of a step:
money is charged once, and nothing is stuck."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tools import paths

EXAMPLE = paths.ROOT / "examples" / "flows"
PATIENCE = 60.0

LEFT = """
SELECT (SELECT count(*) FROM pulse_internal.ready) + (SELECT count(*)
    FROM pulse_internal.lease)
    + (SELECT count(*) FROM pulse_internal.blocked)
    + (SELECT count(*) FROM pulse_internal.waiting
        WHERE run_at < now() + interval '1 hour')
"""
PASS_TIME = """
UPDATE pulse_internal.job_step SET until = until - %(by)s::interval
    WHERE saved_at IS NULL;
UPDATE pulse_internal.waiting SET run_at = run_at - %(by)s::interval
"""


class Example:
    """The programs, against db, and the worker that is killed and started again."""

    def __init__(self, db: Database, file: Path) -> None:
        self.db = db
        self.file = file
        self.connection = db.connect()
        db.psql("-f", str(EXAMPLE / "tables.sql"))
        self.environ = {
            **db.server.environ(db.name),
            "PYTHONPATH": os.pathsep.join(
                [str(paths.ROOT), str(paths.ROOT / "python")]
            ),
        }
        self.worker: subprocess.Popen[str] | None = None

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=EXAMPLE, env=self.environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def work(self, module: str) -> None:
        self.worker = subprocess.Popen(
            [sys.executable, "-m", "tests.project.killed", module, str(self.file)],
            cwd=EXAMPLE, env=self.environ, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.terminate()
            error = self.worker.communicate(timeout=PATIENCE)[1]
            assert self.worker.returncode == 0, error

    def rest(self) -> None:
        """Until nothing runs, and nothing is about to."""
        end = time.monotonic() + PATIENCE
        while self.rows(LEFT) != [(0,)]:
            assert self.worker is not None
            assert self.worker.poll() is None, self.worker.communicate()[1]
            assert time.monotonic() < end, self.rows(
                "SELECT job_id, kind, state, last_error FROM pulse.jobs"
                " WHERE state NOT IN ('completed', 'cancelled')"
            )
            # Of rows that the test has moved; a tick may just have written one.
            self.connection.execute("DELETE FROM pulse_internal.due_mark")
            time.sleep(0.02)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), values or None).fetchall()

    def states(self) -> dict[tuple[str, str], int]:
        counted = "SELECT kind, state, count(*) FROM pulse.jobs GROUP BY 1, 2"
        return {(kind, state): jobs for kind, state, jobs in self.rows(counted)}

    def died(self) -> set[str]:
        return {line.partition("\t")[0] for line in self.file.read_text().splitlines()}

    def pass_time(self, by: str) -> None:
        for statement in PASS_TIME.split(";"):
            self.connection.execute(statement.encode(), {"by": by})


@pytest.fixture
def example(db: Database, tmp_path: Path) -> Iterator[Example]:
    made = Example(db, tmp_path / "killed")
    yield made
    made.stop()


ORDER_BOUNDARIES = {
    "order: begins",
    "order: before steps",
    "order: after steps",
    "order: before save_step charge",
    "order: after save_step charge",
    "order: before wait_for approved",
    "order: after wait_for approved, waiting",
    "order: after wait_for approved, received",
    "order: before save_step ship",
    "order: after save_step ship",
    "order: before wait_for a week",
    "order: after wait_for a week, waiting",
    "order: after wait_for a week, timeout",
    "order: before save_step remind",
    "order: after save_step remind",
    "order: after wait_for approved, timeout",
    "order: before save_step refund",
    "order: after save_step refund",
    "order: ends",
}


def test_an_order_is_charged_once_wherever_its_worker_dies(example: Example) -> None:
    example.run("orders.py", "order", "1", "101")
    again = example.run("orders.py", "order", "1", "101")
    assert int(again) == example.rows("SELECT job_id FROM pulse.jobs")[0][0]
    # More orders than boundaries: each dies at most once.
    many = len(ORDER_BOUNDARIES) + 3
    orders = range(2, many + 1)
    example.rows(
        "SELECT pulse.enqueue_many('order', array_agg(jsonb_build_object("
        "'order_id', n, 'cents', 100 + n) ORDER BY n), max_attempts => 20)"
        " FROM generate_series(2, %s) AS n",
        many,
    )
    example.work("orders")
    example.rest()
    assert example.states() == {("order", "scheduled"): many}
    assert example.rows("SELECT order_id, cents FROM shop.payment ORDER BY 1") == [
        (n, 100 + n) for n in range(1, many + 1)
    ]

    # A week and a day later it would be too late: every third gets no approval.
    assert example.run("orders.py", "approve", "1", "ann") == "1"
    approved = [1, *(n for n in orders if n % 3)]
    for n in approved[1:]:
        example.rows("SELECT pulse.signal('approved ' || %s, '{\"by\": \"bob\"}')", n)
    example.rest()
    example.pass_time("4 days")
    example.rest()
    example.pass_time("4 days")
    example.rest()

    refunded = [n for n in orders if n not in approved]
    assert example.states() == {("order", "completed"): many}
    assert example.rows(
        "SELECT order_id, sum(cents), count(*) FROM shop.payment GROUP BY 1 ORDER BY 1"
    ) == [(n, 0, 2) if n in refunded else (n, 100 + n, 1) for n in range(1, many + 1)]
    assert example.rows("SELECT order_id FROM shop.shipment ORDER BY 1") == [
        (n,) for n in approved
    ]
    assert example.rows("SELECT subject FROM shop.mail ORDER BY subject") == sorted(
        (f"How was order {n}, approved by {'ann' if n == 1 else 'bob'}?",)
        for n in approved
    )
    assert example.died() == ORDER_BOUNDARIES
    assert example.rows("SELECT * FROM pulse.check()") == []


IMPORT_BOUNDARIES = {
    *(f"fetch: {where}" for where in ("begins", "before steps", "after steps", "ends")),
    *(f"fetch: {when} save_step stage" for when in ("before", "after")),
    *(f"fetch: {when} spawn parts" for when in ("before", "after")),
    *(f"part{which}: begins" for which in ("", " of the last")),
    *(f"part{which}: ends" for which in ("", " of the last")),
    *(
        f"{kind}: {where}"
        for kind in ("merge", "notify", "cleanup")
        for where in ("begins", "before upstream", "after upstream", "ends")
    ),
}


def test_an_import_is_merged_once_wherever_its_worker_dies(
    example: Example, tmp_path: Path
) -> None:
    large, small, bad = (tmp_path / name for name in ("large", "small", "bad"))
    large.write_text("".join(f"sku{n},{n}\n" for n in range(3000)))
    small.write_text("a,1\nb,2\nc,3\n")
    bad.write_text("a,1\nb,2\nc,much\n")
    start = "import imports, psycopg; conn = psycopg.connect(autocommit=True)\n"
    # Each job dies at most once; fetch has the most places to do so.
    for n in range(8):
        start += f"imports.start(conn, 'small {n}', {small.as_uri()!r}, 3)\n"
    start += f"imports.start(conn, 'bad', {bad.as_uri()!r}, 3)\n"
    example.run("-c", start)
    example.run("imports.py", "import", "large", large.as_uri())
    example.work("imports")
    example.rest()

    well, parts = 9, 8 * 3 + 1000
    assert example.states() == {
        ("fetch", "completed"): well + 1,
        ("part", "completed"): parts + 2,
        ("part", "dead"): 1,
        ("merge", "completed"): well,
        ("merge", "cancelled"): 1,
        ("notify", "completed"): well,
        ("notify", "cancelled"): 1,
        ("cleanup", "completed"): well + 1,
    }
    assert example.rows("SELECT * FROM shop.total ORDER BY import") == [
        ("large", 3000, sum(range(3000))),
        *((f"small {n}", 3, 6) for n in range(8)),
    ]
    assert example.rows("SELECT count(*), sum(cents) FROM shop.sale") == [
        (3000 + 8 * 3 + 2, sum(range(3000)) + 8 * 6 + 3)
    ]
    assert sorted(example.rows("SELECT subject FROM shop.mail")) == [
        ("large: 3000 sales",),
        *((f"small {n}: 3 sales",) for n in range(8)),
    ]
    assert example.rows("SELECT count(*) FROM shop.staged") == [(0,)]
    cleaned = "SELECT result FROM pulse.jobs WHERE flow = %s AND kind = 'cleanup'"
    assert example.rows(cleaned, "large") == [({"completed": 1003},)]
    assert example.rows(cleaned, "bad") == [
        ({"cancelled": 2, "completed": 3, "dead": 1},)
    ]
    assert example.died() == IMPORT_BOUNDARIES
    assert example.rows("SELECT * FROM pulse.check()") == []
