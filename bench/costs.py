"""What single statements of a session cost, and time that passes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.harness import Database, middle, processor


class Cost(NamedTuple):
    """Of one statement, the statements inside its functions included."""

    # Microseconds of processor time of the server's process.
    cpu: float
    buffers: float
    # Bytes of WAL.
    wal: float
    rows: float

    def cells(self) -> list[str]:
        return [f"{value:,.0f}" for value in (self.cpu, self.buffers, self.wal)]


COLUMNS = ["CPU µs", "buffers", "WAL bytes"]


class Session:
    """A session of the server that is looked at closely."""

    def __init__(self, database: Database) -> None:
        self.connection = database.connect()
        self.pid = self.connection.info.backend_pid

    def weigh(self, statement: str) -> Cost:
        explain = "EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING OFF, FORMAT JSON) "
        before = processor(self.pid)
        row = self.connection.execute((explain + statement).encode()).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        return Cost(
            1e6 * (processor(self.pid) - before),
            plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
            plan["WAL Bytes"],
            plan["Actual Rows"],
        )

    def usual(
        self,
        statement: str,
        times: int,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> Cost:
        """Of so many runs, once the session has its plans.

        Medians, but for WAL: what writes only now and then counts as well.
        """
        costs = []
        for _ in range(times + 2):
            before()
            costs.append(self.weigh(statement))
            after()
        cpu, buffers, wal, rows = map(list, zip(*costs[2:], strict=True))
        return Cost(middle(cpu), middle(buffers), sum(wal) / times, middle(rows))

    def claim(self, times: int, jobs: int = 100, more: str = "") -> Cost:
        """A claim of the default lane; what it got is completed, and not weighed."""
        return self.usual(
            f"SELECT * FROM pulse.claim_batch('bench', max_jobs => {jobs}{more})",
            times,
            after=self.complete,
        )

    def complete(self) -> None:
        self.connection.execute(
            "SELECT count(*) FROM pulse.complete_batch("
            "array(SELECT lease FROM pulse_internal.lease))"
        )


def ratio(shape: float, plain: float) -> float:
    return shape / max(plain, 1)


def pass_time(database: Database, interval: str) -> None:
    """All upkeep was last done that much earlier."""
    database.do(
        "UPDATE pulse_internal.upkeep_run SET taken_at = taken_at - interval "
        f"'{interval}'",
        # When a step of tick first ran out of time stands inside its state.
        "UPDATE pulse_internal.upkeep_run SET state = state || "
        "jsonb_build_object('since',"
        f" (state ->> 'since')::timestamptz - interval '{interval}')"
        " WHERE step LIKE 'cut:%' AND state ? 'since'",
    )


def age_marks(database: Database, interval: str) -> None:
    """All marks were written, and found dry, that much earlier."""
    for table in ("mark", "due_mark"):
        database.do(
            f"UPDATE pulse_internal.{table}"
            f" SET marked_at = marked_at - interval '{interval}',"
            f" dry_at = dry_at - interval '{interval}'",
            f"VACUUM pulse_internal.{table}",
        )
