"""The login page: a user types in a token once, and the browser keeps a cookie.

guard.py passes it the requests of browsers that are not logged in.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from pulse.web.access.auth import COOKIE, Tokens
from pulse.web.problems import Problem

STATIC = Path(__file__).parent.parent / "static"
# Of several databases each has a page below this: the login is the same.
NODE = re.compile(r"/node/(\d{1,4})(?=/)")


class Login:
    """Answers the requests of visitors that are not logged in."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._assets = assets_of(STATIC / "login.html")

    def takes(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and page_path(scope) in (
            "/login",
            "/logout",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer: Response
        if page_path(scope) == "/logout":
            answer = Response(status_code=204)
            answer.delete_cookie(
                COOKIE,
                path=root(scope),
                httponly=True,
                samesite="strict",
                secure=is_secure(request),
            )
        else:
            answer = await self._log_in(request)
        await answer(scope, receive, send)

    async def _log_in(self, request: Request) -> Response:
        cookie = self._tokens.cookie(token_in(await request.body()))
        if cookie is None:
            raise Problem(401, "this is not a token", "Check it, and try again.")
        answer = Response(status_code=204)
        answer.set_cookie(
            COOKIE,
            cookie,
            path=root(request.scope),
            httponly=True,
            samesite="strict",
            secure=is_secure(request),
        )
        return answer

    async def shows(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer with the login page or a part of it; False for all else."""
        path = page_path(scope)
        if scope["method"] not in ("GET", "HEAD"):
            return False
        if path in ("", "/"):
            page = FileResponse(STATIC / "login.html", 401)
            await page(scope, receive, send)
            return True
        name = path.removeprefix("/static/")
        if path.startswith("/static/") and name in self._assets:
            await FileResponse(STATIC / name)(scope, receive, send)
            return True
        return False


def is_secure(request: Request) -> bool:
    """Read X-Forwarded-Proto of any client: it only makes the cookie stricter."""
    forwarded = request.headers.get("x-forwarded-proto")
    return "https" in (request.url.scheme, forwarded)


def token_in(body: bytes) -> str:
    """{"token": "…"}; anything else holds no token."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("token", "")).strip() if isinstance(found, dict) else ""


def route_path(scope: Scope) -> str:
    """The path below where the app is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def page_path(scope: Scope) -> str:
    """The same below the page of one node."""
    return NODE.sub("", route_path(scope), count=1)


def root(scope: Scope) -> str:
    return str(scope.get("root_path", "")).rstrip("/") + "/"


def assets_of(page: Path) -> frozenset[str]:
    """The files a page loads, and those that they import."""
    found: set[str] = set()
    todo = [page] if page.exists() else []
    while todo:
        text = todo.pop().read_text()
        for name in re.findall(r"""(?:static/|["']\./)([\w-]+\.\w+)["']""", text):
            if name not in found and (page.parent / name).is_file():
                found.add(name)
                todo.append(page.parent / name)
    return frozenset(found)
