"""Wakeups of the loop: the end of a run, a notification, or the next poll.

The loop sleeps on a Wakeup. Runs set it from any thread when they end. The Listener
sets it when the server has a job for an idle lane: while a lane has no job, the
listener keeps a notification armed for it, and an enqueue that finds it armed sends
NOTIFY. It is armed only after LISTEN was proved to work here (connections.listen).
Behind PgBouncer in transaction mode it does not work, and the loop polls instead.

The listener's connection also calls hello, which registers the worker and returns the
settings of its lanes, and tick, the maintenance. So neither delays a claim.
Maintenance decides when to call tick and logs the steps that fail. RateLimits finds
out when a lane that has used up its rate may be claimed from again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from pulse import connections, errors
from pulse.logs import log_event
from pulse.sql import worker as sql
from pulse.worker.connection import Connector
from pulse.worker.statement import WorkerConnection

if TYPE_CHECKING:
    from typing_extensions import LiteralString

    from pulse.worker.protocol import Exchange
    from pulse.worker.runs import Slots

CLAIM_AGAIN_AFTER = 0.1
HELLO_EVERY = 30.0
TICK_EVERY = 1.0
TICK_SELDOM = 5.0
DISARM_AFTER = 0.05
# With so many notifications in a second, polling costs both sides less.
BUSY_NOTIFICATIONS = 100
# A lane with a rate is asked again within these times, whatever the server says.
SHORTEST_RATE_PAUSE = 0.005
LONGEST_RATE_PAUSE = 60.0


class Wakeup:
    """The event that the loop waits on, and the lanes to ask for when it wakes."""

    def __init__(self) -> None:
        self.poll_at = 0.0
        """When to claim from all lanes, by the clock of the event loop; 0 is now."""
        self.notified: set[str] = set()
        """Lanes that may have a job."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()

    def set(self) -> None:
        """From any thread: wake the loop."""
        if threading.get_ident() == self._thread:
            self._event.set()
        else:
            self.call_soon(self._event.set)

    def call_soon(self, function: Callable[[], None]) -> None:
        """From any thread: call this on the event loop."""
        if threading.get_ident() == self._thread:
            self._loop.call_soon(function)
            return
        with contextlib.suppress(RuntimeError):  # A stop did not wait for this thread.
            self._loop.call_soon_threadsafe(function)

    def notify(self, lane: str) -> None:
        """Claim from this lane now."""
        self.notified.add(lane)
        self._event.set()

    def poll_now(self) -> None:
        """Claim from all lanes now."""
        self.poll_at = 0.0
        self._event.set()

    async def wait(self, until: float | None) -> None:
        """Wait until it is set, or until this moment; clear does not come with it."""
        timer = None
        if until is not None:
            timer = self._loop.call_at(until, self._event.set)
        await self._event.wait()
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        self._event.clear()


