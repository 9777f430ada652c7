"""Errors as application/problem+json (RFC 9457), with the SQLSTATE of the database.

install() adds the handlers of exceptions to the app; each answers with a Problem.
"""

from __future__ import annotations

import http
import logging
from dataclasses import dataclass
from typing import Any

import psycopg
import psycopg_pool
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import compile_path

from pulse import errors
from pulse.web.database import NoSuchRole

log = logging.getLogger("pulse.web")


@dataclass(eq=False)
class Problem(Exception):
    """An error as the client reads it."""

    status: int
    title: str
    detail: str | None = None
    sqlstate: str | None = None
    hint: str | None = None

    def body(self) -> dict[str, Any]:
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "sqlstate": self.sqlstate,
            "hint": self.hint,
        }

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse(
            self.body(),
            self.status,
            headers=headers,
            media_type="application/problem+json",
        )


def from_database(error: psycopg.Error) -> Problem:
    """An error of the database, as errors.describe has it."""
    found = errors.describe(error)
    if found.http_status == 503:
        log.warning("the database cannot answer: %s", found.message)
    if found.http_status == 500:
        log.error("the database answered with an error", exc_info=error)
    return Problem(
        found.http_status, found.message, found.detail, found.sqlstate, found.hint
    )


def from_request(error: RequestValidationError) -> Problem:
    """Malformed input: every place where it is wrong, in one sentence each."""
    found = [
        f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
        for each in error.errors()
    ]
    return Problem(422, "the request is not understood", "; ".join(found)[:2000])


def from_exception(error: Exception) -> Problem | None:
    """Describe any error for the client; None for a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return from_request(error)
    if isinstance(error, HTTPException):
        title = http.HTTPStatus(error.status_code).phrase
        detail = error.detail if error.detail != title else None
        return Problem(error.status_code, title, detail)
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.TooManyRequests):
        return Problem(
            503,
            "no connection to the database",
            str(error),
            hint="Is it running, and does it accept the DSN of pulse web?",
        )
    if isinstance(error, NoSuchRole):
        return Problem(
            403,
            str(error),
            sqlstate="42501",
            hint="GRANT the role to the role of the DSN of pulse web.",
        )
    if isinstance(error, psycopg.Error):
        return from_database(error)
    if isinstance(error, UnicodeEncodeError):
        return Problem(422, "a text is not valid Unicode")
    return None


async def answer(request: Request, error: Exception) -> JSONResponse:
    problem = from_exception(error)
    if problem is None:
        raise error
    found = getattr(error, "headers", None)
    headers = dict(found) if isinstance(found, dict) else {}
    if problem.status == 405:
        headers["Allow"] = ", ".join(allowed_methods(request))
    return problem.response(headers)


def allowed_methods(request: Request) -> list[str]:
    """The methods of a path. The framework names those of its first route alone."""
    root = request.scope.get("root_path", "")
    path = request.scope["path"].removeprefix(root)
    methods: set[str] = set()
    for template, operations in request.app.openapi()["paths"].items():
        if compile_path(template)[0].match(path):
            methods.update(name.upper() for name in operations)
    # Outside of the document are the page, its files and the document itself.
    return sorted(methods or {"GET", "HEAD"})


def install(app: FastAPI) -> None:
    for kind in (
        Problem,
        RequestValidationError,
        HTTPException,
        NoSuchRole,
        psycopg.Error,
        UnicodeEncodeError,
    ):
        app.add_exception_handler(kind, answer)
