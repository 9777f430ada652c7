"""The ASGI app: `create_app(dsn)`, to be served alone or mounted into a site."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse

from pulse.web import problems
from pulse.web.access.auth import COOKIE, Authenticator, FirstOf, Tokens
from pulse.web.access.guard import Guard
from pulse.web.access.login import STATIC, Login
from pulse.web.database import Database
from pulse.web.live.hub import Hub
from pulse.web.routes import (
    flows,
    groups,
    jobs,
    kinds,
    lanes,
    metrics,
    overview,
    schedules,
    streams,
)
from pulse.web.routes.parameters import refuse_unknown
from pulse.web.schemas import responses

API = "/admin/workers"


def create_app(
    dsn: str = "",
    *,
    authenticate: Authenticator | None = None,
    tokens: Tokens | None = None,
    allow_hosts: Iterable[str] = (),
    max_connections: int = 8,
) -> FastAPI:
    """The app. Without authenticate or tokens it answers this machine only.

    tokens brings the login page; authenticate is any callable that says who asks, and
    is asked first. A mounted app does not learn when its site ends:
    call `await close(app)` there.
    """
    database = Database(dsn, max_connections=max_connections)
    hub = Hub(database)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await close(app)

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
    app.state.database, app.state.hub = database, hub
    problems.install(app)
    checked = [Depends(refuse_unknown)]
    api = APIRouter(prefix=API, dependencies=checked)
    parts = (overview, lanes, groups, kinds, streams, jobs, flows, schedules)
    for part in parts:
        api.include_router(part.router)
    app.include_router(api)
    app.include_router(metrics.router, dependencies=checked)
    app.add_api_route("/", page, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))
    ways = [way for way in (authenticate, tokens) if way is not None]
    app.add_middleware(
        Guard,
        authenticate=FirstOf(*ways) if ways else None,
        login=Login(tokens) if tokens else None,
        allow_hosts=allow_hosts,
    )
    app.openapi = lambda: described(app, by_token=tokens is not None)  # type: ignore[method-assign]
    return app


async def close(app: FastAPI) -> None:
    """End the streams and the connections to the database."""
    await app.state.hub.close()
    await app.state.database.close()


async def page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


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
