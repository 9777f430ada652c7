"""Query parameters: a parameter that a route does not know is refused, not ignored.

app.py has every route depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.exceptions import RequestValidationError


async def refuse_unknown(request: Request) -> None:
    """A dependency of every route: `?kidn=mail` must not list every kind."""
    given = request.query_params
    if not given:
        return
    known = {each.alias: each for each in parameters(request.scope["route"].dependant)}
    wrong = []
    for name in given:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            wrong.append(problem(name, f"no such parameter; there are: {allowed}"))
        elif len(given.getlist(name)) > 1 and not takes_many(known[name]):
            wrong.append(problem(name, "given more than once"))
    if wrong:
        raise RequestValidationError(wrong)


def parameters(dependant: Any) -> Iterator[Any]:
    """Yield the parameters that FastAPI has found of a route and its dependencies."""
    yield from dependant.query_params
    for below in dependant.dependencies:
        yield from parameters(below)


def takes_many(field: Any) -> bool:
    annotation = field.field_info.annotation
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


def problem(name: str, message: str) -> dict[str, Any]:
    return {"loc": ("query", name[:100]), "msg": message, "type": "parameter"}
