"""One call of pulse.exchange: reports what ended, claims, and holds the answer."""

from __future__ import annotations

import json
import logging
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from pulse import errors
from pulse.job import Control, Job
from pulse.logs import log_event
from pulse.options import Duration, to_interval
from pulse.sql import worker as sql
from pulse.worker import outcomes
from pulse.worker.connection import Connection
from pulse.worker.connector import AsyncConnection
from pulse.worker.outcomes import Outcome
from pulse.worker.run import Run

# Columns of sql.EXCHANGE that are read one by one, and their binary formats.
LANE, LEASE, JOB, KIND, ATTEMPT, UNTIL = 2, 3, 4, 5, 7, 15
INT8, INT4, FLOAT8 = (struct.Struct(form).unpack for form in (">q", ">i", ">d"))


class Exchange:
    """Reports and claims of one worker."""

    def __init__(
        self,
        connection: Connection,
        worker: str,
        kinds: Sequence[str],
        lease_for: Duration | None,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._kinds = list(kinds)
        self._lease_for = to_interval(lease_for)

    async def send(self, ended: Sequence[Run], wants: Mapping[str, int]) -> Answer:
        """Report these runs, then claim so many jobs of each lane."""
        connection = await self._connection.get()
        done, failed = await self._report_others(connection, ended)
        if not done and not failed and not wants:
            return Answer(None, 0.0)
        asked_at = time.monotonic()
        values = self._values(done, failed, wants)
        try:
            cursor = await connection.execute(sql.EXCHANGE, values, binary=True)
        except psycopg.Error as error:
            if errors.is_transient(error) or not (done or failed):
                raise
            # One report cannot be stored and holds up the others: report one by one.
            await self._report_singly(connection, [*done, *failed])
            asked_at = time.monotonic()
            values = self._values([], [], wants)
            cursor = await connection.execute(sql.EXCHANGE, values, binary=True)
        # Refused reports come first.
        result = cursor.pgresult
        while (
            result
            and (row := cursor.rownumber or 0) < result.ntuples
            and result.get_value(row, 0) != b"job"
        ):
            refused = await cursor.fetchone()
            assert refused is not None
            await self._report_refused(connection, refused[3], refused[1], ended)
        return Answer(cursor, asked_at)

    def _values(
        self,
        done: Sequence[tuple[Job, Outcome]],
        failed: Sequence[tuple[Job, Outcome]],
        wants: Mapping[str, int],
    ) -> dict[str, Any]:
        return {
            "worker": self._worker,
            "wants": json.dumps(wants),
            "done": outcomes.completed(done),
            "failed": outcomes.failed(failed) if failed else "[]",
            "kinds": self._kinds,
            "lease_for": self._lease_for,
        }

    async def _report_others(
        self, connection: AsyncConnection, ended: Sequence[Run]
    ) -> tuple[list[tuple[Job, Outcome]], list[tuple[Job, Outcome]]]:
        """Report by its own verb what exchange does not take; returns the rest."""
        done: list[tuple[Job, Outcome]] = []
        failed: list[tuple[Job, Outcome]] = []
        released: list[int] = []
        for each in ended:
            job, outcome = each.job, each.outcome
            assert outcome is not None
            if outcome.verb == "complete":
                done.append((job, outcome))
            elif outcome.verb == "fail":
                failed.append((job, outcome))
            elif outcome.verb == "release":
                released.append(job.lease)
            else:
                await self._report_one(connection, job, outcome)
        if released:
            await connection.execute(sql.RELEASE, {"leases": released})
        return done, failed

    async def _report_singly(
        self,
        connection: AsyncConnection,
        ended: Sequence[tuple[Job, Outcome]],
    ) -> None:
        for job, outcome in ended:
            await self._report_one(connection, job, outcome)

    async def _report_one(
        self, connection: AsyncConnection, job: Job, outcome: Outcome
    ) -> None:
        """Report one run; what the server refuses for good becomes a failure."""
        query, values = call_of(job, outcome)
        try:
            await connection.execute(query, values)
        except psycopg.Error as error:
            if errors.is_transient(error):
                raise
            known = errors.translate(error)
            if isinstance(known, errors.LeaseLost):
                self._log_lost(job)
            elif outcome.verb == "fail":
                plain = Outcome("fail", error=f"the error cannot be stored: {error}")
                if outcome == plain:
                    raise
                await self._report_one(connection, job, plain)
            else:
                why = f"the {outcome.verb} of this run was refused: {known or error}"
                await self._report_one(connection, job, Outcome("fail", error=why))

    async def _report_refused(
        self,
        connection: AsyncConnection,
        lease: int,
        verdict: str,
        ended: Sequence[Run],
    ) -> None:
        for each in ended:
            if each.job.lease == lease and each.outcome is not None:
                if verdict == "lost":
                    self._log_lost(each.job)
                else:
                    await self._report_one(connection, each.job, each.outcome)

    def _log_lost(self, job: Job) -> None:
        log_event(
            logging.WARNING,
            f"job {job.id} ({job.kind}, attempt {job.attempt}) had lost its lease when "
            "it was reported; its result is dropped",
            worker=self._worker,
            job_id=job.id,
            kind=job.kind,
            lane=job.lane,
            attempt=job.attempt,
        )


class Answer:
    """Claimed jobs as the server sent them: counted by lane now, read later."""

    def __init__(
        self, cursor: psycopg.AsyncCursor[tuple[Any, ...]] | None, asked_at: float
    ) -> None:
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


def call_of(job: Job, outcome: Outcome) -> tuple[str, dict[str, Any]]:
    lease = {"lease": job.lease}
    if outcome.verb == "complete":
        return sql.COMPLETE, {**lease, "result": outcome.result}
    if outcome.verb == "snooze":
        return sql.SNOOZE, {**lease, "delay": to_interval(outcome.delay)}
    if outcome.verb == "ack_cancel":
        return sql.ACK_CANCEL, lease
    return sql.FAIL, {
        **lease,
        "error": outcome.error,
        "retry_in": to_interval(outcome.delay),
        "fatal": outcome.fatal,
    }


def job_of(row: tuple[Any, ...], control: Control) -> Job:
    """A row of exchange in the order of sql.EXCHANGE."""
    return Job(
        row[3], row[4], row[2], row[5], row[6], row[7], row[8], row[9], row[10],
        row[11], row[12], row[13], row[14], control,
    )  # fmt: skip
