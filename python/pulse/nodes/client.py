"""A client of several databases: which node a call goes to, and the connections.

A job goes to the node of its lane, of the jobs that it comes after, or of its unique
key (group, flow). Other jobs go to the nodes in turn, to any that answers. If the node
of a job does not answer, the call fails: in another node its key would not be unique.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from pulse import connections, errors
from pulse.ids import node_label, node_of
from pulse.nodes import node_of_key, require_own_number, routing_key
from pulse.sql import producer as sql

Options = Mapping[str, Any]
AVOID_FOR = 5.0
"""A node that could not be reached is asked last for so long, or ten times as long as
that took: one that accepts connections and hangs must not take most of the time."""


class Routes:
    """The DSNs of the nodes and their numbers, learnt when a node first answers."""

    def __init__(self, dsns: Sequence[str], homes: Mapping[str, int] | None) -> None:
        self.dsns = connections.distinct_dsns(dsns)
        self._homes = dict(homes or {})
        self._numbers: dict[str, int] = {}
        self._avoid: dict[str, float] = {}
        self._turn = 0

    def register(self, dsn: str, number: int, state: str) -> None:
        """Record the number that this database reported; raises NodeRefused."""
        self._avoid.pop(dsn, None)
        if len(self.dsns) > 1:
            others = {n: node_label(d) for d, n in self._numbers.items() if d != dsn}
            require_own_number(node_label(dsn), number, state, others)
        self._numbers[dsn] = number

    def renumber(self, dsn: str, number: int) -> None:
        """The next connection reports what is wrong with this number."""
        self._numbers[dsn] = number

    def node_with_number(self, dsn: str, number: int) -> str | None:
        """Another database that reported this number."""
        found = (d for d, n in self._numbers.items() if n == number and d != dsn)
        return next(found, None)

    def avoid(self, dsn: str, since: float) -> None:
        now = time.monotonic()
        self._avoid[dsn] = now + max(AVOID_FOR, 10 * (now - since))

    def in_turn(self) -> list[str]:
        """All nodes, each time another one first; those that did not answer last."""
        self._turn += 1
        first = self._turn % len(self.dsns)
        now = time.monotonic()
        turned = self.dsns[first:] + self.dsns[:first]
        return sorted(turned, key=lambda dsn: self._avoid.get(dsn, 0.0) > now)

    @property
    def unknown(self) -> list[str]:
        return [dsn for dsn in self.in_turn() if dsn not in self._numbers]

    def find(self, number: int) -> str | None:
        """The DSN of a node; None while it may be one that is not known yet."""
        for dsn, known in self._numbers.items():
            if known == number:
                return dsn
        if len(self._numbers) == len(self.dsns):
            raise errors.NodeRefused(
                f"none of these databases is node {number}",
                detail=f"They are {sorted(self._numbers.values())}.",
            )
        return None

    def home(self, jobs: Iterable[Options]) -> int | str | None:
        """The number of the node of all these jobs, or their key, or None: any."""
        found = {home for job in jobs if (home := self._home(job)) is not None}
        if len(found) > 1:
            numbers = {self.number_of(home) for home in found}
            if len(numbers) > 1:
                raise errors.InvalidArgument(
                    "these jobs belong to several nodes",
                    detail=f"Nodes {sorted(numbers)}: all or none holds within one.",
                    hint="Call enqueue_many once for each.",
                )
        return found.pop() if found else None

    def _home(self, job: Options) -> int | str | None:
        lane = job.get("lane") or "default"
        after = {node_of(job_id) for job_id in job.get("after") or ()}
        if len(after) > 1:
            raise errors.InvalidArgument(
                "a job cannot come after jobs of several nodes",
                detail=f"They are jobs of the nodes {sorted(after)}.",
            )
        if after:
            return after.pop()
        if lane in self._homes:
            return self._homes[lane]
        return routing_key(job)

    def needs_all(self, jobs: Sequence[Options]) -> bool:
        """Whether the numbers of all nodes have to be known to choose one."""
        return len(self._numbers) < len(self.dsns) and any(
            isinstance(self._home(job), str) for job in jobs
        )

    def number_of(self, home: int | str) -> int:
        if isinstance(home, int):
            return home
        return node_of_key(home, self._numbers.values())


def unavailable(dsn: str, error: BaseException) -> errors.Unavailable:
    reason = str(error).strip().split("\n")[0]
    return errors.Unavailable(
        f"the database at {node_label(dsn)} does not answer",
        detail=reason,
        hint="Jobs that belong there wait until it is back.",
    )


# Made from number_at_async by tools/twins.py.
def number_at(connection: psycopg.Connection[Any]) -> tuple[int, str]:
    with errors.mapped():
        row = (connection.execute(sql.NODE)).fetchone()
    assert row is not None
    return row[0], row[1]


async def number_at_async(connection: psycopg.AsyncConnection[Any]) -> tuple[int, str]:
    with errors.mapped():
        row = await (await connection.execute(sql.NODE)).fetchone()
    assert row is not None
    return row[0], row[1]


# Made from AsyncNodeConnections by tools/twins.py.
class NodeConnections:
    """Connections to several databases, safe to share between threads."""

    def __init__(self, dsns: Sequence[str], homes: Mapping[str, int] | None) -> None:
        self._routes = Routes(dsns, homes)
        self._open: dict[str, psycopg.Connection[Any]] = {}
        self._opening = {dsn: threading.Lock() for dsn in dsns}

    def at(self, dsn: str) -> psycopg.Connection[Any]:
        with self._opening[dsn]:
            found = self._open.get(dsn)
            if found is not None and not found.closed:
                return found
            since = time.monotonic()
            try:
                made = psycopg.Connection.connect(
                    connections.conninfo(dsn), autocommit=True
                )
            except (psycopg.OperationalError, OSError) as error:
                self._routes.avoid(dsn, since)
                raise unavailable(dsn, error) from error
            try:
                number, state = number_at(made)
                if (other := self._routes.node_with_number(dsn, number)) in self._open:
                    # It may have another number by now.
                    with contextlib.suppress(psycopg.OperationalError):
                        there = number_at(self._open[other])
                        self._routes.renumber(other, there[0])
                self._routes.register(dsn, number, state)
            except BaseException:
                made.close()
                raise
            self._open[dsn] = made
            return made

    def of(self, number: int) -> psycopg.Connection[Any]:
        failed: errors.Unavailable | None = None
        for dsn in [None, *self._routes.unknown]:
            if dsn is not None:
                try:
                    self.at(dsn)
                except errors.Unavailable as error:
                    failed = error
            while (found := self._routes.find(number)) is not None:
                connection = self.at(found)
                # A new connection may have shown that its number is another one now.
                if self._routes.find(number) == found:
                    return connection
        assert failed is not None
        raise failed

    def any(self) -> psycopg.Connection[Any]:
        failed: errors.Unavailable | None = None
        for dsn in self._routes.in_turn():
            try:
                return self.at(dsn)
            except errors.Unavailable as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def for_jobs(self, jobs: Sequence[Options]) -> psycopg.Connection[Any]:
        if self._routes.needs_all(jobs):
            for dsn in self._routes.unknown:
                self.at(dsn)
        home = self._routes.home(jobs)
        if home is None:
            return self.any()
        return self.of(self._routes.number_of(home))

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


class AsyncNodeConnections:
    """Connections to several databases, safe to share between asyncio tasks."""

    def __init__(self, dsns: Sequence[str], homes: Mapping[str, int] | None) -> None:
        self._routes = Routes(dsns, homes)
        self._open: dict[str, psycopg.AsyncConnection[Any]] = {}
        self._opening = {dsn: asyncio.Lock() for dsn in dsns}

    async def at(self, dsn: str) -> psycopg.AsyncConnection[Any]:
        async with self._opening[dsn]:
            found = self._open.get(dsn)
            if found is not None and not found.closed:
                return found
            since = time.monotonic()
            try:
                made = await psycopg.AsyncConnection.connect(
                    connections.conninfo(dsn), autocommit=True
                )
            except (psycopg.OperationalError, OSError) as error:
                self._routes.avoid(dsn, since)
                raise unavailable(dsn, error) from error
            try:
                number, state = await number_at_async(made)
                if (other := self._routes.node_with_number(dsn, number)) in self._open:
                    # It may have another number by now.
                    with contextlib.suppress(psycopg.OperationalError):
                        there = await number_at_async(self._open[other])
                        self._routes.renumber(other, there[0])
                self._routes.register(dsn, number, state)
            except BaseException:
                await made.close()
                raise
            self._open[dsn] = made
            return made

    async def of(self, number: int) -> psycopg.AsyncConnection[Any]:
        failed: errors.Unavailable | None = None
        for dsn in [None, *self._routes.unknown]:
            if dsn is not None:
                try:
                    await self.at(dsn)
                except errors.Unavailable as error:
                    failed = error
            while (found := self._routes.find(number)) is not None:
                connection = await self.at(found)
                # A new connection may have shown that its number is another one now.
                if self._routes.find(number) == found:
                    return connection
        assert failed is not None
        raise failed

    async def any(self) -> psycopg.AsyncConnection[Any]:
        failed: errors.Unavailable | None = None
        for dsn in self._routes.in_turn():
            try:
                return await self.at(dsn)
            except errors.Unavailable as error:
                failed = failed or error
        assert failed is not None
        raise failed

    async def for_jobs(self, jobs: Sequence[Options]) -> psycopg.AsyncConnection[Any]:
        if self._routes.needs_all(jobs):
            for dsn in self._routes.unknown:
                await self.at(dsn)
        home = self._routes.home(jobs)
        if home is None:
            return await self.any()
        return await self.of(self._routes.number_of(home))

    async def close(self) -> None:
        for connection in self._open.values():
            await connection.close()
