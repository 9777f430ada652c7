"""Client and AsyncClient: enqueue and wait for results over a DSN, connection or pool.

Given a DSN they open one autocommit connection when it is first needed and replace it
when it breaks. Given a connection, or a session of SQLAlchemy, they use it as it is,
inside its transaction. Given a psycopg_pool they borrow a connection for each call.
Given several DSNs they choose the database of each call (pulse.nodes).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from pulse import adapters, errors
from pulse.adapters import Row
from pulse.ids import node_of
from pulse.options import Options
from pulse.producer import enqueue, enqueue_many
from pulse.sql import producer as sql

if TYPE_CHECKING:
    from typing_extensions import LiteralString, Self, Unpack

    from pulse.nodes.client import AsyncNodeConnections, NodeConnections

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 1.0


def _outcome(job_id: int, rows: list[Row]) -> tuple[bool, Any]:
    """Return whether the job has ended, and its result; raise if it has none."""
    if not rows:
        raise errors.NoSuchJob(
            f"job {job_id} does not exist",
            detail="It was never enqueued here, was pruned, or is another role's.",
            hint="A job enqueued in a transaction can be seen when that has committed.",
        )
    state, result, last_error = rows[0]
    if state == "dead":
        raise errors.JobDead(f"job {job_id} is dead", detail=last_error)
    if state == "cancelled":
        raise errors.JobCancelled(f"job {job_id} was cancelled", detail=last_error)
    # As text, because drivers decode jsonb differently.
    return state == "completed", None if result is None else json.loads(result)


def _pauses(job_id: int, timeout: float | None) -> Iterator[float]:
    """Yield the seconds to wait before each next query; raise when the time is over."""
    until = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_PAUSE
    # The job is read once, however short the time.
    yield pause if timeout is None else min(pause, max(timeout, 0.0))
    while True:
        left = LONGEST_PAUSE if until is None else until - time.monotonic()
        if left <= 0:
            raise errors.ResultTimeout(
                f"job {job_id} has not ended within {timeout} s",
                hint=f"SELECT * FROM pulse.why({job_id}) shows what it waits for.",
            )
        yield min(pause, left)
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _require_sync(source: Any) -> None:
    if adapters.is_async(source):
        raise TypeError(f"an {type(source).__name__} needs pulse.AsyncClient")


def _require_async(source: Any) -> None:
    if isinstance(source, (str, list, tuple)) or adapters.is_async(source):
        return
    if adapters.is_asyncpg(source):
        raise adapters.unusable(source)
    raise TypeError(f"a {type(source).__name__} needs pulse.Client")


def _has_several(source: Any, homes: Mapping[str, int] | None) -> bool:
    """Whether these are DSNs of several databases."""
    if isinstance(source, (list, tuple)):
        return True
    if homes is not None:
        raise TypeError("homes are for several databases: Client([dsn, …], homes=…)")
    return False


# Made from _nodes_async by tools/twins.py.
def _nodes(source: Any, homes: Mapping[str, int] | None) -> NodeConnections | None:
    """The connections of a client of several databases."""
    if not _has_several(source, homes):
        return None
    from pulse.nodes.client import NodeConnections

    return NodeConnections(source, homes)


def _nodes_async(
    source: Any, homes: Mapping[str, int] | None
) -> AsyncNodeConnections | None:
    """The connections of a client of several databases."""
    if not _has_several(source, homes):
        return None
    from pulse.nodes.client import AsyncNodeConnections

    return AsyncNodeConnections(source, homes)


# Made from AsyncClient by tools/twins.py.
class Client:
    """Enqueue, cancel and wait; safe to share between threads.

    Args:
        source: A DSN, a connection, a session of SQLAlchemy, a psycopg_pool, or a list
            of DSNs. Empty, the environment chooses the database.
        homes: Of several databases, the number of the one that has each lane.

    Raises:
        TypeError: The source is of another kind, or homes go with one database.

    Example:
        >>> with pulse.Client(dsn) as client:
        ...     job_id = client.enqueue("mail", {"to": "a@b.c"})
        ...     client.cancel(job_id, reason="wrong address")
        'cancelled'
    """

    def __init__(
        self, source: Any = "", *, homes: Mapping[str, int] | None = None
    ) -> None:
        _require_sync(source)
        self._source: Any = source
        self._nodes = _nodes(source, homes)
        self._own: psycopg.Connection[Any] | None = None
        self._opening = threading.Lock()

    @contextlib.contextmanager
    def connection(self, job_id: int | None = None) -> Iterator[Any]:
        """Open or borrow the connection that a call uses.

        Args:
            job_id: The job that the call is about. A client of several databases
                chooses the database of this job; without a job, any that answers.

        Returns:
            A context manager with the connection. A borrowed one goes back to its pool.

        Raises:
            psycopg.OperationalError: The server does not answer.

        Example:
            >>> with client.connection() as connection:
            ...     cursor = connection.execute("SELECT 1")
        """
        if self._nodes is not None:
            if job_id is None:
                yield self._nodes.any()
            else:
                yield self._nodes.of(node_of(job_id))
        elif isinstance(self._source, str):
            with self._opening:
                if self._own is None or self._own.closed:
                    self._own = psycopg.Connection.connect(
                        self._source, autocommit=True
                    )
            yield self._own
        elif hasattr(self._source, "getconn"):
            with self._source.connection() as borrowed:
                yield borrowed
        else:
            yield self._source

    @contextlib.contextmanager
    def connection_for(self, *jobs: Mapping[str, Any]) -> Iterator[Any]:
        """Open or borrow the connection on which jobs with these options are enqueued.

        Args:
            jobs: The options of each job. A client of several databases chooses by
                their lane, unique key, group and upstream jobs.

        Returns:
            A context manager with the connection.

        Raises:
            InvalidArgument: The jobs belong to several databases.

        Example:
            >>> with client.connection_for({"lane": "mail"}) as connection:
            ...     job_id = pulse.enqueue(connection, "mail", lane="mail")
        """
        if self._nodes is not None:
            yield self._nodes.for_jobs(jobs)
        else:
            with self.connection() as connection:
                yield connection

    def enqueue(
        self, kind: str, payload: Any = None, **options: Unpack[Options]
    ) -> int:
        """Enqueue one job, as pulse.enqueue does on a connection.

        Args:
            kind: The name of the code that runs the job.
            payload: Any JSON; None is an empty object.
            options: Options of the job (pulse.options.Options).

        Returns:
            The id of the job; of the one that has the unique key, if there is one.

        Raises:
            InvalidArgument: An option or the payload is not allowed.

        Example:
            >>> job_id = client.enqueue("mail", {"to": "a@b.c"}, priority=10)
        """
        with self.connection_for(options) as connection:
            job_id: int = enqueue(connection, kind, payload, **options)
            return job_id

    def enqueue_many(
        self,
        kind: str | Iterable[Mapping[str, Any]],
        payloads: Iterable[Any] | None = None,
        **options: Unpack[Options],
    ) -> list[int]:
        """Enqueue several jobs, as pulse.enqueue_many does: all of them or none.

        Args:
            kind: The kind of all jobs, or a list of dicts with a kind each.
            payloads: One for each job; None where kind is a list of dicts.
            options: Options of all jobs (pulse.options.Options).

        Returns:
            The ids of the jobs, in the order of the payloads.

        Raises:
            InvalidArgument: An option, a payload or their number is not allowed.

        Example:
            >>> ids = client.enqueue_many("resize", [{"n": 1}, {"n": 2}])
            >>> len(ids)
            2
        """
        jobs: Sequence[Mapping[str, Any]] = [options]
        if not isinstance(kind, str):
            kind = list(kind)
            jobs = [{**options, **job} for job in kind]
        with self.connection_for(*jobs) as connection:
            ids: list[int] = enqueue_many(connection, kind, payloads, **options)
            return ids

    def cancel(self, job_id: int, reason: str | None = None) -> str:
        """Cancel a job; if it runs, ask its worker to stop it.

        Args:
            job_id: The id that enqueue returned.
            reason: Why, for operators who look at the job.

        Returns:
            The state of the job after that.

        Raises:
            PulseError: There is no such job, or it has ended.

        Example:
            >>> job_id = client.enqueue("mail")
            >>> client.cancel(job_id, reason="wrong address")
            'cancelled'
        """
        values = {"job_id": job_id, "reason": reason}
        with self.connection(job_id) as connection:
            rows = _fetch(connection, sql.CANCEL, values)
        return str(rows[0][0])

    def result(self, job_id: int, timeout: float | None = None) -> Any:
        """Wait until the job has ended.

        Args:
            job_id: The id that enqueue returned.
            timeout: How many seconds to wait; None waits without end.

        Returns:
            The result that the handler returned.

        Raises:
            JobDead: The job failed for good.
            JobCancelled: The job was cancelled.
            NoSuchJob: The job does not exist, was pruned, or belongs to another role.
            ResultTimeout: The job has not ended within timeout.

        Example:
            >>> job_id = client.enqueue("double", {"n": 21})
            >>> run_worker()
            >>> client.result(job_id, timeout=10)
            42
        """
        for pause in _pauses(job_id, timeout):
            with self.connection(job_id) as connection:
                rows = _fetch(connection, sql.OUTCOME, {"job_id": job_id})
            ended, result = _outcome(job_id, rows)
            if ended:
                return result
            time.sleep(pause)
        raise AssertionError("unreachable")

    def why(self, job_id: int) -> list[str]:
        """Explain why a job does not run.

        Args:
            job_id: The id that enqueue returned.

        Returns:
            The reasons as sentences; the first matters most.

        Raises:
            NoSuchJob: The job does not exist.

        Example:
            >>> job_id = client.enqueue("mail", requires_approval=True)
            >>> reasons = client.why(job_id)
            >>> "approv" in reasons[0]
            True
        """
        with self.connection(job_id) as connection:
            rows = _fetch(connection, sql.WHY, {"job_id": job_id})
        return [str(reason) for (reason,) in rows]

    def close(self) -> None:
        """Close the connections that this client has opened itself.

        Connections, sessions and pools of the caller stay open.

        Example:
            >>> client = pulse.Client(dsn)
            >>> job_id = client.enqueue("mail")
            >>> client.close()
        """
        if self._nodes is not None:
            self._nodes.close()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Made from _fetch_async by tools/twins.py.
def _fetch(connection: Any, query: LiteralString, values: dict[str, Any]) -> list[Row]:
    fetched: Any = adapters.fetch(connection, query, values, list)
    rows: list[Row] = fetched
    return rows


class AsyncClient:
    """Enqueue, cancel and wait; safe to share between asyncio tasks.

    Args:
        source: A DSN, a connection, a session of SQLAlchemy, a psycopg_pool, or a list
            of DSNs. Empty, the environment chooses the database.
        homes: Of several databases, the number of the one that has each lane.

    Raises:
        TypeError: The source is of another kind, or homes go with one database.

    Example:
        >>> async with pulse.AsyncClient(dsn) as client:
        ...     job_id = await client.enqueue("mail", {"to": "a@b.c"})
        ...     await client.cancel(job_id, reason="wrong address")
        'cancelled'
    """

    def __init__(
        self, source: Any = "", *, homes: Mapping[str, int] | None = None
    ) -> None:
        _require_async(source)
        self._source: Any = source
        self._nodes = _nodes_async(source, homes)
        self._own: psycopg.AsyncConnection[Any] | None = None
        self._opening = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def connection(self, job_id: int | None = None) -> AsyncIterator[Any]:
        """Open or borrow the connection that a call uses.

        Args:
            job_id: The job that the call is about. A client of several databases
                chooses the database of this job; without a job, any that answers.

        Returns:
            A context manager with the connection. A borrowed one goes back to its pool.

        Raises:
            psycopg.OperationalError: The server does not answer.

        Example:
            >>> async with client.connection() as connection:
            ...     cursor = await connection.execute("SELECT 1")
        """
        if self._nodes is not None:
            if job_id is None:
                yield await self._nodes.any()
            else:
                yield await self._nodes.of(node_of(job_id))
        elif isinstance(self._source, str):
            async with self._opening:
                if self._own is None or self._own.closed:
                    self._own = await psycopg.AsyncConnection.connect(
                        self._source, autocommit=True
                    )
            yield self._own
        elif hasattr(self._source, "getconn"):
            async with self._source.connection() as borrowed:
                yield borrowed
        else:
            yield self._source

    @contextlib.asynccontextmanager
    async def connection_for(self, *jobs: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Open or borrow the connection on which jobs with these options are enqueued.

        Args:
            jobs: The options of each job. A client of several databases chooses by
                their lane, unique key, group and upstream jobs.

        Returns:
            A context manager with the connection.

        Raises:
            InvalidArgument: The jobs belong to several databases.

        Example:
            >>> async with client.connection_for({"lane": "mail"}) as connection:
            ...     job_id = await pulse.enqueue(connection, "mail", lane="mail")
        """
        if self._nodes is not None:
            yield await self._nodes.for_jobs(jobs)
        else:
            async with self.connection() as connection:
                yield connection

    async def enqueue(
        self, kind: str, payload: Any = None, **options: Unpack[Options]
    ) -> int:
        """Enqueue one job, as pulse.enqueue does on a connection.

        Args:
            kind: The name of the code that runs the job.
            payload: Any JSON; None is an empty object.
            options: Options of the job (pulse.options.Options).

        Returns:
            The id of the job; of the one that has the unique key, if there is one.

        Raises:
            InvalidArgument: An option or the payload is not allowed.

        Example:
            >>> job_id = await client.enqueue("mail", {"to": "a@b.c"}, priority=10)
        """
        async with self.connection_for(options) as connection:
            job_id: int = await enqueue(connection, kind, payload, **options)
            return job_id

    async def enqueue_many(
        self,
        kind: str | Iterable[Mapping[str, Any]],
        payloads: Iterable[Any] | None = None,
        **options: Unpack[Options],
    ) -> list[int]:
        """Enqueue several jobs, as pulse.enqueue_many does: all of them or none.

        Args:
            kind: The kind of all jobs, or a list of dicts with a kind each.
            payloads: One for each job; None where kind is a list of dicts.
            options: Options of all jobs (pulse.options.Options).

        Returns:
            The ids of the jobs, in the order of the payloads.

        Raises:
            InvalidArgument: An option, a payload or their number is not allowed.

        Example:
            >>> ids = await client.enqueue_many("resize", [{"n": 1}, {"n": 2}])
            >>> len(ids)
            2
        """
        jobs: Sequence[Mapping[str, Any]] = [options]
        if not isinstance(kind, str):
            kind = list(kind)
            jobs = [{**options, **job} for job in kind]
        async with self.connection_for(*jobs) as connection:
            ids: list[int] = await enqueue_many(connection, kind, payloads, **options)
            return ids

    async def cancel(self, job_id: int, reason: str | None = None) -> str:
        """Cancel a job; if it runs, ask its worker to stop it.

        Args:
            job_id: The id that enqueue returned.
            reason: Why, for operators who look at the job.

        Returns:
            The state of the job after that.

        Raises:
            PulseError: There is no such job, or it has ended.

        Example:
            >>> job_id = await client.enqueue("mail")
            >>> await client.cancel(job_id, reason="wrong address")
            'cancelled'
        """
        values = {"job_id": job_id, "reason": reason}
        async with self.connection(job_id) as connection:
            rows = await _fetch_async(connection, sql.CANCEL, values)
        return str(rows[0][0])

    async def result(self, job_id: int, timeout: float | None = None) -> Any:
        """Wait until the job has ended.

        Args:
            job_id: The id that enqueue returned.
            timeout: How many seconds to wait; None waits without end.

        Returns:
            The result that the handler returned.

        Raises:
            JobDead: The job failed for good.
            JobCancelled: The job was cancelled.
            NoSuchJob: The job does not exist, was pruned, or belongs to another role.
            ResultTimeout: The job has not ended within timeout.

        Example:
            >>> job_id = await client.enqueue("double", {"n": 21})
            >>> run_worker()
            >>> await client.result(job_id, timeout=10)
            42
        """
        for pause in _pauses(job_id, timeout):
            async with self.connection(job_id) as connection:
                rows = await _fetch_async(connection, sql.OUTCOME, {"job_id": job_id})
            ended, result = _outcome(job_id, rows)
            if ended:
                return result
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def why(self, job_id: int) -> list[str]:
        """Explain why a job does not run.

        Args:
            job_id: The id that enqueue returned.

        Returns:
            The reasons as sentences; the first matters most.

        Raises:
            NoSuchJob: The job does not exist.

        Example:
            >>> job_id = await client.enqueue("mail", requires_approval=True)
            >>> reasons = await client.why(job_id)
            >>> "approv" in reasons[0]
            True
        """
        async with self.connection(job_id) as connection:
            rows = await _fetch_async(connection, sql.WHY, {"job_id": job_id})
        return [str(reason) for (reason,) in rows]

    async def close(self) -> None:
        """Close the connections that this client has opened itself.

        Connections, sessions and pools of the caller stay open.

        Example:
            >>> client = pulse.AsyncClient(dsn)
            >>> job_id = await client.enqueue("mail")
            >>> await client.close()
        """
        if self._nodes is not None:
            await self._nodes.close()
        if self._own is not None:
            await self._own.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _fetch_async(
    connection: Any, query: LiteralString, values: dict[str, Any]
) -> list[Row]:
    fetched: Any = adapters.fetch(connection, query, values, list)
    rows: list[Row] = await fetched
    return rows
