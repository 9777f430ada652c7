"""pulse.enqueue, enqueue_many and signal, on the caller's connection.

They turn their arguments into JSON, let the stamps add headers, and send one statement
of pulse.sql.producer. Clients (client.py) and tasks (tasks.py) call them. The module is
not called enqueue.py, because pulse.enqueue is the function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from pulse import adapters
from pulse.adapters import AsyncExecutes, Row
from pulse.errors import InvalidArgument
from pulse.logs import log_event
from pulse.options import (
    Duration,
    Options,
    as_json,
    as_parameters,
    given,
    to_interval_text,
    to_json,
)
from pulse.sql import producer as sql

if TYPE_CHECKING:
    from typing_extensions import Unpack


Enqueued = tuple[int, bool]

stamps: dict[str, Callable[[str, dict[str, Any]], None]] = {}
"""Functions that add headers to each enqueued job, by name (pulse.hooks).

A stamp gets the kind and the headers, and writes its own, such as the trace of the
caller.
"""


def stamped(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the headers that the stamps add.

    An exception in a stamp is logged, and the job is enqueued without its header.
    """
    if not stamps:
        return values
    headers: dict[str, Any] = dict(values.get("headers") or {})
    for name, stamp in stamps.items():
        try:
            stamp(kind, headers)
        except Exception as error:
            log_event(logging.ERROR, f"the stamp {name} raised {error!r}", hook=name)
    return {**values, "headers": headers} if headers else values


def _id(rows: list[Row]) -> int:
    return int(rows[0][0])


def _ids(rows: list[Row]) -> list[int]:
    return [int(row[0]) for row in rows]


def _enqueued(rows: list[Row]) -> Enqueued:
    return int(rows[0][0]), bool(rows[0][1])


@overload
def enqueue(
    connection: AsyncExecutes,
    kind: str,
    payload: Any = ...,
    **options: Unpack[Options],
) -> Coroutine[Any, Any, int]: ...
@overload
def enqueue(
    connection: Any, kind: str, payload: Any = ..., **options: Unpack[Options]
) -> int: ...
def enqueue(
    connection: Any, kind: str, payload: Any = None, **options: Unpack[Options]
) -> int | Coroutine[Any, Any, int]:
    """Enqueue a job on your connection, in your transaction.

    The job becomes visible when the transaction commits; a rollback removes it.

    Args:
        connection: A connection of psycopg or Django, or a connection or session of
            SQLAlchemy; with an async one, await the call.
        kind: The name of the code that runs the job.
        payload: Any JSON; None is an empty object.
        options: Options of the job (pulse.options.Options).

    Returns:
        The id of the job; of the one that has the unique key, if there is one.

    Raises:
        InvalidArgument: An option or the payload is not allowed.

    Example:
        >>> job_id = pulse.enqueue(connection, "mail", {"to": "a@b.c"}, priority=10)
        >>> again = pulse.enqueue(connection, "mail", unique_key="welcome 7")
        >>> pulse.enqueue(connection, "mail", unique_key="welcome 7") == again
        True
    """
    values = stamped(kind, given(options))
    payload = {} if payload is None else payload
    if adapters.is_psycopg(connection):
        values = as_parameters(values)
        values = {"kind": kind, "payload": to_json(payload), **values}
        return adapters.fetch(connection, sql.enqueue(tuple(values)), values, _id)
    job = {"kind": kind, "payload": payload, **as_json(values)}
    return adapters.fetch(connection, sql.ENQUEUE_LIST, {"jobs": to_json([job])}, _id)


def enqueue_one(
    connection: Any, kind: str, payload: Any, options: Options
) -> Enqueued | Coroutine[Any, Any, Enqueued]:
    """The same, and whether the job is new: a unique key may have found another."""
    values = stamped(kind, given(options))
    if adapters.is_psycopg(connection):
        values = as_parameters(values)
        values = {"kind": kind, "payload": to_json(payload), **values}
        query = sql.enqueue_one(tuple(values))
        return adapters.fetch(connection, query, values, _enqueued)
    job = to_json({"kind": kind, "payload": payload, **as_json(values)})
    return adapters.fetch(connection, sql.ENQUEUE_ONE, {"job": job}, _enqueued)


