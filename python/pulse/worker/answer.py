"""The answer of pulse.exchange: jobs, which are read after their slots are taken."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pulse.job import Control, Job
from pulse.worker.run import Run
from pulse.worker.statement import Rows

# Columns of sql.EXCHANGE that are read one by one, and their binary formats.
ITEM, VERDICT, UNTIL, LEASE, JOB, LANE, KIND, ATTEMPT = 0, 1, 2, 3, 4, 5, 6, 8
INT8, INT4, FLOAT8 = (struct.Struct(form).unpack for form in (">q", ">i", ">d"))


class Answer:
    """Claimed jobs as the server sent them: counted by lane now, read later.

    refused are runs with an outcome that takes the place of the one just reported, held
    those that another session keeps from being reported.
    """

    def __init__(
        self,
        rows: Rows | None,
        asked_at: float,
        first: int = 0,
        refused: Sequence[Run] = (),
    ) -> None:
        self.refused = list(refused)
        self.held: list[Run] = []
        self._rows = rows
        self._jobs = range(first, rows.count if rows else 0)
        self.asked_at = asked_at
        self.count = len(self._jobs)
        self.lanes = self._count(rows) if rows and self.count else {}

    def _count(self, rows: Rows) -> dict[str, int]:
        """Rows come lane by lane: mostly the first and the last are enough."""
        lane = rows.raw(self._jobs[0], LANE)
        if rows.raw(self._jobs[-1], LANE) == lane:
            return {str(lane, "utf-8"): self.count}
        return Counter(str(rows.raw(row, LANE), "utf-8") for row in self._jobs)

    def read(self) -> Sequence[tuple[Any, ...] | Unreadable]:
        """The jobs as rows in the order of sql.EXCHANGE."""
        rows = self._rows
        if rows is None or not self.count:
            return []
        try:
            return rows.read(self._jobs.start, self._jobs.stop)
        except Exception:
            return [read_one(rows, row) for row in self._jobs]


def read_one(rows: Rows, row: int) -> tuple[Any, ...] | Unreadable:
    try:
        return rows.read(row, row + 1)[0]
    except Exception as error:
        lease, job, attempt, until = (
            load(rows.raw(row, column))[0]
            for load, column in (
                (INT8, LEASE), (INT8, JOB), (INT4, ATTEMPT), (FLOAT8, UNTIL)
            )
        )  # fmt: skip
        lane, kind = (str(rows.raw(row, n), "utf-8") for n in (LANE, KIND))
        return Unreadable(lease, job, lane, kind, attempt, until, error)


class Unreadable(NamedTuple):
    """A job that Python cannot decode, and why."""

    lease: int
    job: int
    lane: str
    kind: str
    attempt: int
    until: float
    error: Exception


def job_of(row: tuple[Any, ...], control: Control) -> Job:
    """A row of exchange in the order of sql.EXCHANGE."""
    return Job(
        row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11],
        row[12], row[13], row[14], row[15], row[16], row[17], row[18], control,
    )  # fmt: skip
