"""Take a rule out of an installed database, loudly where its text has changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg


class Changed(Exception):
    """The text of a rule is not where the mutation looks for it."""


@dataclass(frozen=True)
class Change:
    """A pattern in a function, and what stands there instead."""

    function: str
    pattern: str
    instead: str
    # How often the pattern is there; every place is changed.
    times: int = 1

    def statement(self, connection: psycopg.Connection[Any]) -> str:
        row = connection.execute(
            "SELECT pg_get_functiondef(%s::regproc)", (self.function,)
        ).fetchone()
        assert row is not None
        body, found = re.subn(self.pattern, self.instead, row[0])
        if found != self.times:
            raise Changed(
                f"{self.function} has {self.pattern!r} {found} times, not {self.times}"
            )
        return body


@dataclass(frozen=True)
class Mutation:
    """How a rule is taken out, and what is known to notice it."""

    # A text is a statement that is run as it is.
    changes: tuple[Change | str, ...]
    specs: tuple[str, ...] = ()
    chaos: str | None = None
    chaos_flows: str | None = None
    stress: str | None = None

    def apply(self, connection: psycopg.Connection[Any]) -> None:
        for change in self.changes:
            if isinstance(change, str):
                connection.execute(change.encode())
            else:
                connection.execute(change.statement(connection).encode())


def without(*changes: Change | str, **noticed_by: Any) -> Mutation:
    return Mutation(changes, **noticed_by)
