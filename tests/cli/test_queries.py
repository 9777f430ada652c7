"""Every statement of operators fits the schema and reads no table."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pulse.cli import queries
from pulse.sql import operator
from tests.conftest import Connection

STATEMENTS = {
    name: text
    for module in (queries, operator)
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and name != "LIMITS"
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_every_statement_can_be_prepared(
    name: str, connect: Callable[..., Connection]
) -> None:
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

    text = re.sub(r"%\((\w+)\)s", number, STATEMENTS[name])
    connect().execute(f"PREPARE statement AS {text}".encode())


def test_only_functions_and_views_are_named(connect: Callable[..., Connection]) -> None:
    tables = {
        row[0]
        for row in connect().execute(
            "SELECT c.relname FROM pg_class AS c "
            "WHERE c.relnamespace = 'pulse_internal'::regnamespace AND c.relkind = 'r'"
        )
    }
    named = {
        name
        for text in STATEMENTS.values()
        for name in re.findall(r"\bpulse(?:_internal)?\.(\w+)\b(?!\()", text)
    }
    assert named
    assert not named & tables
    assert "pulse_internal" not in "".join(STATEMENTS.values())
