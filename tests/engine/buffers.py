"""How many buffers a statement touches, nested statements of its functions included."""

from __future__ import annotations

from typing import Any

import psycopg

Connection = psycopg.Connection[Any]


def usual(connection: Connection, statement: str, *parameters: object) -> int:
    """What the statement touches once this session has its plans, a median."""
    for _ in range(3):
        touched(connection, statement, *parameters)
    return sorted(touched(connection, statement, *parameters) for _ in range(3))[1]


def touched(connection: Connection, statement: str, *parameters: object) -> int:
    """Run the statement under EXPLAIN and return its shared buffers, hit or read."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    row = connection.execute(explain.encode(), parameters).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