class RateLimits:
    """When a lane that gave no job may give one again, by its rate."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._limited: set[str] = set()
        self._polled_immediately: set[str] = set()

    def set_limited(self, lane: str, limited: bool) -> None:
        (self._limited.add if limited else self._limited.discard)(lane)

    async def pauses(
        self, wants: Mapping[str, int], got: Mapping[str, int]
    ) -> dict[str, float]:
        """In how many seconds lanes with a rate may have a job again."""
        pauses: dict[str, float] = {}
        for lane in wants:
            if lane not in self._limited or got.get(lane):
                continue
            try:
                seconds = await self._exchange.next_in(lane)
            except (psycopg.Error, OSError):
                break  # The next exchange has the same error, and logs it.
            immediately = seconds is not None and seconds <= 0
            again = lane in self._polled_immediately
            if seconds is not None and not (immediately and again):
                pauses[lane] = min(
                    max(seconds, SHORTEST_RATE_PAUSE), LONGEST_RATE_PAUSE
                )
            # Once in a row: then something else holds it back, slots or a pause.
            if immediately and not again:
                self._polled_immediately.add(lane)
            else:
                self._polled_immediately.discard(lane)
        return pauses


class Maintenance:
    """When to call tick, and which of its steps fail."""

    def __init__(self, connector: Connector) -> None:
        self.next_tick = 0.0
        """By the monotonic clock."""
        self._connector = connector
        self._warned_no_watchdog = False
        self._failing: dict[str, str] = {}

    async def tick(self, connection: WorkerConnection) -> None:
        """Call tick; raises an error only when that has closed the connection."""
        try:
            # A prepared statement cannot hold two statements.
            cursor = await connection.execute(sql.MAINTENANCE, prepare=False)
            cursor.nextset()  # From the row of the settings to those of tick.
            rows = await cursor.fetchall()
        except psycopg.Error as error:
            self.note("tick", error)
            if connection.closed:
                raise
            self.next_tick = time.monotonic() + TICK_SELDOM
            return
        self.note("tick", None)
        steps = {row[0] for row in rows}
        # Nothing to do: others do the maintenance, so this one may tick less often.
        pause = TICK_EVERY if steps else TICK_SELDOM
        self.next_tick = time.monotonic() + pause * random.uniform(0.9, 1.1)
        for step, _, failed in rows:
            self.note(step, failed)
        if "reap" in steps and not self._warned_no_watchdog:
            self._warned_no_watchdog = True
            await self._advise_watchdog(connection)

    async def _advise_watchdog(self, connection: WorkerConnection) -> None:
        cursor = await connection.execute(sql.CAN_HAVE_WATCHDOG)
        if await cursor.fetchone() == (True,):
            message = (
                "no watchdog has ticked lately: the workers do the maintenance. For a "
                "watchdog that works without them: SELECT pulse.start_watchdog();"
            )
            log_at(self._connector, logging.WARNING, message)

    def note(self, step: str, error: BaseException | str | None) -> None:
        """Warn when a step begins to fail or fails otherwise, not each time."""
        before = self._failing.get(step)
        if error is None:
            if self._failing.pop(step, None) is not None:
                message = f"maintenance: {step} works again"
                log_at(self._connector, logging.INFO, message, step=step)
            return
        # Messages may name a process or a moment, so errors are compared by their
        # code. tick writes the code before the message.
        code = error if isinstance(error, str) else errors.sqlstate_of(error)
        self._failing[step] = (code or type(error).__name__)[:5]
        if self._failing[step] != before:
            message = f"maintenance: {step} failed: {str(error).strip()}"
            log_at(self._connector, logging.WARNING, message, step=step)


def log_at(connector: Connector, level: int, message: str, **fields: Any) -> None:
    """Log for one worker; a worker of several databases names the database."""
    if connector.label:
        message = f"{connector.label}: {message}"
    log_event(level, message, worker=connector.worker, **fields)


class Listener:
    """Notifies the loop of lanes that may have a job; calls hello and tick."""

    def __init__(
        self,
        connector: Connector,
        lanes: Sequence[str],
        kinds: Sequence[str],
        wakeup: Wakeup,
        slots: Slots,
        rates: RateLimits,
        ticks: bool = True,
        listens: bool = True,
    ) -> None:
        self._connector = connector
        self._lanes = list(lanes)
        self._kinds = list(kinds)
        self._wakeup = wakeup
        self._slots = slots
        self._rates = rates
        self._maintenance = Maintenance(connector)
        self._ticks = ticks
        self._listens = listens
        self._connection: WorkerConnection | None = None
        self._wanted: set[str] = set()
        self._armed: set[str] = set()
        self._listening = False
        self._changed = asyncio.Event()
        self._notifications: deque[float] = deque(maxlen=BUSY_NOTIFICATIONS)
        self._next_hello = 0.0
        self._warned_no_listen = False

    # -- for the loop -----------------------------------------------------------------

    def arm(self, lane: str) -> None:
        """The lane has no job: the next enqueue is to send a notification."""
        if lane not in self._wanted:
            self._wanted.add(lane)
            self._changed.set()

    def disarm(self, lane: str) -> None:
        """The lane has jobs: notifications would cost every enqueue for nothing."""
        if lane in self._wanted:
            self._wanted.discard(lane)
            self._changed.set()

    @property
    def is_busy(self) -> bool:
        """Whether so many notifications come that polling is cheaper."""
        times = self._notifications
        return len(times) == BUSY_NOTIFICATIONS and time.monotonic() - times[0] < 1

    def is_armed(self, lane: str) -> bool:
        return lane in self._armed

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
                        # The loop warns of a server that cannot be reached.
                        message = f"the listener's connection: {error}"
                        log_at(self._connector, logging.DEBUG, message)
                    else:
                        self._maintenance.note("hello", error)
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

    async def _listen(self, connection: WorkerConnection) -> None:
        async with await self._connector.open_async("probe") as other:
            self._listening = not await connections.share_a_backend(
                connection, other
            ) and await connections.listen(connection, sql.CHANNEL, other.execute)
        connection.add_notify_handler(self._notified)
        if not self._listening and not self._warned_no_listen:
            self._warned_no_listen = True
            message = (
                "LISTEN receives nothing here (a pooler in transaction mode?): "
                "polling instead. Jobs start a little later. Fix: a DSN that leads "
                "straight to PostgreSQL."
            )
            log_at(self._connector, logging.WARNING, message)

    async def _run_due(self) -> None:
        now = time.monotonic()
        if self._listening:
            await self._arm_and_disarm()
        if now >= self._next_hello:
            await self._hello()
            self._next_hello = now + HELLO_EVERY * random.uniform(1.0, 1.1)
            self._maintenance.note("hello", None)
        if self._ticks and now >= self._maintenance.next_tick:
            assert self._connection is not None
            with self._socket_unwatched():
                await self._maintenance.tick(self._connection)

    async def _hello(self) -> None:
        """Register the worker; the server answers with the settings of its lanes."""
        rows = await self._execute(
            sql.HELLO,
            worker=self._connector.worker,
            lanes=self._lanes,
            kinds=self._kinds,
        )
        for lane, max_batch, rated in rows:
            self._slots.set_max_batch(lane, max_batch)
            self._rates.set_limited(lane, rated)

    async def _arm_and_disarm(self) -> None:
        """Do what the loop has asked for."""
        wanted = set() if self.is_busy else set(self._wanted)
        for lane in wanted - self._armed:
            rows = await self._execute(sql.ARM_BELL, lane=lane)
            if rows and rows[0][0]:
                self._armed.add(lane)
                # An enqueue that found it not armed yet commits about now.
                self._wakeup.notify(lane)
                loop = asyncio.get_running_loop()
                loop.call_later(CLAIM_AGAIN_AFTER, self._wakeup.notify, lane)
        for lane in self._armed - wanted:
            await self._execute(sql.DISARM_BELL, lane=lane)
            self._armed.discard(lane)

    async def _wait(self) -> None:
        due = self._next_hello
        if self._ticks:
            due = min(due, self._maintenance.next_tick)
        pause = max(0.0, due - time.monotonic())
        if self._listening and self._wanted - self._armed:
            # Not armed because too many came: until that is over.
            pause = min(pause, 1.0)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), pause)
        if self._changed.is_set() and not self._wanted - self._armed:
            # Only to be disarmed: the loop may arm it again in a moment.
            await asyncio.sleep(DISARM_AFTER)
        self._changed.clear()

    # -- the connection ---------------------------------------------------------------

    async def _execute(
        self, query: LiteralString, **values: object
    ) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        with self._socket_unwatched():
            cursor = await self._connection.execute(query, values or None)
            return await cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def _socket_unwatched(self) -> Iterator[None]:
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

    def _readable(self, connection: WorkerConnection) -> None:
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

    def _on_notification(self, lane: str) -> None:
        if lane in self._armed:
            if self.is_busy:
                # The loop polls now; this lane is about to be disarmed.
                return
            self._notifications.append(time.monotonic())
            self._wakeup.notify(lane)
            if self.is_busy:
                self._changed.set()

    async def _disconnect(self) -> None:
        self._unwatch_socket()
        self._armed.clear()
        self._listening = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
