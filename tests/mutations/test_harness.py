"""Every mutation fits the functions as they are, and says so when it does not."""

from __future__ import annotations

import pytest

from tests import isolation
from tests.conftest import Database
from tests.mutations import listed
from tests.mutations.harness import Change, Changed, without


def test_every_mutation_finds_its_rule(db: Database) -> None:
    connection = db.connect()
    for mutation in listed.ALL.values():
        with connection.transaction(force_rollback=True):
            mutation.apply(connection)


def test_every_spec_of_a_mutation_exists() -> None:
    named = {spec for each in listed.ALL.values() for spec in each.specs}
    known = {path.stem for path in (isolation.HERE / "specs").glob("*.spec")}
    assert named - known == set()


@pytest.mark.parametrize("pattern", ["a text that is nowhere", "lane"])
def test_a_text_that_is_not_there_once_is_refused(db: Database, pattern: str) -> None:
    change = Change("pulse_internal.take_slots", pattern, "")
    with pytest.raises(Changed, match="times, not 1"):
        without(change).apply(db.connect())
