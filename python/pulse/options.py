"""The options of enqueue, and how Python values become arguments.

producer.py calls it for each enqueue: for psycopg options become parameters, for other
drivers they become JSON. Worker and job take durations, results and texts through it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from pulse import codecs
from pulse.errors import InvalidArgument, TooLarge
from pulse.sql import producer as sql

Duration = timedelta | float | str
"""A timedelta, seconds, or what PostgreSQL reads as an interval: '30s', '5 minutes'."""

OnConflict = Literal["skip", "replace", "error", "follow", "cancel"]


class Options(TypedDict, total=False):
    """Options of enqueue besides kind and payload; None means the kind's setting."""

    lane: str | None
    priority: int | None
    run_at: datetime | None
    delay: Duration | None
    max_attempts: int | None
    unique_key: str | None
    unique_for: Duration | None
    on_conflict: OnConflict | None
    group_key: str | None
    requires_approval: bool | None
    tags: list[str] | None
    max_runtime: Duration | None
    headers: Mapping[str, Any] | None
    start_by: datetime | None
    expires_in: Duration | None
    after: Sequence[int | str] | None
    after_failed: Literal["cancel", "hold", "run"] | None
    flow: str | None
    name: str | None


LARGEST_JSON = 1 << 20
"""Of a result and a checkpoint, in bytes of UTF-8; the server's limit as well."""

in_ascii = json.JSONEncoder(allow_nan=False, default=codecs.plain).encode
in_utf8 = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, default=codecs.plain
).encode
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def to_json(
    value: Any, what: str = "payload", encode: Callable[[Any], str] = in_ascii
) -> str:
    """Write strict JSON; raise InvalidArgument with the name of a bad value."""
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        where = codecs.path_of_unserializable(value)
        raise InvalidArgument(
            f"{what} cannot be written as JSON",
            detail=f"{where}: {error}." if where else f"{error}.",
            hint="Use dicts with text keys, lists, text, numbers, booleans, None and "
            "what pulse.codecs knows; pulse.codecs.register teaches it another type.",
        ) from error


def to_stored_json(value: Any, what: str) -> str:
    """Write JSON that the server takes, so that one report cannot fail its batch."""
    text = to_json(value, what, in_utf8)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what} holds half of a surrogate pair, which is no character",
            detail=f"{error}.",
            hint="Decode bytes with errors='replace'.",
        ) from error
    if size > LARGEST_JSON:
        raise TooLarge(
            f"{what} is too large",
            detail=f"It has {size} bytes as JSON; at most {LARGEST_JSON} are kept.",
            hint="Store it elsewhere and keep a reference.",
        )
    if "\\u0000" in text and NUL.search(text):
        raise InvalidArgument(
            f"{what} holds a NUL character, which PostgreSQL cannot store",
            hint="Take it out, or write the bytes as base64.",
        )
    return text


def to_text(text: str, longest: int) -> str:
    """Make text that the server takes: without NUL and half surrogates, and short."""
    if len(text) > longest:
        head, room = min(2000, longest // 5), longest - 50
        note = f"\n… {len(text) - room} characters left out …\n"
        text = f"{text[:head]}{note}{text[head - room :]}"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def to_interval(
    value: Duration | None, what: str = "a duration"
) -> timedelta | str | None:
    """Turn seconds into a timedelta; leave other durations to PostgreSQL."""
    if value is None or isinstance(value, (str, timedelta)):
        return value
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{what} cannot be {value!r}",
            detail=f"{error}.",
            hint="Pass seconds, a timedelta, or text that PostgreSQL reads: '5 min'.",
        ) from error


def to_interval_text(value: Duration | None, what: str) -> str | None:
    interval = to_interval(value, what)
    if isinstance(interval, timedelta):
        return f"{interval.total_seconds():.6f} seconds"
    return None if interval is None else to_text(interval, 1000)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None, as values psycopg can pass."""
    unknown = options.keys() - sql.OPTIONS
    if unknown:
        raise TypeError(f"enqueue has no option {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if sql.ENQUEUE_ARGUMENTS[name] == "interval":
            value = to_interval(value, name)
        elif name in ("run_at", "start_by"):
            value = to_instant(value, name)
        elif name in ("tags", "after"):
            value = list(value)
        elif name == "headers":
            value = dict(value)
        values[name] = value
    return values


def to_instant(value: datetime, name: str) -> datetime:
    if value.tzinfo is None:
        raise InvalidArgument(
            f"{name} must have a time zone",
            detail=f"It is {value}, and the server may be in another zone.",
            hint="Pass datetime.now(timezone.utc) + …, or a duration from now.",
        )
    return value


def as_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values for a call by argument."""
    return {
        name: to_json(value, name) if name == "headers" else value
        for name, value in values.items()
    }


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values for a JSON document."""
    return {
        name: (
            to_interval_text(value, name)
            if isinstance(value, timedelta)
            else value.isoformat()
            if isinstance(value, datetime)
            else value
        )
        for name, value in values.items()
    }
