"""Planted bugs fit the functions as they are; `make model PLANTED=all` finds them."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from tests.engine.planted import PLANTED, Planted, plant


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.promise)
def test_planted_bug_fits_its_function(db: Database, bug: Planted) -> None:
    plant(db.connect(), bug)
