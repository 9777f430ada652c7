"""The ASGI app: `create_app(dsn)`, to be served alone or mounted into a site.

It puts together the database, the hub of the streams, the routes and the checks before
them. `pulse web` serves it (serving.py), and pulse.django has it as a view.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse

from pulse.connections import distinct_dsns
from pulse.web import problems
from pulse.web.access.auth import COOKIE, Authenticator, FirstOf, Tokens
from pulse.web.access.guard import Guard
from pulse.web.access.login import STATIC, Login
from pulse.web.database import Database
from pulse.web.fleet import ClosableGroup, Fleet, Node, ToNodes
from pulse.web.live.hub import Hub
from pulse.web.routes import (
    flows,
    groups,
    jobs,
    kinds,
    lanes,
    metrics,
    nodes,
    overview,
    schedules,
    streams,
)
from pulse.web.routes.names import KeepSlashes
from pulse.web.routes.parameters import refuse_unknown
from pulse.web.schemas import responses

API = "/admin/workers"


def create_app(
    dsn: str | Sequence[str] = "",
    *,
    authenticate: Authenticator | None = None,
    tokens: Tokens | None = None,
    allow_hosts: Iterable[str] = (),
    max_connections: int = 8,
) -> FastAPI:
    """Make the ASGI app of the operator's page and its HTTP API.

    Without authenticate and tokens it answers requests of this machine only. A mounted
    app does not learn when its site ends: call `await close(app)` there.

    Args:
        dsn: Where the database is; empty, the environment chooses. With several DSNs
            the page shows all of these databases together, and each by itself.
        authenticate: Returns the identity of a request's user, or None; it is called
            before tokens are looked at.
        tokens: The tokens of users; with them there is a login page.
        allow_hosts: Further host names under which the app answers.
        max_connections: How many connections it opens at most, for each database.

    Returns:
        The app.

    Raises:
        ValueError: A DSN is given twice, or none.
    """
    if isinstance(dsn, str):
        app = of_one(dsn, max_connections)
    else:
        app = of_all(distinct_dsns(dsn), max_connections)
    app.add_middleware(KeepSlashes)
    ways = [way for way in (authenticate, tokens) if way is not None]
    app.add_middleware(
        Guard,
        authenticate=FirstOf(*ways) if ways else None,
        login=Login(tokens) if tokens else None,
        allow_hosts=allow_hosts,
    )
    app.openapi = lambda: described(app, by_token=tokens is not None)  # type: ignore[method-assign]
    return app


def of_one(dsn: str, max_connections: int) -> FastAPI:
    """One database, unguarded."""
    app = empty("index.html")
    app.state.database = Database(dsn, max_connections=max_connections)
    app.state.hub = Hub(app.state.database)
    parts = (overview, lanes, groups, kinds, streams, jobs, flows, schedules)
    include(app, [part.router for part in parts], metrics.router)
    return app


def of_all(dsns: Sequence[str], max_connections: int) -> FastAPI:
    """Several databases, each with an app of its own below node/N/."""
    members = [Node(dsn, of_one(dsn, max_connections)) for dsn in dsns]
    app = empty("nodes.html")
    app.state.fleet = Fleet(members)
    app.state.hub = ClosableGroup([each.app.state.hub for each in members])
    app.state.database = ClosableGroup([each.app.state.database for each in members])
    include(app, [nodes.router], nodes.metrics_router)
    app.add_middleware(ToNodes, fleet=app.state.fleet)
    return app


def empty(page: str) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await close(app)

    async def front() -> FileResponse:
        return FileResponse(STATIC / page, headers={"Cache-Control": "no-cache"})

    app = FastAPI(
        title="pulse",
        version="1",
        summary="A job queue inside PostgreSQL: see it and steer it.",
        openapi_url=f"{API}/openapi.json",
        # Their pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        # A trailing slash too many is a 404, not a redirect.
        redirect_slashes=False,
        lifespan=lifespan,
    )
    problems.install(app)
    app.add_api_route("/", front, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))
    return app


def include(app: FastAPI, parts: Sequence[APIRouter], beside: APIRouter) -> None:
    """The API, and what stands beside it."""
    checked = [Depends(refuse_unknown)]
    api = APIRouter(prefix=API, dependencies=checked)
    for part in parts:
        api.include_router(part)
    app.include_router(api)
    app.include_router(beside, dependencies=checked)


async def close(app: FastAPI) -> None:
    """End the streams and the connections to the database."""
    await app.state.hub.close()
    await app.state.database.close()


# How a program authenticates, and how a browser that has logged in.
SCHEMES = {
    "token": {"type": "http", "scheme": "bearer"},
    "login": {"type": "apiKey", "in": "cookie", "name": COOKIE},
}


def described(app: FastAPI, *, by_token: bool) -> dict[str, Any]:
    """The OpenAPI document: every operation may also answer with a problem."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            routes=app.routes,
            servers=app.servers,
        )
        schemas = document["components"]["schemas"]
        schemas["Problem"] = responses.ProblemDetails.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        answer = {"schema": {"$ref": "#/components/schemas/Problem"}}
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = {
                    "description": "A problem",
                    "content": {"application/problem+json": answer},
                }
        if by_token:
            document["components"]["securitySchemes"] = SCHEMES
            document["security"] = [{name: []} for name in SCHEMES]
        app.openapi_schema = document
    return app.openapi_schema
