"""A worker of several databases: a loop for each node, one budget of slots for all.

NodeLoops starts a NodeLoop for each database. A NodeLoop is a WorkerLoop that reserves
slots of the shared budget (budget.py) before it claims. Everything else is as with one
database: its own connections, heartbeats, notifications and reports. Each node is
reached, loses its connection and comes back on its own; the others do not wait for it.

When the worker starts, a database that answers and must not be used (without a node
number, or with another node's) raises an error. One that turns out so later is
skipped, and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg

from pulse import errors
from pulse.hooks import AllHooks
from pulse.logs import log_event
from pulse.nodes import require_own_number
from pulse.nodes.budget import Budget, NodeSlots
from pulse.sql import producer as sql
from pulse.worker.connection import (
    Connector,
    ReconnectingConnection,
    require_pulse,
)
from pulse.worker.executors import Pools
from pulse.worker.health import HealthReport
from pulse.worker.loop import LoopSettings, Request, WorkerLoop
from pulse.worker.outcomes import Outcome
from pulse.worker.protocol import Reply
from pulse.worker.runs import Run, Runs
from pulse.worker.statement import WorkerConnection
from pulse.worker.wakeup import Wakeup

# So long a worker waits at its start for databases that do not answer.
START_WITHIN = 2.0
TRY_AGAIN_AFTER = 5.0


class NodeLoops:
    """As WorkerLoop, for several databases. On the event loop only."""

    def __init__(
        self,
        settings: LoopSettings,
        connectors: Sequence[Connector],
        pools: Pools,
        ready: threading.Event,
    ) -> None:
        self._settings = settings
        self._pools = pools
        self._ready = ready
        self._budget = Budget(settings.lanes)
        # Schedules fire in one database: in the first.
        self._scheduling = connectors[0]
        self._connectors = list(connectors)
        self._loops: dict[Connector, NodeLoop] = {}
        self._numbers: dict[Connector, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._failure: BaseException | None = None

    # -- for the Worker ---------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """As WorkerLoop.stop, for all of them."""
        self._stopped.set()
        self._changed.set()
        for loop in self._loops.values():
            loop.stop(grace)

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def add(self, connector: Connector) -> None:
        """Work on one more database."""
        if connector not in self._connectors and not self.stopping:
            self._connectors.append(connector)
            self._begin(connector)

    def remove(self, connector: Connector, grace: float | None = None) -> None:
        """Leave a database: its runs may end within the grace, then are released."""
        if connector in self._connectors:
            self._connectors.remove(connector)
            if (loop := self._loops.get(connector)) is not None:
                loop.stop(grace)

    def health_report(self) -> HealthReport:
        found = {
            connector: loop.health_report() for connector, loop in self._loops.items()
        }
        connected = {
            connector.label: connector in found and found[connector].connected
            for connector in self._connectors
        }
        running = sum(report.running for report in found.values())
        return HealthReport(any(connected.values()), self.stopping, running, connected)

    # -- start, work, stop ------------------------------------------------------------

    async def run(self) -> None:
        lanes = self._settings.lanes.items()
        self._log(
            logging.INFO,
            f"worker {self._settings.connector.worker} starts: "
            + ", ".join(f"{n} in {lane}" for lane, n in lanes)
            + f", over {len(self._connectors)} databases",
            kinds=sorted(self._settings.tasks),
        )
        await self._check_numbers()
        for connector in list(self._connectors):
            self._begin(connector)
        while self._tasks or not self.stopping:
            await self._changed.wait()
            self._changed.clear()
        if self._failure is not None:
            raise self._failure

    def _begin(self, connector: Connector) -> None:
        task = asyncio.create_task(self._work_on(connector), name="pulse node")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # An unexpected exception stops the worker, as with one database.
            self._failure = self._failure or error
            self.stop()
        self._changed.set()

    async def _work_on(self, connector: Connector) -> None:
        """Work on a database until the worker stops or leaves it."""
        while connector in self._connectors and not self.stopping:
            loop = NodeLoop(
                self._settings_for(connector),
                self._pools,
                self._ready,
                self._budget,
                self,
            )
            self._loops[connector] = loop
            try:
                await loop.work()
                return
            except errors.PulseError as error:
                message = f"skipping database {connector.label}: {error.message}"
                self._log(logging.ERROR, message, hint=error.hint)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), TRY_AGAIN_AFTER)
            finally:
                # It may have been removed and added again meanwhile.
                if self._loops.get(connector) is loop:
                    del self._loops[connector]
                    self._numbers.pop(connector, None)

    def _settings_for(self, connector: Connector) -> LoopSettings:
        declared = self._settings.declarations
        if declared is not None and connector != self._scheduling:
            declared = replace(declared, schedules={})
        return replace(self._settings, connector=connector, declarations=declared)

    # -- the numbers of the nodes -----------------------------------------------------

    async def _check_numbers(self) -> None:
        """Raise what is wrong with databases that answer; the others join later."""
        asking = {
            asyncio.create_task(self._ask_number(connector)): connector
            for connector in self._connectors
        }
        answered_tasks = await self._wait_for_answers(set(asking))
        answered = {c: task for task, c in asking.items() if task in answered_tasks}
        for error in [task.exception() for task in answered.values()]:
            # The loop of a node that cannot be reached logs it, and tries again.
            if error and not isinstance(error, (psycopg.OperationalError, OSError)):
                raise errors.describe(error) from error
        for connector, task in answered.items():
            if task.exception() is None:
                self._register(connector, *task.result())

    async def _wait_for_answers(
        self, asking: set[asyncio.Task[tuple[int, str]]]
    ) -> set[asyncio.Task[tuple[int, str]]]:
        """Return the nodes that answer within START_WITHIN and before a stop."""
        stopped = asyncio.create_task(self._stopped.wait())
        pending: set[asyncio.Task[Any]] = set(asking)
        until = asyncio.get_running_loop().time() + START_WITHIN
        try:
            while pending and not stopped.done():
                left = until - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait(
                    {*pending, stopped}, timeout=left, return_when="FIRST_COMPLETED"
                )
                if not done:
                    break
                pending -= done
        finally:
            for task in (stopped, *pending):
                task.cancel()
        return asking - pending

    async def _ask_number(self, connector: Connector) -> tuple[int, str]:
        connection = await connector.open_async("coordinator")
        try:
            await require_pulse(connection)
            return await read_number(connection)
        finally:
            await connection.close()

    async def admit(self, connector: Connector, connection: WorkerConnection) -> None:
        """At every connection: after a failover another database may answer.

        Raises an error of pulse for a database that must not be worked on.
        """
        number, state = await read_number(connection)
        for other, known in list(self._numbers.items()):
            if known == number and other != connector:
                # It may have another number by now.
                with contextlib.suppress(psycopg.Error, OSError, asyncio.TimeoutError):
                    asking = asyncio.wait_for(self._ask_number(other), START_WITHIN)
                    self._numbers[other], _ = await asking
        self._register(connector, number, state)

    def _register(self, connector: Connector, number: int, state: str) -> None:
        if len(self._connectors) > 1:
            others = {
                number: other.label
                for other, number in self._numbers.items()
                if other != connector
            }
            require_own_number(connector.label, number, state, others)
        self._numbers[connector] = number

    def _log(self, level: int, message: str, **fields: Any) -> None:
        log_event(level, message, worker=self._settings.connector.worker, **fields)


async def read_number(connection: WorkerConnection) -> tuple[int, str]:
    row = await (await connection.execute(sql.NODE)).fetchone()
    assert row is not None
    return row[0], row[1]


class NodeLoop(WorkerLoop):
    """The loop of one node: reserves slots of the budget before it claims."""

    def __init__(
        self,
        settings: LoopSettings,
        pools: Pools,
        ready: threading.Event,
        budget: Budget,
        loops: NodeLoops,
    ) -> None:
        self._budget = budget
        self._loops = loops
        super().__init__(settings, pools, ready)

    def _make_wakeup(self) -> Wakeup:
        return NodeWakeup()

    def _make_connection(self) -> ReconnectingConnection:
        connector = self._settings.connector
        return NodeConnection(connector, self._stopped, self._hooks, self._loops)

    def _make_slots(self) -> NodeSlots:
        self._node_slots = NodeSlots(self._budget, self._wakeup, self._connection)
        return self._node_slots

    def _make_runs(self) -> Runs:
        self._node_runs = NodeRuns(
            self._settings.connector.worker,
            self._node_slots,
            self._settings.tasks,
            self._heartbeat,
            self._wakeup,
            self._hooks,
        )
        return self._node_runs

    async def work(self) -> None:
        try:
            await super().work()
        finally:
            self._node_slots.leave()

    def _next_poll(self) -> float | None:
        """Also without a free slot: another node may free one."""
        return self._wakeup.poll_at

    def _is_worth_sending(self, request: Request) -> bool:
        """A node that lost its connection asks for slots when it is back."""
        return super()._is_worth_sending(request) or (
            request.claims and not self._connection.is_open
        )

    def _skip(self, request: Request) -> None:
        super()._skip(request)
        self._record_if_no_slot(request)

    async def _request(self, request: Request) -> Reply:
        """Reserve when connected: to connect may take long, and others need slots."""
        reserves = bool(request.wants)
        if not self._connection.is_open:
            reserves = reserves or request.claims
            self._start_claimed()
            await self._connection.open()
        if reserves:
            request.wants = self._node_slots.reserve()
        return await super()._request(request)

    def _take_back(self, request: Request) -> None:
        super()._take_back(request)
        self._node_slots.withdraw()

    async def _apply(self, request: Request, reply: Reply) -> None:
        await super()._apply(request, reply)
        if not request.wants:
            self._record_if_no_slot(request)

    def _record_if_no_slot(self, request: Request) -> None:
        """It was time to claim, and other nodes had all the slots."""
        now = self._event_loop.time()
        if request.claims and self._wakeup.poll_at <= now:
            pause = self._settings.poll_interval * random.uniform(0.9, 1.1)
            self._wakeup.poll_at = now + pause
            self._node_slots.record_no_free_slot()

    def _start(self, runs: list[Run]) -> None:
        super()._start(self._node_runs.release_surplus(runs))


class NodeWakeup(Wakeup):
    """A notification polls all lanes, so that a node without free slots records it."""

    def notify(self, lane: str) -> None:
        self.poll_at = 0.0
        super().notify(lane)


class NodeRuns(Runs):
    """The runs of one node. Their slots are free for every node when they end."""

    def __init__(self, worker: str, slots: NodeSlots, *args: Any) -> None:
        super().__init__(worker, slots, *args)
        self._node_slots = slots

    def finish(self, run: Run, outcome: Outcome) -> None:
        """From any thread: a run has ended."""
        self._ended.append((run, outcome))
        if not self._loop_is_woken:
            self._loop_is_woken = True
            self._wakeup.call_soon(self._free_slots)

    def _free_slots(self) -> None:
        """Not left to collect: the loop may be waiting for its server."""
        self._loop_is_woken = False
        now, logs_all = time.monotonic(), self._logs_all
        for run, outcome in list(self._ended):  # Threads add to it.
            if run.holds_slot:
                self._free_slot(run, outcome, now, logs_all)
        self._node_slots.share_freed()
        self._wakeup.set()

    def collect(self) -> list[Run]:
        some_ended = bool(self._ended)
        reports = super().collect()
        if some_ended:
            self._node_slots.share_freed()
        return reports

    def release_surplus(self, runs: list[Run]) -> list[Run]:
        """Release the jobs that have no slot; returns the others."""
        if not self._node_slots.surplus:
            return runs
        kept: list[Run] = []
        for run in runs:
            if self._node_slots.take_surplus(run.job.lane):
                self.release(run)
            else:
                kept.append(run)
        return kept


class NodeConnection(ReconnectingConnection):
    """Checks at each connection which node answers; logs each reason once."""

    def __init__(
        self,
        connector: Connector,
        stopped: asyncio.Event,
        hooks: AllHooks,
        loops: NodeLoops,
    ) -> None:
        super().__init__(connector, stopped, hooks)
        self._loops = loops
        self._last_logged_reason = ""

    async def get(self, check: bool = False) -> WorkerConnection:
        was_open = self.is_open
        connection = await super().get(check)
        if not was_open:
            await self._admit(connection)
        return connection

    async def _admit(self, connection: WorkerConnection) -> None:
        try:
            await self._loops.admit(self._connector, connection)
        except BaseException as error:
            await self.close()
            if isinstance(error, errors.PulseError):
                raise psycopg.OperationalError(f"{error}") from error
            raise

    def _log_failure(
        self, reason: str, pause: float, level: int = logging.WARNING
    ) -> None:
        if reason == self._last_logged_reason:
            level = logging.DEBUG
        super()._log_failure(reason, pause, level)
        self._last_logged_reason = reason

    def note_answer(self) -> None:
        super().note_answer()
        self._last_logged_reason = ""
        message = f"the queue at {self._connector.label} answers again"
        log_event(logging.INFO, message, worker=self._connector.worker)
