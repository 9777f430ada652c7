"""One query of the database for all clients.

While a client follows, one connection LISTENs for progress and polls once a second;
each client only waits at its mailbox. So 200 clients send the database the same
statements as one, and no client none. Where no notification arrives (a pooler in
transaction mode) the poll of each second still shows progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from pulse import connections
from pulse.web import queries
from pulse.web.database import Connection, Database, begin
from pulse.web.live.listening import listen
from pulse.web.live.mailbox import Mailbox, event
from pulse.web.problems import Problem

log = logging.getLogger("pulse.web")

POLL_EVERY = 1.0
# Progress that comes faster is sent together.
PROGRESS_EVERY = 0.1
SUMMARY_EVERY = 5.0
MOST_STREAMS = 1000
# So that one token, or one user, cannot take all of them.
MOST_STREAMS_OF_ONE = MOST_STREAMS // 4
ENDED = frozenset({"completed", "dead", "cancelled"})
# They grow by themselves; a client counts on from the last value that it got.
CLOCKS = ("oldest_ready_seconds", "running_seconds")


class Hub:
    """The clients that follow a stream, and the task that polls for them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._overviews: set[Mailbox] = set()
        self._jobs: dict[int, set[Mailbox]] = {}
        self._streams: Counter[str] = Counter()
        self._sent: dict[int, bytes] = {}
        self._overview: bytes | None = None
        self._compared = ""
        self._summary: bytes | None = None
        self._summary_due = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        # How often it has polled, and whether LISTEN works on this connection.
        self.polls = 0
        self.listening = False

    # -- clients ----------------------------------------------------------------------

    @contextlib.contextmanager
    def overview(self, follower: str) -> Iterator[Mailbox]:
        """Follow everything; the caller was checked to have the right."""
        with self._mailbox(follower) as mailbox:
            self._overviews.add(mailbox)
            if self._overview is not None:
                mailbox.put("overview", self._overview)
            if self._summary is not None:
                mailbox.put("summary", self._summary)
            self._start()
            try:
                yield mailbox
            finally:
                self._overviews.discard(mailbox)
                if not self._overviews:
                    # The next client must not get an old picture.
                    self._forget_overview()
                self._stop_if_idle()

    @contextlib.contextmanager
    def job(
        self,
        follower: str,
        job_id: int,
        seen: Mapping[str, Any],
        *,
        brief: bool = False,
    ) -> Iterator[Mailbox]:
        """Follow one job, which the caller has just read.

        brief: they see it only while it awaits approval, then get the state it took.
        """
        with self._mailbox(follower, brief=brief) as mailbox:
            watching = self._jobs.setdefault(job_id, set())
            watching.add(mailbox)
            first = event("job", seen)
            mailbox.put("job", first)
            if self._sent.setdefault(job_id, first) != first:
                # Others know more, perhaps its end: the next poll sends it to all.
                del self._sent[job_id]
            if seen["state"] in ENDED:
                mailbox.put("end", event("end", seen))
            self._start()
            try:
                yield mailbox
            finally:
                watching.discard(mailbox)
                if not watching:
                    self._jobs.pop(job_id, None)
                    self._sent.pop(job_id, None)
                self._stop_if_idle()

    @contextlib.contextmanager
    def _mailbox(self, follower: str, *, brief: bool = False) -> Iterator[Mailbox]:
        if self._closing or self._streams.total() >= MOST_STREAMS:
            raise Problem(503, "no more streams", f"At most {MOST_STREAMS} at once.")
        if self._streams[follower] >= MOST_STREAMS_OF_ONE:
            raise Problem(
                429,
                "too many streams of this token or user",
                f"At most {MOST_STREAMS_OF_ONE} at once.",
            )
        self._streams[follower] += 1
        try:
            yield Mailbox(brief=brief)
        finally:
            self._streams[follower] -= 1
            if not self._streams[follower]:
                del self._streams[follower]

    @property
    def clients(self) -> int:
        return len(self._overviews) + sum(map(len, self._jobs.values()))

    def _mailboxes(self) -> set[Mailbox]:
        return self._overviews.union(*self._jobs.values())

    async def close(self) -> None:
        """End every stream at once."""
        self._closing = True
        for mailbox in self._mailboxes():
            mailbox.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- the task ---------------------------------------------------------------------

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pulse web hub")

    def _stop_if_idle(self) -> None:
        if not self.clients and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        failures = 0
        while True:
            self.listening = False
            try:
                async with self._database.listener() as connection:
                    await self._poll(connection)
                    self.listening = await listen(connection, self._database)
                    failures = 0
                    while True:
                        await self._wait(connection)
                        await self._poll(connection)
            except (psycopg.Error, OSError) as error:
                failures += 1
                log.warning("streams: the database does not answer: %s", error)
                self._send_all("trouble", {"detail": str(error).strip()})
                self._forget_overview()
                self._sent.clear()
                await asyncio.sleep(connections.backoff(failures))
            except Exception:
                log.exception("streams: a bug")
                await asyncio.sleep(POLL_EVERY)

    async def _wait(self, connection: Connection) -> None:
        """Until the next poll; progress of a followed job is sent before."""
        due = time.monotonic() + POLL_EVERY
        while (left := due - time.monotonic()) > 0:
            notified: set[int] = set()
            async for notify in connection.notifies(timeout=left, stop_after=1):
                notified |= self._followed(notify.payload)
            if notified:
                pause = min(PROGRESS_EVERY, max(0.0, due - time.monotonic()))
                async for notify in connection.notifies(timeout=pause):
                    notified |= self._followed(notify.payload)
                await self._poll_jobs(connection, notified)

    def _followed(self, payload: str) -> set[int]:
        # Any session may send any payload, also a number that int refuses to read.
        job_id = int(payload) if payload.isdecimal() and len(payload) < 20 else -1
        return {job_id} if job_id in self._jobs else set()

    # -- polling ----------------------------------------------------------------------

    async def _poll(self, connection: Connection) -> None:
        if self._overviews:
            async with connection.transaction():
                session = await begin(connection, None, read_only=True)
                row = await session.one(queries.OVERVIEW, lane=None)
            assert row is not None
            self._send_overview(row)
            if time.monotonic() >= self._summary_due:
                await self._poll_summary(connection)
        if self._jobs:
            await self._poll_jobs(connection, set(self._jobs))
        self.polls += 1

    def _send_overview(self, row: dict[str, Any]) -> None:
        for lane in row["lanes"]:
            del lane["settings"]
        # The next client gets this one, with the current time.
        self._overview = event("overview", row)
        compared = without_clocks(row)
        if compared == self._compared:
            return
        self._compared = compared
        for mailbox in self._overviews:
            mailbox.put("overview", self._overview)

    async def _poll_summary(self, connection: Connection) -> None:
        async with connection.transaction():
            session = await begin(connection, None, read_only=True)
            row = await session.one(queries.SUMMARY, **queries.SUMMARY_VALUES)
        assert row is not None
        self._summary_due = time.monotonic() + SUMMARY_EVERY
        self._summary = event("summary", row)
        for mailbox in self._overviews:
            mailbox.put("summary", self._summary)

    def _forget_overview(self) -> None:
        self._overview, self._compared = None, ""
        self._summary, self._summary_due = None, 0.0

    async def _poll_jobs(self, connection: Connection, job_ids: set[int]) -> None:
        async with connection.transaction():
            session = await begin(connection, None, read_only=True)
            rows = await session.rows(queries.WATCHED, job_ids=sorted(job_ids))
        found = {int(row["job_id"]): row for row in rows}
        for job_id in job_ids:
            # A job that was deleted has ended as well.
            gone = {"job_id": str(job_id), "state": None}
            self._send_job(job_id, found.get(job_id, gone))

    def _send_job(self, job_id: int, row: Mapping[str, Any]) -> None:
        message = event("job", row)
        if self._sent.get(job_id) == message or job_id not in self._jobs:
            return
        self._sent[job_id] = message
        ended = row["state"] is None or row["state"] in ENDED
        decided = row["state"] != "awaiting_approval"
        for mailbox in self._jobs[job_id]:
            if mailbox.brief and decided:
                state = {"job_id": row["job_id"], "state": row["state"]}
                mailbox.put("end", event("end", state))
                continue
            mailbox.put("job", message)
            if ended:
                mailbox.put("end", event("end", row))

    def _send_all(self, name: str, data: Mapping[str, Any]) -> None:
        message = event(name, data)
        for mailbox in self._mailboxes():
            mailbox.put(name, message)


def without_clocks(row: Mapping[str, Any]) -> str:
    """Return an overview as text, without the values that change with time alone."""
    timeless = {
        name: [{k: v for k, v in each.items() if k not in CLOCKS} for each in row[name]]
        for name in ("lanes", "running")
    }
    return json.dumps([timeless, row["workers"], row["paused"]])