@overload
def enqueue_many(
    connection: AsyncExecutes,
    kind: str | Iterable[Mapping[str, Any]],
    payloads: Iterable[Any] | None = ...,
    **options: Unpack[Options],
) -> Coroutine[Any, Any, list[int]]: ...
@overload
def enqueue_many(
    connection: Any,
    kind: str | Iterable[Mapping[str, Any]],
    payloads: Iterable[Any] | None = ...,
    **options: Unpack[Options],
) -> list[int]: ...
def enqueue_many(
    connection: Any,
    kind: str | Iterable[Mapping[str, Any]],
    payloads: Iterable[Any] | None = None,
    **options: Unpack[Options],
) -> list[int] | Coroutine[Any, Any, list[int]]:
    """Enqueue one job for each payload: all of them or none.

    Args:
        connection: Any connection that enqueue takes; with an async one, await the
            call.
        kind: The kind of all jobs; or a list of dicts, each with a kind, a payload
            and options of its own.
        payloads: One for each job; None where kind is a list of dicts.
        options: Options of all jobs (pulse.options.Options).

    Returns:
        The ids of the jobs, in the order of the payloads.

    Raises:
        InvalidArgument: An option, a payload or their number is not allowed.

    Example:
        >>> ids = pulse.enqueue_many(connection, "resize", [{"n": 1}, {"n": 2}])
        >>> len(ids)
        2
        >>> mixed = [{"kind": "resize"}, {"kind": "mail", "priority": 5}]
        >>> len(pulse.enqueue_many(connection, mixed))
        2
    """
    values = given(options)
    if isinstance(kind, str):
        if payloads is None:
            raise InvalidArgument("enqueue_many of one kind needs payloads")
        every = [{} if payload is None else payload for payload in payloads]
        values = stamped(kind, values)
        if adapters.is_psycopg(connection):
            values = as_parameters(values)
            values = {"kind": kind, "payloads": [to_json(p) for p in every], **values}
            query = sql.enqueue_many(tuple(values))
            return adapters.fetch(connection, query, values, _ids)
        common = {"kind": kind, **as_json(values)}
        jobs = [{"payload": payload, **common} for payload in every]
    else:
        jobs = [job_of(job, values) for job in kind]
    document = to_json(jobs, "the list of jobs")
    return adapters.fetch(connection, sql.ENQUEUE_LIST, {"jobs": document}, _ids)


@overload
def signal(
    connection: AsyncExecutes, name: str, payload: Any = ..., *, keep: Duration = ...
) -> Coroutine[Any, Any, int]: ...
@overload
def signal(
    connection: Any, name: str, payload: Any = ..., *, keep: Duration = ...
) -> int: ...
def signal(
    connection: Any, name: str, payload: Any = None, *, keep: Duration = "7 days"
) -> int | Coroutine[Any, Any, int]:
    """Send a signal to the jobs that wait for its name.

    The signal is kept for jobs that begin to wait later. The first of a name counts.

    Args:
        connection: Any connection that enqueue takes; with an async one, await the
            call.
        name: The name that the jobs wait for.
        payload: Any JSON; wait_for returns it.
        keep: How long the signal is kept.

    Returns:
        The number of jobs that it has woken.

    Raises:
        InvalidArgument: The name, the payload or keep is not allowed.

    Example:
        >>> pulse.signal(connection, "approved 7", {"by": "ann"})
        0
    """
    values = {
        "signal": name,
        "payload": to_json(payload),
        "keep": to_interval_text(keep, "keep"),
    }
    return adapters.fetch(connection, sql.SIGNAL, values, _id)


def job_of(job: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """An element of the list that enqueue_many and spawn take."""
    own = {k: v for k, v in job.items() if k not in ("kind", "payload")}
    if "kind" not in job:
        raise InvalidArgument(
            "each job needs a kind",
            detail=f"One has only {', '.join(job) or 'nothing'}.",
        )
    payload = job.get("payload")
    return {
        "kind": job["kind"],
        "payload": {} if payload is None else payload,
        **as_json(stamped(job["kind"], {**common, **given(own)})),
    }
