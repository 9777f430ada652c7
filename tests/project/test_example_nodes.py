"""examples/nodes: a node is emptied into the others."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import pulse
from tests.conftest import Connection, Database
from tools import paths

EXAMPLE = runpy.run_path(str(paths.ROOT / "examples/nodes/empty.py"))
JOBS = "SELECT * FROM pulse.jobs WHERE state IN ('ready', 'scheduled')"


@pytest.fixture
def three(new_db: Callable[..., Database]) -> list[Connection]:
    made = [new_db().connect() for _ in range(3)]
    for number, connection in enumerate(made, 1):
        connection.execute("SELECT pulse.set_node(%s)", (number,))
    return made


def waiting(connections: list[Connection]) -> list[dict[str, Any]]:
    found = []
    for connection in connections:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        found += cursor.execute(JOBS).fetchall()
    return found


def test_a_node_is_emptied_into_the_others(three: list[Connection]) -> None:
    old, *others = three
    dsns = [connection.info.dsn for connection in others]
    for n in range(10):
        pulse.enqueue(old, "plain", {"n": n}, priority=n)
        pulse.enqueue(old, "grouped", {"n": n}, group_key="g", tags=["t"])
        pulse.enqueue(old, "late", {"n": n}, delay="1 day", unique_key=f"key {n}")
    pulse.enqueue(old, "asks", requires_approval=True)
    before = waiting([old])
    # Stopped after the first job was enqueued and before it was cancelled.
    job = {**before[0]}
    moves = "job_id kind payload lane priority run_at max_attempts unique_key"
    wanted = [*moves.split(), "group_key", "tags"]
    with pulse.Client(dsns) as client:
        first = EXAMPLE["move"](client, {name: job[name] for name in wanted})
        assert EXAMPLE["empty"](old.info.dsn, dsns) == {"awaiting_approval": 1}
        assert EXAMPLE["empty"](old.info.dsn, dsns) == {"awaiting_approval": 1}
        after = waiting(others)
        assert first in [job["job_id"] for job in after]
        assert {job["job_id"] >> 43 for job in after} == {2, 3}
        same = ("kind", "payload", "lane", "priority", "tags", "group_key")
        assert sorted(str([j[name] for name in same]) for j in after) == sorted(
            str([j[name] for name in same]) for j in before
        )
        late = {j["payload"]["n"]: j["run_at"] for j in before if j["kind"] == "late"}
        moved = {j["payload"]["n"]: j["run_at"] for j in after if j["kind"] == "late"}
        assert moved == late
        grouped = {j["job_id"] >> 43 for j in after if j["kind"] == "grouped"}
        assert len(grouped) == 1
        # Producers that know only the others find the keys where they are.
        found = client.enqueue("late", {}, unique_key="key 3")
        assert found in [job["job_id"] for job in after]
    assert old.execute("SELECT * FROM pulse.check()").fetchall() == []
