"""The listener: a connection on the event loop for bells, hello and upkeep.

While a lane has no job, the worker keeps the bell of that lane armed: an enqueue that
finds it armed sends a notification. A bell is armed only after LISTEN was proved to
work here (connections.listen). Behind PgBouncer in transaction mode it does not, and
the coordinator polls.

The same connection calls hello and tick, so that neither delays a claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from pulse import connections, errors
from pulse.logs import log_event
from pulse.sql import worker as sql
from pulse.worker.connector import AsyncConnection, Connector

if TYPE_CHECKING:
    from typing_extensions import LiteralString

CLAIM_AGAIN_AFTER = 0.1
HELLO_EVERY = 30.0
TICK_EVERY = 1.0
TICK_SELDOM = 5.0
DISARM_AFTER = 0.05
BUSY_RINGS = 100
"""So many rings in a second, and polling costs all sides less than bells."""


class Listener:
    """Calls ring with a lane that may have a job, of those that arm names."""

    def __init__(
        self,
        connector: Connector,
        lanes: Sequence[str],
        kinds: Sequence[str],
        ring: Callable[[str], None],
        learn: Callable[[str, int, bool], None],
        ticks: bool = True,
        listens: bool = True,
    ) -> None:
        self._connector = connector
        self._lanes = list(lanes)
        self._kinds = list(kinds)
        self._ring = ring
        self._learn = learn
        self._ticks = ticks
        self._listens = listens
        self._connection: AsyncConnection | None = None
        self._wanted: set[str] = set()
        self._armed: set[str] = set()
        self._listening = False
        self._changed = asyncio.Event()
        self._rings: deque[float] = deque(maxlen=BUSY_RINGS)
        self._next_hello = 0.0
        self._next_tick = 0.0
        self._warned_no_listen = False
        self._warned_no_watchdog = False
        self._failing: dict[str, str] = {}

    # -- for the coordinator ----------------------------------------------------------

    def arm(self, lane: str) -> None:
        """The lane has no job: the next one is to ring."""
        if lane not in self._wanted:
            self._wanted.add(lane)
            self._changed.set()

    def disarm(self, lane: str) -> None:
        """The lane has jobs enough: a bell would cost enqueues for nothing."""
        if lane in self._wanted:
            self._wanted.discard(lane)
            self._changed.set()

    @property
    def is_busy(self) -> bool:
        """Whether bells rang so often within a second that polling is cheaper."""
        rings = self._rings
        return len(rings) == BUSY_RINGS and time.monotonic() - rings[0] < 1

    @property
    def armed(self) -> frozenset[str]:
        return frozenset(self._armed)

    # -- the task ---------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        try:
            while True:
                try:
                    await self._open()
                    while True:
                        await self._run_due()
                        failures = 0
                        await self._wait()
                except (psycopg.Error, OSError) as error:
                    if self._connection is None or self._connection.closed:
                        # The coordinator warns of a server that cannot be reached.
                        self._log(logging.DEBUG, f"the listener's connection: {error}")
                    else:
                        self._note("hello", error)
                    await self._disconnect()
                    failures += 1
                    await asyncio.sleep(connections.backoff(failures))
        finally:
            await self._disconnect()

    async def _open(self) -> None:
        self._connection = await self._connector.open_async("listener")
        if self._listens:
            await self._listen(self._connection)
            self._watch_socket()

    async def _listen(self, connection: AsyncConnection) -> None:
        async with await self._connector.open_async("probe") as other:
            self._listening = not await connections.share_a_backend(
                connection, other
            ) and await connections.listen(connection, sql.CHANNEL, other.execute)
        connection.add_notify_handler(self._notified)
        if not self._listening and not self._warned_no_listen:
            self._warned_no_listen = True
            self._log(
                logging.WARNING,
                "LISTEN receives nothing here (a pooler in transaction mode?): "
                "polling instead. Jobs start a little later. Fix: a DSN that leads "
                "straight to PostgreSQL.",
            )

    async def _run_due(self) -> None:
        now = time.monotonic()
        if self._listening:
            await self._set_bells()
        if now >= self._next_hello:
            values = {"lanes": self._lanes, "kinds": self._kinds}
            for row in await self._execute(
                sql.HELLO, worker=self._connector.worker, **values
            ):
                self._learn(*row)
            self._next_hello = now + HELLO_EVERY * random.uniform(1.0, 1.1)
            self._note("hello", None)
        if self._ticks and now >= self._next_tick:
            await self._tick()

    async def _set_bells(self) -> None:
        """Arm and disarm what the coordinator has asked for."""
        wanted = set() if self.is_busy else set(self._wanted)
        for lane in wanted - self._armed:
            rows = await self._execute(sql.ARM_BELL, lane=lane)
            if rows and rows[0][0]:
                self._armed.add(lane)
                # An enqueue that found the bell not armed yet commits about now.
                self._ring(lane)
                loop = asyncio.get_running_loop()
                loop.call_later(CLAIM_AGAIN_AFTER, self._ring, lane)
        for lane in self._armed - wanted:
            await self._execute(sql.DISARM_BELL, lane=lane)
            self._armed.discard(lane)

    async def _tick(self) -> None:
        try:
            rows = await self._do_upkeep()
        except psycopg.Error as error:
            self._note("tick", error)
            if self._connection is None or self._connection.closed:
                raise
            self._next_tick = time.monotonic() + TICK_SELDOM
            return
        self._note("tick", None)
        steps = {row[0] for row in rows}
        # Nothing to do: others do the upkeep, so this one may tick less often.
        pause = TICK_EVERY if steps else TICK_SELDOM
        self._next_tick = time.monotonic() + pause * random.uniform(0.9, 1.1)
        for step, _, failed in rows:
            self._note(step, failed)
        if "reap" in steps and not self._warned_no_watchdog:
            self._warned_no_watchdog = True
            [(can_have_one,)] = await self._execute(sql.CAN_HAVE_WATCHDOG)
            if can_have_one:
                self._log(
                    logging.WARNING,
                    "no watchdog has ticked lately: the workers do the upkeep. For a "
                    "watchdog that works without them: SELECT pulse.start_watchdog();",
                )

    async def _do_upkeep(self) -> list[tuple[Any, ...]]:
        """Send settings and tick together: the server commits without the client."""
        assert self._connection is not None
        with self._unwatched():
            # A prepared statement cannot hold two statements.
            cursor = await self._connection.execute(sql.UPKEEP, prepare=False)
            cursor.nextset()  # From the row of the settings to those of tick.
            return await cursor.fetchall()

    def _note(self, step: str, error: BaseException | str | None) -> None:
        """Warn when a step begins to fail or fails otherwise, not each time."""
        before = self._failing.get(step)
        if error is None:
            if self._failing.pop(step, None) is not None:
                self._log(logging.INFO, f"upkeep: {step} works again", step=step)
            return
        # Messages may name a process or a moment: the code says what went wrong. tick
        # writes it before the message.
        code = error if isinstance(error, str) else errors.sqlstate_of(error)
        self._failing[step] = (code or type(error).__name__)[:5]
        if self._failing[step] != before:
            self._log(
                logging.WARNING,
                f"upkeep: {step} failed: {str(error).strip()}",
                step=step,
            )

    async def _wait(self) -> None:
        due = min(self._next_hello, self._next_tick if self._ticks else float("inf"))
        pause = max(0.0, due - time.monotonic())
        if self._listening and self._wanted - self._armed:
            # Not armed because it was busy: until that is over.
            pause = min(pause, 1.0)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), pause)
        if self._changed.is_set() and not self._wanted - self._armed:
            # Only to be disarmed: the coordinator may arm it again in a moment.
            await asyncio.sleep(DISARM_AFTER)
        self._changed.clear()

    # -- the connection ---------------------------------------------------------------

    async def _execute(
        self, query: LiteralString, **values: object
    ) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        with self._unwatched():
            cursor = await self._connection.execute(query, values or None)
            return await cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        self._unwatch_socket()
        try:
            yield
        finally:
            self._watch_socket()

    def _watch_socket(self) -> None:
        """Read notifications between statements; during one psycopg does."""
        connection = self._connection
        if self._listens and connection is not None and not connection.closed:
            loop = asyncio.get_running_loop()
            loop.add_reader(connection.fileno(), self._readable, connection)

    def _unwatch_socket(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            asyncio.get_running_loop().remove_reader(connection.fileno())

    def _readable(self, connection: AsyncConnection) -> None:
        try:
            connection.pgconn.consume_input()
            while (notify := connection.pgconn.notifies()) is not None:
                self._on_notification(notify.extra.decode("utf-8", "replace"))
            broken = connection.pgconn.status != psycopg.pq.ConnStatus.OK
        except psycopg.Error:
            broken = True
        if broken:
            # The next statement of the task fails: make it due now.
            self._unwatch_socket()
            self._next_hello = 0.0
            self._changed.set()

    def _notified(self, notify: psycopg.Notify) -> None:
        self._on_notification(notify.payload)

    def _on_notification(self, payload: str) -> None:
        if payload in self._armed:
            if self.is_busy:
                # Polling has taken over; the bell is about to be disarmed.
                return
            self._rings.append(time.monotonic())
            self._ring(payload)
            if self.is_busy:
                self._changed.set()

    async def _disconnect(self) -> None:
        self._unwatch_socket()
        self._armed.clear()
        self._listening = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _log(self, level: int, message: str, **fields: Any) -> None:
        if self._connector.place:
            message = f"{self._connector.place}: {message}"
        log_event(level, message, worker=self._connector.worker, **fields)
