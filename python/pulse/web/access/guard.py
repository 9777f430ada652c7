"""The checks before every request: host, identity, cross-site requests, size, headers.

One plain ASGI layer, so that no route can be reached around it and a stream passes
through it unbuffered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse.web.access.auth import LOOPBACK_NAMES, Authenticator, Identity, Loopback
from pulse.web.access.login import Login
from pulse.web.problems import Problem, from_exception

log = logging.getLogger("pulse.web")

IDENTITY = "pulse.identity"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LARGEST_BODY = 1 << 20

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Passes a request to app when every check is met."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticate: Authenticator | None,
        login: Login | None,
        allow_hosts: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._authenticate = authenticate or Loopback()
        self._login = login
        self._named = frozenset(each.lower() for each in allow_hosts)
        # Without authentication a page of another site could point a name of its own
        # at this machine and read everything: only known names are answered.
        known = self._named or authenticate is None
        self._hosts = self._named | LOOPBACK_NAMES if known else frozenset[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._pass(scope, receive, send_guarded)
        except ClientDisconnect:
            pass  # The client has gone.
        except Exception as error:
            problem = from_exception(error)
            if problem is None:
                log.exception("%s %s failed", scope["method"], scope["path"])
                problem = Problem(500, "internal error", "See the log of the server.")
            if started:
                raise
            challenge = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
            await problem.response(challenge)(scope, receive, send_guarded)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._hosts:
            check_host(headers, self._hosts)
        limited = limit(headers, receive)
        if self._login is not None and self._login.takes(scope):
            refuse_other_sites(headers)
            await self._login(scope, limited, send)
            return
        identity = await self._authenticate(HTTPConnection(scope))
        if identity is None:
            if self._login is None or not await self._login.shows(scope, receive, send):
                raise Problem(
                    401,
                    "not authenticated",
                    "This address needs a token or a signed-in user.",
                    hint="Authorization: Bearer TOKEN, or open the page and sign in.",
                )
            return
        if identity.by_header:
            check_host(headers, self._named)
        if scope["method"] not in SAFE_METHODS:
            check_intent(headers, identity)
        scope[IDENTITY] = identity
        await self._app(scope, limited, send)


def check_host(headers: Headers, known: frozenset[str]) -> None:
    if host_name(headers.get("host", "")) not in known:
        raise Problem(
            421,
            "this host name is not served here",
            f"The request was for {headers.get('host', 'no host')[:100]}.",
            hint="pulse web --allow-host NAME, or create_app(allow_hosts=[NAME])",
        )


def host_name(host: str) -> str:
    """Without the port: names are compared, and any port may lead here."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def check_intent(headers: Headers, identity: Identity) -> None:
    """A change must come from our own page or from a program, never another site."""
    refuse_other_sites(headers)
    if not identity.bearer and headers.get("x-pulse") != "1":
        raise Problem(
            403,
            "the header X-Pulse is missing",
            "It shows that no other site sent this request.",
            hint="Send X-Pulse: 1, or a token as Authorization: Bearer.",
        )
    has_body = (
        headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body and kind != "application/json":
        raise Problem(
            415,
            "the body must be JSON",
            f"It says that it is {kind or 'nothing'}.",
            hint="Content-Type: application/json",
        )


def refuse_other_sites(headers: Headers) -> None:
    """By the headers that browsers add; programs send none."""
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        host = headers.get("host", "").lower()
        foreign = origin is not None and origin_host(origin) != host
    if foreign:
        raise Problem(
            403,
            "a request from another site",
            f"It came from {(origin or site or '')[:100]}.",
            hint="A proxy in between must hand on the Host header.",
        )


def origin_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def limit(headers: Headers, receive: Receive) -> Receive:
    """The same receive, which refuses a body that is too large."""
    length = headers.get("content-length", "0")
    seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST_BODY:
            raise too_large()
        return message

    if length.isdigit() and int(length) > LARGEST_BODY:
        raise too_large()
    return receive_limited


def too_large() -> HTTPException:
    """Of the one kind that FastAPI lets through while it reads a body."""
    return HTTPException(413, f"At most {LARGEST_BODY} bytes.")
