"""Django's connections around a handler, as Django treats them around a request.

A connection that broke, or is older than CONN_MAX_AGE, is closed before and after each
run. Otherwise a thread would keep a lost one, and fail every later job.
"""

from __future__ import annotations

from typing import Any, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from pulse.hooks import Hooks
from pulse.job import Job


class ConnectionLifecycle:
    """Closes Django's connections around a handler, as Django does around a request.

    A plain context in threads and processes, an async one on the event loop.
    """

    def __enter__(self) -> None:
        reset_queries()
        close_old_connections()

    def __exit__(self, *_: object) -> None:
        close_old_connections()

    async def __aenter__(self) -> None:
        # A thread of its own for the handler's use of the ORM.
        self._thread = cast(Any, ThreadSensitiveContext())
        await self._thread.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await sync_to_async(connections.close_all)()
        await self._thread.__aexit__(*error)


class FreshConnections(Hooks):
    """pulse.Worker(…, hooks=[FreshConnections()]), where handlers use the ORM."""

    def around(self, job: Job) -> Any:
        return ConnectionLifecycle()


def dsn(alias: str) -> str:
    """Where Django's connection leads, for connections of the worker's own."""
    given = connections[alias].get_connection_params()
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    kept = {name: given[name] for name in known & given.keys()}
    role = connections[alias].settings_dict.get("OPTIONS", {}).get("assume_role")
    if role:
        escaped = role.replace("\\", "\\\\").replace(" ", "\\ ")
        kept["options"] = f"{kept.get('options', '')} -c role={escaped}".strip()
    return make_conninfo(**{k: v for k, v in kept.items() if v not in (None, "")})
