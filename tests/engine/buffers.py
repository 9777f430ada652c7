"""What a statement costs: its buffers and plans, those of its functions included."""

from __future__ import annotations

import json
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


def explained(
    connection: Connection, statement: str, *parameters: object
) -> list[dict[str, Any]]:
    """The plans of all statements that this one ran, with how many rows they had."""
    said: list[str] = []
    connection.add_notice_handler(lambda d: said.append(d.message_primary or ""))
    connection.execute("LOAD 'auto_explain'")
    for setting in (
        *("log_min_duration = 0", "log_nested_statements = on", "log_analyze = on"),
        *("log_timing = off", "log_verbose = on", "log_format = json"),
        "log_level = notice",
    ):
        connection.execute(f"SET auto_explain.{setting}".encode())
    connection.execute(statement.encode(), parameters or None)
    connection.execute("SET auto_explain.log_min_duration = -1")
    return [
        json.loads(message.split("plan:", 1)[1])["Plan"]
        for message in said
        if "plan:" in message
    ]
