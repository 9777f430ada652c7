"""The answer of pulse.exchange: jobs, which are read after their slots are taken."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from pulse.job import Control, Job
from pulse.worker.run import Run

# Columns of sql.EXCHANGE that are read one by one, and their binary formats.
LANE, LEASE, JOB, KIND, ATTEMPT, UNTIL = 2, 3, 4, 5, 7, 18
INT8, INT4, FLOAT8 = (struct.Struct(form).unpack for form in (">q", ">i", ">d"))


class Answer:
    """Claimed jobs as the server sent them: counted by lane now, read later.

    refused are runs with an outcome that takes the place of the one just reported, held
    those that another session keeps from being reported.
    """

    def __init__(
        self,
        cursor: psycopg.AsyncCursor[tuple[Any, ...]] | None,
        asked_at: float,
        refused: Sequence[Run] = (),
    ) -> None:
        self.refused = list(refused)
        self.held: list[Run] = []
        self._cursor = cursor
        self._first = (cursor.rownumber or 0) if cursor else 0
        self.asked_at = asked_at
        self.count = cursor.rowcount - self._first if cursor else 0
        self.lanes = self._count() if self.count else {}

    def _count(self) -> dict[str, int]:
        """Rows come lane by lane: mostly the first and the last are enough."""
        rows = range(self._first, self._first + self.count)
        lane = self._raw(rows[0], LANE)
        if self._raw(rows[-1], LANE) == lane:
            return {str(lane, "utf-8"): self.count}
        return Counter(str(self._raw(row, LANE), "utf-8") for row in rows)

    def _raw(self, row: int, column: int) -> bytes:
        result = self._cursor.pgresult if self._cursor else None
        return (result.get_value(row, column) if result else None) or b""

    async def read(self) -> list[tuple[Any, ...] | Unreadable]:
        """The jobs as rows in the order of sql.EXCHANGE."""
        cursor = self._cursor
        if cursor is None or not self.count:
            return []
        try:
            await cursor.scroll(self._first, mode="absolute")
            return list(await cursor.fetchmany(self.count))
        except Exception:
            rows = range(self._first, self._first + self.count)
            return [await self._read_one(cursor, row) for row in rows]

    async def _read_one(
        self, cursor: psycopg.AsyncCursor[tuple[Any, ...]], row: int
    ) -> tuple[Any, ...] | Unreadable:
        try:
            await cursor.scroll(row, mode="absolute")
            values = await cursor.fetchone()
            assert values is not None
            return values
        except Exception as error:
            lease, job, attempt, until = (
                load(self._raw(row, column))[0]
                for load, column in (
                    (INT8, LEASE), (INT8, JOB), (INT4, ATTEMPT), (FLOAT8, UNTIL)
                )
            )  # fmt: skip
            lane, kind = (str(self._raw(row, n), "utf-8") for n in (LANE, KIND))
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
        row[3], row[4], row[2], row[5], row[6], row[7], row[8], row[9], row[10],
        row[11], row[12], row[13], row[14], row[15], row[16], row[17], control,
    )  # fmt: skip
