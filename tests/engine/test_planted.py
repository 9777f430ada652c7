"""The planted bugs can still be planted; `make model PLANTED=all` finds each."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from tests.engine.planted import PLANTED, Planted, plant


def test_every_planted_bug_can_be_planted(db: Database) -> None:
    connection = db.connect(autocommit=False)
    for bug in PLANTED:
        plant(connection, bug)
        connection.rollback()


def test_a_bug_without_its_text_is_refused(db: Database) -> None:
    with pytest.raises(AssertionError, match="is not as it was"):
        plant(db.connect(), Planted("promote", "no such text", "", "none"))
