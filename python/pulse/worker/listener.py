"""Waking up and upkeep: the worker's side connection, on the event loop.

It LISTENs, and while a lane has nothing to do it holds the bell of that lane, so that
an enqueue knows that somebody sleeps. A bell is armed only after LISTEN proved itself:
a probe sent from another connection must arrive here. Behind PgBouncer in transaction
mode it does not, and polling has to do.

The same connection says hello and ticks, so neither stands in the way of a claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from pulse import connections
from pulse.logs import say
from pulse.sql import worker as sql
from pulse.worker import connector as sessions

LOOK_AGAIN_AFTER = 0.1
HELLO_EVERY = 30.0
TICK_EVERY = 1.0
TICK_SELDOM = 5.0
DISARM_AFTER = 0.05
LIVELY_RINGS = 100
"""So many rings in a second, and polling costs everybody less than ringing."""


class Side:
    """Rings when a job may be there; told by sleep and wake which lanes are idle."""

    def __init__(
        self,
        source: sessions.Source,
        lanes: Sequence[str],
        kinds: Sequence[str],
        ring: Callable[[], None],
        limit: Callable[[str, int], None],
        ticks: bool = True,
        listens: bool = True,
    ) -> None:
        self._source = source
        self._lanes = list(lanes)
        self._kinds = list(kinds)
        self._ring = ring
        self._limit = limit
        self._ticks = ticks
        self._listens = listens
        self._connection: sessions.AsyncConnection | None = None
        self._wanted: set[str] = set()
        self._armed: set[str] = set()
        self._proved = False
        self._changed = asyncio.Event()
        self._rings: deque[float] = deque(maxlen=LIVELY_RINGS)
        self._next_hello = 0.0
        self._next_tick = 0.0
        self._said_deaf = False
        self._said_alone = False

    # -- for the coordinator ------------------------------------------------------

    def sleep(self, lane: str) -> None:
        """Nothing to do in this lane: arm its bell."""
        if lane not in self._wanted:
            self._wanted.add(lane)
            self._changed.set()

    def wake(self, lane: str) -> None:
        """There is plenty to do: no need to be rung."""
        if lane in self._wanted:
            self._wanted.discard(lane)
            self._changed.set()

    @property
    def lively(self) -> bool:
        """Whether it rang so often just now that polling is cheaper."""
        rings = self._rings
        return len(rings) == LIVELY_RINGS and time.monotonic() - rings[0] < 1

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
                        await self._do_due()
                        failures = 0
                        await self._wait()
                except (psycopg.Error, OSError) as error:
                    await self._hang_up()
                    failures += 1
                    say(
                        logging.DEBUG,
                        f"the side connection broke: {error}",
                        worker=self._source.worker,
                    )
                    await asyncio.sleep(connections.backoff(failures))
        finally:
            await self._hang_up()

    async def _open(self) -> None:
        self._connection = await self._source.open_async("side")
        if self._listens:
            await self._listen(self._connection)
            self._attend()

    async def _listen(self, connection: sessions.AsyncConnection) -> None:
        async with await self._source.open_async("probe") as other:
            self._proved = await connections.listen(
                connection, sql.CHANNEL, other.execute
            )
        connection.add_notify_handler(self._notified)
        if not self._proved and not self._said_deaf:
            self._said_deaf = True
            say(
                logging.WARNING,
                "LISTEN receives nothing here (a pooler in transaction mode?): "
                "polling instead. Jobs start a little later. Fix: a DSN that leads "
                "straight to PostgreSQL.",
                worker=self._source.worker,
            )

    async def _do_due(self) -> None:
        now = time.monotonic()
        if self._proved:
            await self._settle()
        if now >= self._next_hello:
            values = {"lanes": self._lanes, "kinds": self._kinds}
            for row in await self._execute(
                sql.HELLO, worker=self._source.worker, **values
            ):
                self._limit(*row)
            self._next_hello = now + HELLO_EVERY * random.uniform(1.0, 1.1)
        if self._ticks and now >= self._next_tick:
            await self._tick()

    async def _settle(self) -> None:
        """Arm and disarm until it is as the coordinator wants it."""
        wanted = set() if self.lively else set(self._wanted)
        for lane in wanted - self._armed:
            rows = await self._execute(sql.ARM_BELL, lane=lane)
            if rows and rows[0][0]:
                self._armed.add(lane)
                # Who tested the bell before it was armed commits about now.
                self._ring()
                asyncio.get_running_loop().call_later(LOOK_AGAIN_AFTER, self._ring)
        for lane in self._armed - wanted:
            await self._execute(sql.DISARM_BELL, lane=lane)
            self._armed.discard(lane)

    async def _tick(self) -> None:
        rows = await self._execute(sql.TICK)
        steps = {row[0] for row in rows}
        # Who finds nothing to do shares the work with others and may come less often.
        pause = TICK_EVERY if steps else TICK_SELDOM
        self._next_tick = time.monotonic() + pause * random.uniform(0.9, 1.1)
        for step, _, error in rows:
            if error:
                say(logging.ERROR, f"upkeep: {step} failed: {error}", step=step)
        if "reap" in steps and not self._said_alone:
            self._said_alone = True
            say(
                logging.WARNING,
                "no watchdog has ticked lately: the workers do the upkeep. For a "
                "watchdog that works without them: SELECT pulse.start_watchdog();",
                worker=self._source.worker,
            )

    async def _wait(self) -> None:
        due = min(self._next_hello, self._next_tick if self._ticks else float("inf"))
        pause = max(0.0, due - time.monotonic())
        if self._proved and self._wanted - self._armed:
            # Not armed because it was lively: until that is over.
            pause = min(pause, 1.0)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), pause)
        if self._changed.is_set() and not self._wanted - self._armed:
            # Only to be disarmed: it may be wanted again in a moment.
            await asyncio.sleep(DISARM_AFTER)
        self._changed.clear()

    # -- the connection ---------------------------------------------------------------

    async def _execute(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        self._ignore()
        try:
            cursor = await self._connection.execute(query, values or None)
            return await cursor.fetchall() if cursor.description else []
        finally:
            self._attend()

    def _attend(self) -> None:
        """Watch the socket while no query does: psycopg watches it itself then."""
        connection = self._connection
        if self._listens and connection is not None and not connection.closed:
            loop = asyncio.get_running_loop()
            loop.add_reader(connection.fileno(), self._readable, connection)

    def _ignore(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            asyncio.get_running_loop().remove_reader(connection.fileno())

    def _readable(self, connection: sessions.AsyncConnection) -> None:
        try:
            connection.pgconn.consume_input()
            while (notify := connection.pgconn.notifies()) is not None:
                self._heard(notify.extra.decode("utf-8", "replace"))
            broken = connection.pgconn.status != psycopg.pq.ConnStatus.OK
        except psycopg.Error:
            broken = True
        if broken:
            # The task finds out with its next query, which is now.
            self._ignore()
            self._next_hello = 0.0
            self._changed.set()

    def _notified(self, notify: psycopg.Notify) -> None:
        self._heard(notify.payload)

    def _heard(self, payload: str) -> None:
        if payload in self._armed:
            if self.lively:
                # Polling has taken over; the bell is about to be disarmed.
                return
            self._rings.append(time.monotonic())
            self._ring()
            if self.lively:
                self._changed.set()

    async def _hang_up(self) -> None:
        self._ignore()
        self._armed.clear()
        self._proved = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
