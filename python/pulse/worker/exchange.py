"""One call of pulse.exchange: reports what ended, and claims."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import PyFormat, Transformer

from pulse import errors
from pulse.job import Job
from pulse.logs import log_job
from pulse.options import Duration, to_interval
from pulse.sql import worker as sql
from pulse.worker import outcomes
from pulse.worker.answer import INT8, ITEM, LEASE, VERDICT, Answer
from pulse.worker.connection import Connection
from pulse.worker.connector import AsyncConnection
from pulse.worker.outcomes import Outcome
from pulse.worker.run import Run
from pulse.worker.statement import Statement

if TYPE_CHECKING:
    from psycopg.abc import Buffer
    from typing_extensions import LiteralString

# PostgreSQL takes no statement above 1 GB, and jsonb is built in memory.
LARGEST_PART = 16 << 20
PARAMETERS = ("worker", "wants", "completed", "done", "failed", "kinds", "lease_for")


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
        self._statement = Statement("pulse_exchange", sql.EXCHANGE, PARAMETERS)
        self._who, self._which, self._how_long = Transformer().dump_sequence(
            [worker, self._kinds, to_interval(lease_for)], [PyFormat.TEXT] * 3
        )

    async def send(self, ended: Sequence[Run], wants: Mapping[str, int]) -> Answer:
        """Report these runs, then claim so many jobs of each lane."""
        connection = await self._connection.get()
        rest, held = await self._report_others(connection, ended)
        *parts, last = in_parts(rest)
        again: list[Run] = []
        for part in parts:
            answer = await self._exchange(connection, part, {})
            again += answer.refused
            held += answer.held
        answer = Answer(None, 0.0)
        if last or wants:
            answer = await self._exchange(connection, last, wants)
        answer.refused += again
        answer.held += held
        return answer

    async def next_in(self, lane: str) -> float | None:
        """In how many seconds time alone makes a job of a lane claimable."""
        connection = await self._connection.get()
        values = {"lane": lane, "kinds": self._kinds}
        row = await (await connection.execute(sql.NEXT_AT, values)).fetchone()
        return None if row is None else row[0]

    async def _exchange(
        self, connection: AsyncConnection, runs: Sequence[Run], wants: Mapping[str, int]
    ) -> Answer:
        asked_at = time.monotonic()
        values = self._values(runs, wants)
        try:
            rows = await self._statement.execute(connection, values)
        except psycopg.Error as error:
            if not is_about_data(error) and not errors.is_held(error):
                raise
            if not runs:
                if errors.is_held(error):
                    return Answer(None, asked_at)
                raise
            # One report cannot be stored, or has to wait, and holds up the others:
            # report one by one.
            held = await self._report_each(connection, runs)
            answer = await self._exchange(connection, [], wants)
            answer.held += held
            return answer
        # Refused reports come first.
        again: list[Run] = []
        first = 0
        while first < rows.count and rows.raw(first, ITEM) != b"job":
            (lease,) = INT8(rows.raw(first, LEASE))
            verdict = str(rows.raw(first, VERDICT), "utf-8")
            run = next(run for run in runs if run.lease == lease)
            if verdict == "lost":
                self._log_lost(run.job)
            elif self._replace(run, f"it is {verdict.replace('_', ' ')}"):
                again.append(run)
            first += 1
        return Answer(rows, asked_at, first, again)

    def _values(
        self, runs: Sequence[Run], wants: Mapping[str, int]
    ) -> Sequence[Buffer | None]:
        """In the order of PARAMETERS."""
        sent = (json.dumps(wants), *outcomes.completed(runs), outcomes.failed(runs))
        return (self._who, *map(str.encode, sent), self._which, self._how_long)

    async def _report_others(
        self, connection: AsyncConnection, ended: Sequence[Run]
    ) -> tuple[list[Run], list[Run]]:
        """Report by its own verb what exchange does not take.

        Returns the rest, and what another session holds.
        """
        rest: list[Run] = []
        released: list[Run] = []
        others: list[Run] = []
        for run in ended:
            assert run.outcome is not None
            if run.outcome.verb in ("complete", "fail"):
                rest.append(run)
            elif run.outcome.verb == "release":
                released.append(run)
            else:
                others.append(run)
        if released:
            try:
                leases = {"leases": [run.lease for run in released]}
                await connection.execute(sql.RELEASE, leases)
            except psycopg.Error as error:
                if not errors.is_held(error):
                    raise
                others += released
        return rest, await self._report_each(connection, others)

    async def _report_each(
        self, connection: AsyncConnection, runs: Sequence[Run]
    ) -> list[Run]:
        """Report one by one; returns those that another session holds."""
        return [run for run in runs if not await self._report_one(connection, run)]

    async def _report_one(self, connection: AsyncConnection, run: Run) -> bool:
        """Report one run; what the server refuses for good becomes a failure.

        False when another session holds it.
        """
        while True:
            assert run.outcome is not None
            query, values = call_of(run.job, run.outcome)
            try:
                await connection.execute(query, values)
                return True
            except psycopg.Error as error:
                if errors.is_held(error):
                    words = "cannot be reported yet: another session holds it"
                    log_job(logging.WARNING, run.job, words, worker=self._worker)
                    return False
                known = errors.describe(error)
                if isinstance(known, errors.LeaseLost):
                    self._log_lost(run.job)
                    return True
                if not is_about_data(error):
                    raise
                if not self._replace(run, known.message):
                    return True

    def _replace(self, run: Run, why: str) -> bool:
        """Give the run an outcome that can be reported; False when there is none."""
        assert run.outcome is not None
        instead = outcomes.refused(run.outcome, why)
        if instead is None:
            words = f"cannot be reported, its lease lapses: {why}"
            log_job(logging.ERROR, run.job, words, worker=self._worker)
            return False
        run.outcome = instead
        words = f"fails instead, since its report was refused: {why}"
        log_job(logging.WARNING, run.job, words, worker=self._worker)
        return True

    def _log_lost(self, job: Job) -> None:
        words = "had lost its lease when it was reported; its result is dropped"
        log_job(logging.WARNING, job, words, worker=self._worker)


def is_about_data(error: psycopg.Error) -> bool:
    """Whether these values are refused, here or elsewhere, now or later."""
    if (errors.sqlstate_of(error) or "").startswith("54"):
        return True
    return isinstance(errors.describe(error), (errors.InvalidArgument, errors.TooLarge))


def in_parts(runs: Sequence[Run]) -> list[list[Run]]:
    """At least one part, none much larger than a statement should be."""
    parts: list[list[Run]] = [[]]
    size = 0
    for run in runs:
        assert run.outcome is not None
        if size > LARGEST_PART:
            parts.append([])
            size = 0
        if run.outcome is not outcomes.COMPLETE:
            size += run.outcome.size
        parts[-1].append(run)
    return parts


def call_of(job: Job, outcome: Outcome) -> tuple[LiteralString, dict[str, Any]]:
    lease = {"lease": job.lease}
    if outcome.verb == "complete":
        return sql.COMPLETE, {**lease, "result": outcome.result}
    if outcome.verb == "snooze":
        return sql.SNOOZE, {**lease, "delay": outcome.delay}
    if outcome.verb == "ack_cancel":
        return sql.ACK_CANCEL, lease
    if outcome.verb == "release":
        return sql.RELEASE, {"leases": [job.lease]}
    return sql.FAIL, {
        **lease,
        "error": outcome.error,
        "retry_in": outcome.delay,
        "fatal": outcome.fatal,
    }
