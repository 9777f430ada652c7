"""A worker of several databases: a coordinator for each, one budget for all.

Each node is reached, loses its connection and comes back on its own; the others do not
wait for it. What is wrong with a database that answers when the worker starts is
raised. One that turns out wrong later is left out, and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg

from pulse import errors, nodes
from pulse.logs import log_event
from pulse.sql import producer as sql
from pulse.worker.budget import Budget
from pulse.worker.connector import AsyncConnection, Connector, require_pulse
from pulse.worker.coordinator import Coordinator, Settings, Shared
from pulse.worker.executors import Pools
from pulse.worker.probes import Condition, Health, Probes

# So long a worker waits at its start for databases that do not answer.
START_WITHIN = 2.0
TRY_AGAIN_AFTER = 5.0


class Fleet:
    """What a Coordinator is to one database; on the event loop only."""

    def __init__(
        self,
        settings: Settings,
        connectors: Sequence[Connector],
        ready: threading.Event,
    ) -> None:
        self._settings = settings
        self._ready = ready
        self._budget = Budget(settings.lanes)
        self._pools = Pools(settings.process_initializer)
        # Schedules fire in one database: in the first.
        self._home = connectors[0]
        self._connectors = list(connectors)
        self._coordinators: dict[Connector, Coordinator] = {}
        self._numbers: dict[Connector, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._failure: BaseException | None = None
        self.health = Health(self._condition)
        self.probes: Probes | None = None

    # -- called by others -------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """As Coordinator.stop, for all of them."""
        self._stopped.set()
        self._changed.set()
        for coordinator in self._coordinators.values():
            coordinator.stop(grace)

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
            if (coordinator := self._coordinators.get(connector)) is not None:
                coordinator.stop(grace)

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
        if self._settings.health_port is not None:
            self.probes = Probes(self._settings.health_port, self.health)
        beating = asyncio.create_task(self.health.beat(), name="pulse health")
        try:
            await self._check()
            for connector in list(self._connectors):
                self._begin(connector)
            while self._tasks or not self.stopping:
                await self._changed.wait()
                self._changed.clear()
        finally:
            self._pools.close()
            beating.cancel()
            if self.probes is not None:
                await asyncio.to_thread(self.probes.close)
        if self._failure is not None:
            raise self._failure

    def _begin(self, connector: Connector) -> None:
        task = asyncio.create_task(self._keep(connector), name="pulse node")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # As with one database: what nobody foresaw ends the worker.
            self._failure = self._failure or error
            self.stop()
        self._changed.set()

    async def _keep(self, connector: Connector) -> None:
        """Work on a database until the worker stops or leaves it."""
        while connector in self._connectors and not self.stopping:
            shared = Shared(
                self._budget, self._pools, lambda c: self._admit(connector, c)
            )
            settings = self._settings_for(connector)
            coordinator = Coordinator(settings, self._ready, shared)
            self._coordinators[connector] = coordinator
            try:
                await coordinator.work()
                return
            except errors.PulseError as error:
                words = f"{connector.place} is left out: {error.message}"
                self._log(logging.ERROR, words, hint=error.hint)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), TRY_AGAIN_AFTER)
            finally:
                # It may have been removed and added again meanwhile.
                if self._coordinators.get(connector) is coordinator:
                    del self._coordinators[connector]
                    self._numbers.pop(connector, None)

    def _settings_for(self, connector: Connector) -> Settings:
        declared = self._settings.declarations
        if declared is not None and connector != self._home:
            declared = replace(declared, schedules={})
        return replace(self._settings, connector=connector, declarations=declared)

    # -- the numbers of the nodes -----------------------------------------------------

    async def _check(self) -> None:
        """Raise what is wrong with those that answer; the others join later."""
        looks = {
            asyncio.create_task(self._look(connector)): connector
            for connector in self._connectors
        }
        stopped = asyncio.create_task(self._stopped.wait())
        pending: set[asyncio.Task[Any]] = set(looks)
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
        answers = {c: look for look, c in looks.items() if look not in pending}
        for problem in [look.exception() for look in answers.values()]:
            # Of one that cannot be reached its coordinator says so, and tries again.
            if problem and not isinstance(problem, (psycopg.OperationalError, OSError)):
                raise errors.describe(problem) from problem
        for connector, look in answers.items():
            if look.exception() is None:
                self._enter(connector, *look.result())

    async def _look(self, connector: Connector) -> tuple[int, str]:
        connection = await connector.open_async("coordinator")
        try:
            await require_pulse(connection)
            return await self._number(connection)
        finally:
            await connection.close()

    async def _number(self, connection: AsyncConnection) -> tuple[int, str]:
        row = await (await connection.execute(sql.NODE)).fetchone()
        assert row is not None
        return row[0], row[1]

    async def _admit(self, connector: Connector, connection: AsyncConnection) -> None:
        """At every connection: after a failover another database may answer."""
        number, state = await self._number(connection)
        for other, known in list(self._numbers.items()):
            if known == number and other != connector:
                # It may have another one by now.
                with contextlib.suppress(psycopg.Error, OSError, asyncio.TimeoutError):
                    look = asyncio.wait_for(self._look(other), START_WITHIN)
                    self._numbers[other], _ = await look
        self._enter(connector, number, state)

    def _enter(self, connector: Connector, number: int, state: str) -> None:
        if len(self._connectors) > 1:
            others = {
                number: other.place
                for other, number in self._numbers.items()
                if other != connector
            }
            nodes.require_own_number(connector.place, number, state, others)
        self._numbers[connector] = number

    # -- what others ask --------------------------------------------------------------

    def _condition(self) -> Condition:
        every = self._coordinators
        found = {c.place: c in every and every[c].connected for c in self._connectors}
        running = sum(coordinator.running for coordinator in every.values())
        return Condition(any(found.values()), self.stopping, running, found)

    def _log(self, level: int, message: str, **fields: Any) -> None:
        log_event(level, message, worker=self._settings.connector.worker, **fields)
