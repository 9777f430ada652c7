"""The coordinator: one loop that reports what ended and claims exactly what is free.

A cycle is one pulse.exchange: it tells what ended since the last one and asks each
lane for as many jobs as it has free slots. Each job is started on its own, and the end
of any one starts the next cycle; what ends while the connection is busy goes together.
A large lane is asked for half of its slots at a time (ledger.py): the jobs of one
answer are read and run while the server works on the next exchange (intake.py).

The loop waits in one place (_rest) and stops in one way (stop, then ending.py).
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

from pulse.hooks import AllHooks, Hooks
from pulse.logs import say
from pulse.options import Duration
from pulse.tasks import Task
from pulse.worker import connector as sessions
from pulse.worker.claims import Intake
from pulse.worker.connection import UNWIND_WITHIN, Line
from pulse.worker.exchange import Answer, Messenger
from pulse.worker.executors import Executors, Run
from pulse.worker.heartbeat import Heart
from pulse.worker.listener import Side
from pulse.worker.shutdown import FLUSH_WITHIN, Ending
from pulse.worker.slots import Ledger

LOOK_SOON = 0.005
LIVELY_POLL = 0.01
# Runs that take less than so many exchanges are told together where they can be.
SHORT_RUN = 2.0
LONGEST_LINGER = 0.002


@dataclass(frozen=True)
class Settings:
    source: sessions.Source
    lanes: Mapping[str, int]
    tasks: Mapping[str, Task[Any, Any]]
    poll_interval: float = 0.5
    lease_for: Duration | None = None
    grace: float = 30.0
    ticks: bool = True
    listens: bool = True
    hooks: Sequence[Hooks] = field(default_factory=tuple)


class Coordinator:
    def __init__(self, settings: Settings, ready: threading.Event) -> None:
        source, kinds = settings.source, sorted(settings.tasks)
        self._settings = settings
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._signal = asyncio.Event()
        self._stopped = asyncio.Event()
        self._hooks = AllHooks(settings.hooks)
        self._ledger = Ledger(source.worker, settings.lanes, self._hooks, self._wake)
        self._heart = Heart(source, self._ledger.runs)
        self._executors = Executors(self._loop, self._hooks, self._ledger.done)
        self._messenger = Messenger(source, kinds, settings.lease_for)
        self._line = Line(self._messenger, self._stopped, self._hooks, source.worker)
        self._ending = Ending(
            self._ledger,
            self._executors,
            self._messenger,
            self._line,
            self._signal,
            source.worker,
        )
        self._intake = Intake(
            settings.tasks,
            self._ledger,
            self._heart,
            self._executors,
            self._hooks,
            lambda: self.stopping,
        )
        self._side = Side(
            source,
            list(settings.lanes),
            kinds,
            self._look_now,
            self._ledger.limit,
            ticks=settings.ticks,
            listens=settings.listens,
        )
        self._look_at = 0.0
        self._exchange_time = 0.0
        self._stop_at: float | None = None

    # -- from elsewhere ---------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Stop claiming; a second call may shorten the grace. On the loop only."""
        now = self._loop.time()
        chosen = self._settings.grace if grace is None else grace
        if self._stop_at is None or now + chosen < self._stop_at:
            self._stop_at = now + chosen
            # An answer that never comes must not keep it from ending.
            limit = self._stop_at + FLUSH_WITHIN
            self._loop.call_at(limit, self._messenger.sever)
        self._stopped.set()
        self._ledger.tell_all_to_stop()
        self._signal.set()

    @property
    def stopping(self) -> bool:
        return self._stop_at is not None

    def _look_now(self) -> None:
        self._look_at = 0.0
        self._signal.set()

    def _wake(self) -> None:
        """From any thread; on its own the loop need not be woken."""
        if threading.get_ident() == self._thread:
            self._signal.set()
            return
        with contextlib.suppress(RuntimeError):  # A stop did not wait for this one.
            self._loop.call_soon_threadsafe(self._signal.set)

    # -- the loop ---------------------------------------------------------------------

    async def run(self) -> None:
        self._say(
            logging.INFO,
            f"worker {self._settings.source.worker} starts: "
            + ", ".join(f"{n} in {lane}" for lane, n in self._settings.lanes.items()),
            kinds=sorted(self._settings.tasks),
        )
        await self._line.open()
        self._heart.start()
        side = asyncio.create_task(self._side.run(), name="pulse side")
        try:
            while not self.stopping:
                await self._cycle()
                await self._rest()
        finally:
            if self._stop_at is None:
                self.stop(0)
            await self._ending.give_back_unread(self._intake)
            try:
                await self._ending.drain(lambda: self._stop_at or 0.0)
            finally:
                side.cancel()
                await asyncio.wait({side}, timeout=UNWIND_WITHIN)
                await asyncio.to_thread(self._heart.close, UNWIND_WITHIN)
                self._executors.close()
                await self._messenger.close()
            self._say(
                logging.INFO, f"worker {self._settings.source.worker} has stopped"
            )

    async def _cycle(self) -> None:
        reports = self._ledger.collect()
        now = self._loop.time()
        looks = not self.stopping and (bool(reports) or now >= self._look_at)
        wants = self._ledger.wants() if looks else {}
        if not reports and not wants:
            await self._intake.start_all()
            return
        if wants:
            # A ring from here on means a job that this look may not see.
            self._look_at = math.inf
        try:
            if not self._messenger.connected:
                await self._intake.start_all()
                await self._line.connect()
            answer = await self._exchange(reports, wants)
        except (psycopg.Error, OSError) as error:
            self._ledger.take_back(reports)
            await self._line.recover(error)
            self._look_at = 0.0
            return
        except BaseException:
            self._ledger.take_back(reports)
            raise
        self._line.failures = 0
        self._ready.set()
        took = self._loop.time() - now
        self._exchange_time += (took - self._exchange_time) / 8
        self._ledger.settle(reports)
        await self._intake.accept(answer, took)
        if wants:
            self._plan(wants, answer.lanes)
        if not self._asks_at_once:
            await self._intake.start_all()

    async def _exchange(self, reports: list[Run], wants: Mapping[str, int]) -> Answer:
        """Ask, and read what the answer before brought while the server is at it."""
        if not self._intake.unread:
            return await self._messenger.exchange(reports, wants)
        asking = asyncio.ensure_future(self._messenger.exchange(reports, wants))
        try:
            await asyncio.sleep(0)  # It is on its way when this comes back.
            await self._intake.start_all()
            return await asking
        finally:
            asking.cancel()

    @property
    def _asks_at_once(self) -> bool:
        """Whether the next exchange goes out now; jobs are then read after it."""
        if self._ledger.ended:
            return True
        return self._look_at == 0.0 and bool(self._ledger.wants())

    def _plan(self, wants: Mapping[str, int], got: Mapping[str, int]) -> None:
        """When to look next, by what each lane answered."""
        base = LIVELY_POLL if self._side.lively else self._settings.poll_interval
        pause = base * random.uniform(0.9, 1.1)
        still = self._ledger.wants()
        for lane, wanted in wants.items():
            n = got.get(lane, 0)
            if n == 0:
                self._side.sleep(lane)
            elif n >= wanted:
                self._side.wake(lane)
                if lane in still:
                    self._look_at = 0.0
            else:
                # A cap of the lane, or all there was: the next look will tell.
                pause = min(pause, LOOK_SOON)
        self._look_at = min(self._look_at, self._loop.time() + pause)

    async def _rest(self) -> None:
        """The one place where the coordinator waits."""
        if self.stopping or self._asks_at_once:
            return
        timer: asyncio.TimerHandle | None = None
        if self._ledger.wants():
            timer = self._loop.call_at(self._look_at, self._signal.set)
        await self._signal.wait()
        if timer is not None:
            timer.cancel()
        if self._ledger.others_end_within(SHORT_RUN * self._exchange_time):
            # Told together they cost one exchange.
            await asyncio.sleep(min(self._exchange_time / 2, LONGEST_LINGER))
        self._signal.clear()

    def _say(self, level: int, message: str, **fields: Any) -> None:
        say(level, message, worker=self._settings.source.worker, **fields)
