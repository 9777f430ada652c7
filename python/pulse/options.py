"""The options of enqueue, and how Python values become arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from pulse.errors import InvalidArgument
from pulse.sql import producer as sql

Duration = timedelta | float | str
"""A timedelta, seconds, or what PostgreSQL reads as an interval: '30s', '5 minutes'."""


class Options(TypedDict, total=False):
    """What enqueue takes besides kind and payload; None means the kind's setting."""

    lane: str | None
    priority: int | None
    run_at: datetime | None
    delay: Duration | None
    max_attempts: int | None
    unique_key: str | None
    unique_for: Duration | None
    on_conflict: Literal["skip", "replace", "error"] | None
    group_key: str | None
    requires_approval: bool | None
    tags: list[str] | None
    max_runtime: Duration | None


def to_json(value: Any, what: str = "payload") -> str:
    """Strict JSON: what cannot be stored is refused here, by its name."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{what} cannot be written as JSON",
            detail=f"{error}.",
            hint="Use dicts with text keys, lists, text, numbers, booleans and None.",
        ) from error


def to_interval(value: Duration | None) -> timedelta | str | None:
    if value is None or isinstance(value, (str, timedelta)):
        return value
    return timedelta(seconds=value)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as values psycopg can pass."""
    unknown = options.keys() - sql.OPTIONS
    if unknown:
        raise TypeError(f"enqueue has no option {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if sql.ENQUEUE_ARGUMENTS[name] == "interval":
            value = to_interval(value)
        elif name == "run_at":
            value = to_instant(value)
        elif name == "tags":
            value = list(value)
        values[name] = value
    return values


def to_instant(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise InvalidArgument(
            "run_at must have a time zone",
            detail=f"It is {value}, and the server may be in another zone.",
            hint="Pass datetime.now(timezone.utc) + …, or use delay.",
        )
    return value


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values for a JSON document."""
    return {
        name: (
            f"{value.total_seconds():.6f} seconds"
            if isinstance(value, timedelta)
            else value.isoformat()
            if isinstance(value, datetime)
            else value
        )
        for name, value in values.items()
    }
