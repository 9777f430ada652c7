"""The coordinator: one loop that reports what ended and claims what is free.

A cycle is one pulse.exchange (exchange.py): it reports the runs that ended since the
last one and claims, in each lane, as many jobs as there are free slots (slots.py).
Each job is started on its own (claims.py, executors.py), and the end of any one starts
the next cycle; what ends while the connection is busy is reported together. A large
lane claims for half of its slots at a time: the jobs of one answer are read and
started while the server works on the next exchange.

The loop waits in one place (_wait) and stops in one way (stop, then shutdown.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pulse import errors
from pulse.declarations import Declarations, log_verdicts
from pulse.hooks import AllHooks, Hooks
from pulse.logs import log_event
from pulse.options import Duration
from pulse.sql import operator as sql
from pulse.tasks import Task
from pulse.worker import rates
from pulse.worker.answer import Answer
from pulse.worker.budget import Budget, SharedSlots
from pulse.worker.claims import Claims
from pulse.worker.connection import UNWIND_WITHIN, Admit, Connection
from pulse.worker.connector import Connector
from pulse.worker.exchange import Exchange
from pulse.worker.executors import Executors, Pools
from pulse.worker.heartbeat import Heartbeat
from pulse.worker.listener import Listener
from pulse.worker.probes import Condition, Health, Probes
from pulse.worker.processes import Initializer
from pulse.worker.rates import Rates
from pulse.worker.run import Run
from pulse.worker.shutdown import FLUSH_WITHIN, Shutdown
from pulse.worker.slots import Slots

POLL_SOON = 0.005
BUSY_POLL = 0.01
# Runs that take less than so many exchanges are reported together where they can be.
SHORT_RUN = 2.0
LONGEST_LINGER = 0.002
# Until a job that another session holds is reported again.
HELD_FOR = 1.0


@dataclass(frozen=True)
class Settings:
    connector: Connector
    lanes: Mapping[str, int]
    tasks: Mapping[str, Task[Any, Any]]
    poll_interval: float = 0.5
    lease_for: Duration | None = None
    grace: float = 30.0
    ticks: bool = True
    listens: bool = True
    hooks: Sequence[Hooks] = field(default_factory=tuple)
    process_initializer: Initializer | None = None
    declarations: Declarations | None = None
    health_port: int | None = None


@dataclass(frozen=True)
class Shared:
    """What the coordinators of several databases have in common (fleet.py)."""

    budget: Budget
    pools: Pools
    admit: Admit


class Coordinator:
    def __init__(
        self, settings: Settings, ready: threading.Event, shared: Shared | None = None
    ) -> None:
        connector, kinds = settings.connector, sorted(settings.tasks)
        self._settings = settings
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._hooks = AllHooks(settings.hooks)
        self._shared = shared
        pools = shared.pools if shared else Pools(settings.process_initializer)
        self._slots = self._make_slots(connector.worker)
        self._heartbeat = Heartbeat(connector, self._slots.runs)
        self._executors = Executors(self._loop, self._hooks, self._slots.finish, pools)
        self._connection = Connection(
            *(connector, self._stopped, self._hooks, shared.admit if shared else None)
        )
        self._exchange = Exchange(
            self._connection, connector.worker, kinds, settings.lease_for
        )
        self._rates = Rates(self._exchange)
        self._claims = Claims(
            settings.tasks,
            self._slots,
            self._heartbeat,
            self._executors,
            self._hooks,
            lambda: self.stopping,
        )
        self._listener = Listener(
            connector,
            list(settings.lanes),
            kinds,
            self._hear,
            self._learn,
            ticks=settings.ticks,
            listens=settings.listens,
        )
        self._shutdown = Shutdown(
            *(self._slots, self._executors, self._connection, self._exchange),
            *(self._woken, connector.worker),
        )
        self._poll_at = 0.0
        self._rung: set[str] = set()
        self._exchange_time = 0.0
        self._stop_at: float | None = None
        self.health = Health(self._condition)
        self.probes: Probes | None = None

    def _make_slots(self, worker: str) -> Slots:
        hooks, wake = self._hooks, self._wake
        if self._shared is None:
            return Slots(worker, self._settings.lanes, hooks, wake)
        budget = self._shared.budget
        return SharedSlots(
            *(worker, budget, hooks, wake, self._poll_now),
            is_connected=lambda: self._connection.is_open,
        )

    # -- called by others -------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Stop claiming; a second call may shorten the grace. On the loop only."""
        now = self._loop.time()
        chosen = self._settings.grace if grace is None else grace
        if self._stop_at is None or now + chosen < self._stop_at:
            self._stop_at = now + chosen
            # A server that never answers must not keep it from stopping.
            limit = self._stop_at + FLUSH_WITHIN
            self._loop.call_at(limit, self._connection.cut)
        self._stopped.set()
        self._slots.stop_runs()
        self._executors.stop_waiting()
        self._woken.set()

    @property
    def stopping(self) -> bool:
        return self._stop_at is not None

    def _learn(self, lane: str, max_batch: int, rated: bool) -> None:
        """What hello says of a lane."""
        self._slots.set_max_batch(lane, max_batch)
        self._rates.learn(lane, rated)

    def _hear(self, lane: str) -> None:
        """A bell: this lane may have a job, the others have what they had."""
        self._rung.add(lane)
        if self._shared is not None:
            self._poll_at = 0.0  # Who has no slot for it is to say so.
        self._woken.set()

    def _poll_now(self) -> None:
        self._poll_at = 0.0
        self._woken.set()

    def _wake(self) -> None:
        """From any thread; on the loop's own the event alone is enough."""
        if threading.get_ident() == self._thread:
            self._woken.set()
            return
        with contextlib.suppress(RuntimeError):  # A stop did not wait for this one.
            self._loop.call_soon_threadsafe(self._woken.set)

    # -- the loop ---------------------------------------------------------------------

    async def run(self) -> None:
        self._log(
            logging.INFO,
            f"worker {self._settings.connector.worker} starts: "
            + ", ".join(f"{n} in {lane}" for lane, n in self._settings.lanes.items()),
            kinds=sorted(self._settings.tasks),
        )
        if self._settings.health_port is not None:
            self.probes = Probes(self._settings.health_port, self.health)
        beating = asyncio.create_task(self.health.beat(), name="pulse health")
        try:
            await self.work()
        finally:
            beating.cancel()
            if self.probes is not None:
                await asyncio.to_thread(self.probes.close)

    def _condition(self) -> Condition:
        return Condition(self.connected, self.stopping, self.running)

    @property
    def connected(self) -> bool:
        return self._connection.is_open and self._connection.failures == 0

    @property
    def running(self) -> int:
        return len(self._slots.runs)

    async def work(self) -> None:
        """From the first connection to the last report."""
        try:
            await self._work()
        finally:
            self._slots.leave()

    async def _work(self) -> None:
        await self._connection.wait_for_server()
        await self._declare()
        self._heartbeat.start()
        listening = asyncio.create_task(self._listener.run(), name="pulse listener")
        try:
            while not self.stopping:
                await self._cycle()
                await self._wait()
        finally:
            if self._stop_at is None:
                self.stop(0)
            await self._shutdown.release_unread(self._claims)
            try:
                await self._shutdown.drain(lambda: self._stop_at or 0.0)
            finally:
                listening.cancel()
                await asyncio.wait({listening}, timeout=UNWIND_WITHIN)
                await asyncio.to_thread(self._heartbeat.close, UNWIND_WITHIN)
                if self._shared is None:
                    self._executors.close()
                await self._connection.close()
            connector = self._settings.connector
            words = f"worker {connector.worker} has stopped{connector.at}"
            self._log(logging.INFO, words)

    async def _declare(self) -> None:
        """Have the server make settings and schedules what the application declares."""
        declared = self._settings.declarations
        while declared is not None and not self.stopping:
            try:
                await self._connection.open()
                connection = await self._connection.get()
                cursor = await connection.execute(sql.RECONCILE, declared.arguments())
                log_verdicts(await cursor.fetchall(), self._settings.connector.worker)
                return
            except (psycopg.OperationalError, OSError) as error:
                await self._connection.recover(error)
            except psycopg.Error as error:
                # Jobs run without them. This role may not change settings; pulse
                # reconcile does, when the application is deployed.
                why = errors.describe(error)
                words = f"nothing of what {declared.application} declares was written"
                self._log(logging.ERROR, f"{words}: {why.message}", hint=why.hint)
                return

    async def _cycle(self) -> None:
        # Also where nothing is to be reported: a job that waits has given up its slot.
        ended = bool(self._slots.ended)
        reports = self._slots.collect()
        now = self._loop.time()
        asks_all = ended or now >= self._poll_at
        claims = not self.stopping and (asks_all or bool(self._rung))
        wants: Mapping[str, int] = self._slots.wants() if claims else {}
        if not asks_all:
            wants = {lane: n for lane, n in wants.items() if lane in self._rung}
        self._rung.clear()
        # Beside other databases: one that is back asks for slots when it is connected.
        returns = claims and self._shared is not None and not self._connection.is_open
        if not (reports or wants or returns):
            self._claims.start_all()
            self._poll_later(claims)
            return
        try:
            if not self._connection.is_open:
                self._claims.start_all()
                await self._connection.open()
            if wants or returns:
                wants = self._slots.reserve(wants)
            if wants and asks_all:
                # A poll asked for from here on: for a job this claim may not see.
                self._poll_at = math.inf
            answer = await self._send(reports, wants)
        except (psycopg.Error, OSError) as error:
            self._slots.requeue(reports)
            self._slots.withdraw()
            await self._connection.recover(error)
            self._poll_at = 0.0
            return
        except BaseException:
            self._slots.requeue(reports)
            self._slots.withdraw()
            raise
        if self._connection.failures:
            self._connection.note_answer()
        self._ready.set()
        took = self._loop.time() - now
        self._exchange_time += (took - self._exchange_time) / 8
        self._slots.confirm(reports, answer.refused, answer.held)
        if answer.held:
            self._loop.call_later(HELD_FOR, self._slots.retry_held)
        self._claims.accept(answer, took)
        if wants:
            waits = await self._rates.ask(wants, answer.lanes)
            self._schedule_poll(wants, answer.lanes, waits)
        else:
            self._poll_later(claims)
        if not self._sends_at_once:
            self._claims.start_all()

    def _poll_later(self, claims: bool) -> None:
        """Beside other databases: none of their slots was free for this one."""
        now = self._loop.time()
        if claims and self._shared is not None and self._poll_at <= now:
            pause = self._settings.poll_interval * random.uniform(0.9, 1.1)
            self._poll_at = now + pause
            self._slots.miss()

    async def _send(self, reports: list[Run], wants: Mapping[str, int]) -> Answer:
        """Exchange; while the server works, read and start the jobs it gave before."""
        if not self._claims.unread:
            return await self._exchange.send(reports, wants)
        sending = asyncio.ensure_future(self._exchange.send(reports, wants))
        try:
            await asyncio.sleep(0)  # Until the statement is sent.
            self._claims.start_all()
            return await sending
        finally:
            sending.cancel()

    @property
    def _sends_at_once(self) -> bool:
        """Whether the next exchange goes out now; jobs are then read during it."""
        if self._slots.ended:
            return True
        return bool((self._poll_at == 0.0 or self._rung) and self._slots.wants())

    def _schedule_poll(
        self,
        wants: Mapping[str, int],
        got: Mapping[str, int],
        waits: Mapping[str, float],
    ) -> None:
        """When to claim next, by what each lane gave."""
        base = BUSY_POLL if self._listener.is_busy else self._settings.poll_interval
        base *= random.uniform(0.9, 1.1)
        pause = rates.LONGEST if waits else base
        free = self._slots.wants()
        for lane, wanted in wants.items():
            n = got.get(lane, 0)
            if n == 0:
                # Time alone, or a bell; where none is armed, new jobs are looked for.
                heard = lane in self._listener.armed
                pause = min(pause, waits.get(lane, base), pause if heard else base)
                self._listener.arm(lane)
            elif n >= wanted:
                pause = min(pause, base)
                self._listener.disarm(lane)
                if lane in free:
                    self._poll_at = 0.0
            else:
                # A limit of the lane, or all there was: the next claim shows which.
                pause = min(pause, POLL_SOON)
        self._poll_at = min(self._poll_at, self._loop.time() + pause)

    async def _wait(self) -> None:
        """The one place where the coordinator waits."""
        if self.stopping or self._sends_at_once:
            return
        timer: asyncio.TimerHandle | None = None
        if self._shared is not None or self._slots.wants():
            timer = self._loop.call_at(self._poll_at, self._woken.set)
        await self._woken.wait()
        if timer is not None:
            timer.cancel()
        if self._slots.more_end_within(SHORT_RUN * self._exchange_time):
            # Reported together they cost one exchange.
            await asyncio.sleep(min(self._exchange_time / 2, LONGEST_LINGER))
        self._woken.clear()

    def _log(self, level: int, message: str, **fields: Any) -> None:
        log_event(level, message, worker=self._settings.connector.worker, **fields)
