"""The coordinator: one loop that reports what ended and claims exactly what is free.

A cycle is one pulse.exchange: it tells what ended since the last one and asks each
lane for as many jobs as it has free slots. Each job is started on its own, and the end
of any one starts the next cycle; what ends while the connection is busy goes together.
Free slots are counted from what runs, never kept, so an error cannot lose one.

The loop waits in one place (_rest) and stops in one way (stop, then _drain).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pulse import errors, sessions
from pulse.executors import Executors, Run
from pulse.heartbeat import Heart
from pulse.job import Job
from pulse.logs import say
from pulse.messages import Messenger
from pulse.options import Duration
from pulse.reports import RELEASE, Outcome
from pulse.tasks import Task
from pulse.tracing import AllHooks, Hooks
from pulse.wakeup import Side

FLUSH_WITHIN = 5.0
UNWIND_WITHIN = 1.0
LOOK_SOON = 0.005
LIVELY_POLL = 0.01


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
        self._settings = settings
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._hooks = AllHooks(settings.hooks)
        # Claimed and not yet reported, by lease: what the heartbeat keeps alive.
        self._runs: dict[int, Run] = {}
        # Slots in use, by lane: a handler keeps its slot until it has really ended.
        self._used = dict.fromkeys(settings.lanes, 0)
        self._ended: deque[tuple[Run, Outcome]] = deque()
        self._heart = Heart(settings.source, self._runs)
        self._executors = Executors(self._loop, self._hooks, self._done)
        kinds = sorted(settings.tasks)
        self._messenger = Messenger(settings.source, kinds, settings.lease_for)
        self._side = Side(
            settings.source,
            list(settings.lanes),
            kinds,
            self._look_now,
            ticks=settings.ticks,
            listens=settings.listens,
        )
        self._signal = asyncio.Event()
        self._stopped = asyncio.Event()
        self._signalled = False
        self._look_at = 0.0
        self._failures = 0
        self._stop_at: float | None = None

    # -- from anywhere on the loop ----------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Stop claiming; a second call may shorten the grace."""
        now = self._loop.time()
        chosen = self._settings.grace if grace is None else grace
        if self._stop_at is None or now + chosen < self._stop_at:
            self._stop_at = now + chosen
            # An answer that never comes must not keep it from ending.
            limit = self._stop_at + FLUSH_WITHIN
            self._loop.call_at(limit, self._messenger.sever)
        self._stopped.set()
        for run in list(self._runs.values()):
            run.stopping = True
        self._signal.set()

    @property
    def stopping(self) -> bool:
        return self._stop_at is not None

    def _look_now(self) -> None:
        self._look_at = 0.0
        self._signal.set()

    def _done(self, run: Run, outcome: Outcome) -> None:
        """From any thread: a handler ended. One wake-up for all that end at once."""
        self._ended.append((run, outcome))
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(RuntimeError):  # A stop did not wait for it.
                self._loop.call_soon_threadsafe(self._signal.set)

    # -- the loop --------------------------------------------------------------------

    async def run(self) -> None:
        say(
            logging.INFO,
            f"worker {self._settings.source.worker} starts: "
            + ", ".join(f"{n} in {lane}" for lane, n in self._settings.lanes.items()),
            worker=self._settings.source.worker,
            kinds=sorted(self._settings.tasks),
        )
        await self._connect_first()
        self._heart.start()
        side = asyncio.create_task(self._side.run(), name="pulse side")
        try:
            while not self.stopping:
                await self._cycle()
                await self._rest()
        finally:
            self._stop_at = (
                self._loop.time() if self._stop_at is None else self._stop_at
            )
            await self._drain()
            side.cancel()
            await asyncio.wait({side}, timeout=UNWIND_WITHIN)
            await asyncio.to_thread(self._heart.close, UNWIND_WITHIN)
            self._executors.close()
            await self._messenger.close()
            say(
                logging.INFO,
                f"worker {self._settings.source.worker} has stopped",
                worker=self._settings.source.worker,
            )

    async def _connect_first(self) -> None:
        """Wait for the server; what is wrong with pulse itself is raised."""
        while not self.stopping:
            try:
                await self._connect(check=True)
                return
            except (psycopg.OperationalError, OSError) as error:
                await self._recover(error)
            except errors.PulseError:
                await self._messenger.close()
                raise

    async def _connect(self, check: bool = False) -> None:
        """Connect; a stop does not wait for a server that does not answer."""
        if self._messenger.connected:
            return
        trying = asyncio.create_task(self._messenger.connect(check))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({trying, stopped}, return_when="FIRST_COMPLETED")
            if not trying.done():
                await asyncio.wait({trying}, timeout=UNWIND_WITHIN)
            if not trying.done():
                trying.cancel()
                raise psycopg.OperationalError("stopped while connecting")
            await trying
        finally:
            stopped.cancel()

    async def _cycle(self) -> None:
        reports = self._collect()
        now = self._loop.time()
        looks = not self.stopping and now >= self._look_at
        wants = self._free() if reports or looks else {}
        if self.stopping:
            wants = {}
        if not reports and not wants:
            return
        try:
            await self._connect()
            jobs = await self._messenger.exchange(reports, wants)
        except (psycopg.Error, OSError) as error:
            self._take_back(reports)
            await self._recover(error)
            return
        self._failures = 0
        self._ready.set()
        if self._hooks:
            claimed = [job for job, _ in jobs]
            self._hooks.call("claimed", claimed, self._loop.time() - now)
        self._settled(reports)
        if wants:
            self._plan(wants, jobs)
        for job, left in jobs:
            self._start(job, left)

    def _free(self) -> dict[str, int]:
        lanes = self._settings.lanes
        return {lane: n for lane in lanes if (n := lanes[lane] - self._used[lane]) > 0}

    def _plan(
        self, wants: Mapping[str, int], jobs: Sequence[tuple[Job, float]]
    ) -> None:
        """When to look next, by what each lane answered."""
        got = dict.fromkeys(wants, 0)
        for job, _ in jobs:
            got[job.lane] += 1
        pause = self._poll()
        for lane, n in got.items():
            if n == 0:
                self._side.sleep(lane)
            elif n >= wants[lane]:
                self._side.wake(lane)
            else:
                # A cap of the lane, or all there was: the next look will tell.
                pause = min(pause, LOOK_SOON)
        self._look_at = self._loop.time() + pause

    def _poll(self) -> float:
        base = LIVELY_POLL if self._side.lively else self._settings.poll_interval
        return base * random.uniform(0.9, 1.1)

    def _start(self, job: Job, left: float) -> None:
        run = Run(self._loop, self._heart, self._settings.tasks[job.kind])
        run.job = job
        job.control = run
        self._runs[job.lease] = run
        self._used[job.lane] += 1
        self._heart.leased(left)
        if self.stopping:
            # Claimed, never started: given back at once.
            run.stopping = True
            self._ended.append((run, RELEASE))
            return
        if self._hooks:
            self._hooks.call("started", job)
        self._executors.start(run)

    async def _rest(self) -> None:
        """The one place where the coordinator waits."""
        if self._ended or self.stopping:
            return
        full = not self._free()
        timer: asyncio.TimerHandle | None = None
        if not full:
            timer = self._loop.call_at(self._look_at, self._signal.set)
        await self._signal.wait()
        self._signal.clear()
        if timer is not None:
            timer.cancel()

    # -- reports ---------------------------------------------------------------------

    def _collect(self) -> list[Run]:
        """What has ended: frees the slots, leaves what has to be reported."""
        self._signalled = False
        reports: list[Run] = []
        while self._ended:
            run, outcome = self._ended.popleft()
            if run.slot:
                run.slot = False
                self._used[run.job.lane] -= 1
                if self._hooks or outcome.verb != "complete":
                    self._tell(run, outcome)
            if run.outcome is not None and run.outcome is not outcome:
                continue
            run.outcome = outcome
            if outcome.verb == "drop":
                self._runs.pop(run.job.lease, None)
            else:
                reports.append(run)
        return reports

    def _take_back(self, reports: Sequence[Run]) -> None:
        """Not answered: to be sent again."""
        for run in reversed(reports):
            if run.outcome is not None:
                self._ended.appendleft((run, run.outcome))

    def _settled(self, reports: Sequence[Run]) -> None:
        for run in reports:
            self._runs.pop(run.job.lease, None)

    def _tell(self, run: Run, outcome: Outcome) -> None:
        job = run.job
        seconds = time.monotonic() - run.started if run.started else 0.0
        self._hooks.call("finished", job, outcome.verb, seconds)
        level = logging.WARNING if outcome.verb in ("fail", "drop") else logging.INFO
        why = (outcome.error or "").rsplit("\n", 1)[-1]
        said = {
            "complete": "completed",
            "fail": f"failed: {why}",
            "snooze": f"snoozes for {outcome.delay}",
            "release": "given back",
            "ack_cancel": "cancelled",
            "drop": "lost its lease; its result is dropped",
        }[outcome.verb]
        say(
            level if outcome.verb != "complete" else logging.DEBUG,
            f"job {job.id} ({job.kind}, attempt {job.attempt}) {said}",
            worker=self._settings.source.worker,
            job_id=job.id,
            kind=job.kind,
            lane=job.lane,
            attempt=job.attempt,
            outcome=outcome.verb,
            seconds=round(seconds, 6),
        )

    # -- trouble and the end ---------------------------------------------------------

    async def _recover(self, error: BaseException) -> None:
        """Hang up and wait: longer each time, and only until a stop."""
        await self._messenger.close()
        pause = sessions.backoff(self._failures)
        self._failures += 1
        self._hooks.call("disconnected", error)
        first = str(errors.translate(error) or error).strip().split("\n")[0]
        say(
            logging.WARNING,
            f"cannot reach the queue, trying again in {pause:.1f} s: {first}",
            worker=self._settings.source.worker,
            failures=self._failures,
        )
        until = self._loop.time() + pause
        while not self.stopping and self._loop.time() < until:
            timer = self._loop.call_at(until, self._signal.set)
            await self._signal.wait()
            self._signal.clear()
            timer.cancel()
        self._look_at = 0.0

    async def _drain(self) -> None:
        """Let runs end within the grace, then give back what is left; bounded."""
        for run in list(self._runs.values()):
            run.stopping = True
        while self._busy() and (left := self._left()) > 0:
            await self._flush(left)
            timer = self._loop.call_later(max(0.0, self._left()), self._signal.set)
            if not self._ended and self._busy():
                await self._signal.wait()
            self._signal.clear()
            timer.cancel()
        left_over = [run for run in self._runs.values() if run.outcome is None]
        await self._executors.abandon(left_over, UNWIND_WITHIN)
        ended = {id(run) for run, _ in self._ended}
        for run in left_over:
            if id(run) not in ended:
                self._ended.append((run, RELEASE))
        until = self._loop.time() + FLUSH_WITHIN
        while self._ended and self._loop.time() < until:
            if not await self._flush(until - self._loop.time()):
                await asyncio.sleep(sessions.backoff(self._failures, cap=1.0))
        if self._ended:
            say(
                logging.ERROR,
                f"{len(self._ended)} reports could not be sent; their leases lapse",
                worker=self._settings.source.worker,
            )

    def _left(self) -> float:
        assert self._stop_at is not None
        return self._stop_at - self._loop.time()

    def _busy(self) -> bool:
        return any(run.outcome is None for run in self._runs.values())

    async def _flush(self, within: float) -> bool:
        """Send what has ended; False when that failed."""
        reports = self._collect()
        if not reports:
            return True
        cut = self._loop.call_later(max(within, 1.0), self._messenger.sever)
        try:
            await asyncio.wait_for(self._messenger.exchange(reports, {}), within + 1)
        except (psycopg.Error, OSError, asyncio.TimeoutError) as error:
            self._take_back(reports)
            self._failures += 1
            say(logging.WARNING, f"cannot report, trying again: {error}")
            await self._messenger.close()
            return False
        finally:
            cut.cancel()
        self._settled(reports)
        return True
