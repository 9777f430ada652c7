"""Flows under stress, for a moment: nothing early, nothing lost (flows_stress.py)."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from tests.engine import flows_stress


@pytest.mark.proves("G20")
def test_nothing_is_released_early_and_nothing_is_lost(db: Database) -> None:
    books = flows_stress.run(db, seconds=5, seed=1)
    assert books.jobs > 100
    assert books.edges > 100
    assert books.sound, books
