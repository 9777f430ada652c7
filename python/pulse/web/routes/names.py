"""Names in paths: a slash inside a name is not the end of the name.

A client sends the lane mail/resume as `lanes/mail%2Fresume`. ASGI servers decode the
path before the app sees it, and then `PATCH lanes/mail/resume` could mean that lane or
a part of the lane mail. KeepSlashes builds the path again from the raw path, with the
slashes of names still escaped; PathName decodes them.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from pulse.web.schemas import requests


def escape(part: str) -> str:
    """Without slashes; a percent sign is escaped so that this can be undone."""
    return part.replace("%", "%25").replace("/", "%2F")


def unescape(part: object) -> object:
    if not isinstance(part, str):
        return part
    return part.replace("%2F", "/").replace("%25", "%")


PathName = Annotated[
    requests.Name,
    BeforeValidator(unescape),
    Path(description="A name; a slash in it is sent as %2F."),
]


class KeepSlashes:
    """Gives the app a path in which a name is one part, whatever is in it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root = escape_parts(scope.get("root_path", ""))
            scope = {**scope, "path": path_with_slashes(scope), "root_path": root}
        await self._app(scope, receive, send)


def path_with_slashes(scope: Scope) -> str:
    """The path with each part escaped; without a raw path the decoded one has to do."""
    path: str = scope["path"]
    raw = bytes(scope.get("raw_path") or b"").decode("latin-1")
    if unquote(raw) != path:
        return escape_parts(path)
    return "/".join(escape(unquote(part)) for part in raw.split("/"))


def escape_parts(path: str) -> str:
    return "/".join(escape(part) for part in path.split("/"))
