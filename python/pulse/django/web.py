"""The operator's page as a view of Django's, for staff; needs pgpulse[web].

The app is ASGI. It runs on an event loop in a thread of its own, so this view works
under WSGI, too. A stream would keep a thread of the site for as long as a page is open,
so here are none: the page shows the picture of now when it is asked to. With an ASGI
server mount the app itself (docs/django.md), with `staff` to authenticate.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from functools import lru_cache
from importlib import import_module
from typing import Any
from urllib.parse import quote, unquote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user
from django.contrib.auth.views import redirect_to_login
from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from pulse.django.connections import dsn
from pulse.web import Identity, close, create_app
from pulse.web.app import API

USER = "pulse.django.user"
LONGEST_REQUEST = 60.0
# Of the connection between Django and the browser, not of the page.
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


def identity(user: Any) -> Identity | None:
    """Staff; PULSE_WEB_ROLE names the role that their requests have."""
    if not (user.is_active and user.is_staff):
        return None
    return Identity(user.get_username(), role=getattr(settings, "PULSE_WEB_ROLE", None))


@csrf_exempt
def page(request: HttpRequest, path: str) -> HttpResponse:
    """Every address below the mount; requests that change something need X-Pulse."""
    user = identity(request.user)
    if user is None:
        if path:
            return problem(401, "not signed in", "Sign in as a member of the staff.")
        return redirect_to_login(request.get_full_path(), login_url())
    if path.endswith("stream"):
        return problem(
            503, "no streams here", "Press Refresh to see the present state."
        )
    status, headers, body = portal(os.getpid()).call(
        scope_of(request, path, user), request
    )
    if path == f"{API[1:]}/me" and status == 200:
        body = json.dumps({**json.loads(body), "streams": False}).encode()
    response = HttpResponse(body, status=status)
    for name, value in headers:
        if name not in HOP_BY_HOP:
            response[name] = value
    return response


def login_url() -> str | None:
    """That of the admin, where it is: it says that staff is meant."""
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return None


def problem(status: int, title: str, detail: str) -> HttpResponse:
    body = json.dumps({"title": title, "status": status, "detail": detail})
    return HttpResponse(body, status=status, content_type="application/problem+json")


def scope_of(request: HttpRequest, path: str, user: Identity) -> dict[str, Any]:
    prefix = request.path[: len(request.path) - len(path)].rstrip("/")
    decoded = f"{prefix}/{path}"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": decoded,
        "raw_path": raw_path(request, decoded),
        "root_path": prefix,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in request.headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR") or "", 0),
        "server": (request.get_host(), None),
        USER: user,
    }


def raw_path(request: HttpRequest, decoded: str) -> bytes:
    """The path before it was decoded, by which a slash in a name is known.

    WSGI has no name for it: servers that pass it on call it REQUEST_URI or RAW_URI.
    """
    for name in ("REQUEST_URI", "RAW_URI"):
        raw = str(request.META.get(name, "")).partition("?")[0]
        if unquote(raw) == decoded:
            return raw.encode()
    scope = getattr(request, "scope", {})
    return bytes(scope.get("raw_path", b"")) or quote(decoded).encode()


class Portal:
    """The app, and the event loop it lives on."""

    def __init__(self) -> None:
        database = getattr(settings, "PULSE_WEB_DATABASE", DEFAULT_DB_ALIAS)
        self._app = create_app(dsn(database), authenticate=by_scope, max_connections=4)
        self._active = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=self._loop.run_forever, name="pulse web", daemon=True
        ).start()

    def call(
        self, scope: dict[str, Any], request: HttpRequest
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        answering = asyncio.run_coroutine_threadsafe(
            self._answer(scope, request.body), self._loop
        )
        try:
            return answering.result(LONGEST_REQUEST)
        finally:
            answering.cancel()

    async def _answer(
        self, scope: dict[str, Any], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        started: dict[str, Any] = {}
        chunks: list[bytes] = []

        unread = [body]

        async def receive() -> dict[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop()}
            # Django has read the whole request: there is no disconnect to report.
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                chunks.append(message.get("body", b""))

        self._active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._active -= 1
            if not self._active:
                # As Django does after a request; a test could not drop its database.
                await close(self._app)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in started["headers"]
        ]
        return started["status"], headers, b"".join(chunks)


@lru_cache(maxsize=1)
def portal(process: int) -> Portal:
    """One for each process: a fork has no threads."""
    return Portal()


async def by_scope(connection: Any) -> Identity | None:
    found: Identity | None = connection.scope.get(USER)
    return found


async def staff(connection: Any) -> Identity | None:
    """For create_app(dsn, authenticate=staff) beside get_asgi_application()."""
    return await sync_to_async(signed_in)(connection.cookies)


def signed_in(cookies: dict[str, str]) -> Identity | None:
    engine = import_module(settings.SESSION_ENGINE)
    request = HttpRequest()
    request.session = engine.SessionStore(cookies.get(settings.SESSION_COOKIE_NAME))
    if SESSION_KEY not in request.session:
        return None
    return identity(get_user(request))
