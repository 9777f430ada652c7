"""The verbs of pulse: their arguments, the levels that may call them, their job states.

verbs.json is the answer of pulse.verbs() in the SQL that this package carries: `make
reference` writes it, and a test compares it with a database. It is here for code that
needs it before there is a connection: the schemas of the HTTP API, options of the
command line, and the message for a role that may not even ask.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).parent / "verbs.json"


@dataclass(frozen=True)
class Verb:
    """One function of schema pulse; of overloads the one with the most arguments."""

    arguments: dict[str, dict[str, Any]]
    """By name: type, required, default, and limits by unit."""
    access: tuple[str, ...]
    """The least levels that may call it, in the order of grant_access."""
    states: tuple[str, ...] | None
    """The states of jobs on which it acts."""


@cache
def known() -> dict[str, Verb]:
    """Every verb by its name."""
    found: dict[str, Verb] = {}
    for row in json.loads(SNAPSHOT.read_text(encoding="utf-8")):
        states = row["states"]
        found[row["verb"]] = Verb(
            {argument["name"]: argument for argument in row["arguments"]},
            tuple(row["access"]),
            None if states is None else tuple(states),
        )
    return found


def limits(verb: str, argument: str) -> tuple[Any, Any]:
    """The least and the most of an argument, in its unit."""
    allowed = known()[verb].arguments[argument]["limits"]
    [span] = [allowed[unit] for unit in allowed]
    return span["min"], span["max"]


def most(verb: str, argument: str) -> Any:
    """The highest number, or the greatest length, size or number of items."""
    return limits(verb, argument)[1]


def choices(verb: str, argument: str) -> tuple[str, ...]:
    """Return the words that the argument may be."""
    return tuple(known()[verb].arguments[argument]["limits"]["choices"])


def required(verb: str) -> tuple[str, ...]:
    """The arguments that every call names."""
    arguments = known()[verb].arguments.items()
    return tuple(name for name, argument in arguments if argument["required"])


def levels(name: str) -> tuple[str, ...]:
    """The least levels that may use a function or view of schema pulse.

    A viewer reads every view; a test says so.
    """
    verb = known().get(name)
    return verb.access if verb else ("viewer",)
