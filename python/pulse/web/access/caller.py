"""Caller: the argument by which a route gets the database in the user's role.

FastAPI makes one for each request. It also has the shared streams.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request

from pulse.sql import operator
from pulse.web.access.auth import Identity
from pulse.web.access.guard import IDENTITY
from pulse.web.database import Database, Session
from pulse.web.live.hub import Hub

JobId = Annotated[
    int,
    Path(ge=1, le=2**63 - 1, description="The id that enqueue returned, in digits."),
]


@dataclass(frozen=True)
class Caller:
    """The user of a request, and what the request may use."""

    identity: Identity
    database: Database
    hub: Hub

    def reading(self) -> AbstractAsyncContextManager[Session]:
        return self.database.session(self.identity.role, read_only=True)

    def writing(self) -> AbstractAsyncContextManager[Session]:
        return self.database.session(self.identity.role, read_only=False)

    async def may_stream(self) -> bool:
        """Whether the role of the DSN, which reads the streams, may see everything."""
        async with self.database.session(None, read_only=True) as db:
            return operator.sees_all(await db.rights())


async def current_caller(request: Request) -> Caller:
    state = request.app.state
    return Caller(request.scope[IDENTITY], state.database, state.hub)


CurrentCaller = Annotated[Caller, Depends(current_caller)]
