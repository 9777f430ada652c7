"""Every statement of the web app fits the schema and reads no table."""

from __future__ import annotations

import re

import pytest

from pulse.web import queries
from tests.conftest import Connection

STATEMENTS = {
    name: text
    for name, text in vars(queries).items()
    if isinstance(text, str) and text.strip().startswith("SELECT")
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_every_statement_can_be_prepared(name: str, connection: Connection) -> None:
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

    text = re.sub(r"%\((\w+)\)s", number, STATEMENTS[name])
    connection.execute(f"PREPARE statement AS {text}".encode())


def test_only_functions_and_views_are_named(connection: Connection) -> None:
    tables = {
        row[0]
        for row in connection.execute(
            "SELECT c.relname FROM pg_class AS c "
            "WHERE c.relnamespace = 'pulse_internal'::regnamespace AND c.relkind = 'r'"
        )
    }
    named = {
        name
        for text in vars(queries).values()
        if isinstance(text, str)
        for name in re.findall(r"\bpulse(?:_internal)?\.(\w+)\b(?!\()", text)
    }
    assert {"lanes", "jobs", "workers"} <= named
    assert not named & tables
    assert "pulse_internal" not in "".join(STATEMENTS.values())
