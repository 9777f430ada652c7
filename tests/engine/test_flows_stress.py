"""Flows under stress, for a moment: nothing early, nothing lost (flows_stress.py)."""

from __future__ import annotations

import pytest

from tests import isolation
from tests.conftest import Database
from tests.engine import flows_stress
from tests.isolation import mutations


@pytest.mark.proves("G20")
def test_nothing_is_released_early_and_nothing_is_lost(db: Database) -> None:
    books = flows_stress.run(db, seconds=5, seed=1)
    assert books.jobs > 100
    assert books.edges > 100
    assert books.sound, books


def test_every_rule_that_a_spec_is_shown_to_need_is_still_there(db: Database) -> None:
    """tests/isolation/mutations.py takes them out, one by one."""
    connection = db.connect()
    for rule in mutations.RULES.values():
        with connection.transaction(force_rollback=True):
            connection.execute(mutations.mutated(connection, rule).encode())
        for spec in rule.specs:
            assert (isolation.HERE / "specs" / f"{spec}.spec").exists()
