"""Every statement of the web app fits the schema and reads no table."""

from __future__ import annotations

import asyncio
import re

import pytest

from pulse.sql.idle import IDLE_LIMIT
from pulse.web import database, queries
from tests.conftest import Connection, Database

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


def test_the_server_ends_a_request_that_leaves_its_transaction_idle(
    db: Database,
) -> None:
    async def limit() -> object:
        source = database.Database(db.dsn)
        try:
            async with source.session(None, read_only=False) as session:
                show = "SHOW idle_in_transaction_session_timeout"
                return await session.one(show)
        finally:
            await source.close()

    shown = asyncio.run(limit())
    assert shown == {"idle_in_transaction_session_timeout": IDLE_LIMIT}


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
