"""Tenants with one job each behind the backlog of one: within 1.1 rounds all have run.

PULSE_LOAD=100000 is 90,000 jobs of one tenant and 10,000 others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conftest import Connection, Database

JOBS = int(os.environ.get("PULSE_LOAD", "10000"))
SMALL = JOBS // 10

BIG = """
    SELECT count(b.job)
    FROM (
        SELECT
            pulse.enqueue_many(
                'scan', array_fill('{}'::jsonb, ARRAY[1000]), lane => 'fair',
                group_key => 'big'
            ) AS job
        FROM generate_series(1, %(jobs)s, 1000)
    ) AS b
"""
OTHERS = """
    SELECT count(pulse.enqueue(
        CASE n %% 2 WHEN 0 THEN 'scan' ELSE 'mail' END, lane => 'fair',
        priority => (n %% %(levels)s)::integer, group_key => 'small ' || n
    ))
    FROM generate_series(1, %(jobs)s) AS n
"""
CLAIM = """
    SELECT c.group_key, c.lease
    FROM pulse.claim_batch('w', 'fair', 50, kinds => %s) AS c
"""


def starts(connection: Connection, kinds: list[str] | None = None) -> Iterator[str]:
    """The groups of the jobs that one client is given, one after the other."""
    while rows := connection.execute(CLAIM, (kinds,)).fetchall():
        yield from (group for group, _ in rows)
        leases = [lease for _, lease in rows]
        connection.execute("SELECT pulse.complete_batch(%s, quiet => true)", (leases,))


@pytest.mark.parametrize(
    ("settings", "levels", "kinds"),
    [
        pytest.param("fair => true", 1, None, id="fair"),
        pytest.param("fair => true", 3, None, id="with priorities"),
        pytest.param("fair => true", 1, ["scan", "mail"], id="with kinds"),
        pytest.param("group_slots => 10, max_slots => 40", 1, None, id="with slots"),
    ],
)
def test_a_tenant_waits_for_one_round(
    db: Database, settings: str, levels: int, kinds: list[str] | None
) -> None:
    with db.connect() as connection:
        connection.execute(f"SELECT pulse.set_lane('fair', {settings})".encode())
        made = connection.execute(BIG, {"jobs": JOBS - SMALL}).fetchone()
        assert made == (JOBS - SMALL,)
        connection.execute(OTHERS, {"jobs": SMALL, "levels": levels})
        left, number = SMALL, 0
        for group in starts(connection, kinds):
            number += 1
            left -= group != "big"
            if left == 0:
                break
    assert left == 0
    assert number <= 1.1 * (SMALL + 1) + 1
