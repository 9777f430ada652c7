"""extension/api.txt is the public API: psql shows it in schema pulse, and no more."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Database
from tools import api


def listed(section: str) -> set[str]:
    """The names that a section of extension/api.txt has, without its details."""
    text = api.API.read_text().partition(f"[{section}]\n")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+)", text, re.MULTILINE))


def shown(db: Database, command: str) -> set[str]:
    """The names that psql shows for a command, in its second column."""
    output = db.psql("-F", "\t", "-c", command)
    rows = [line.split("\t") for line in output.splitlines()]
    return {row[1] for row in rows if row[0] == "pulse"}


def test_the_listing_is_what_the_catalog_has(db: Database) -> None:
    assert api.listing(db.dsn) == api.API.read_text(), "run `make api` if it is meant"


@pytest.mark.parametrize(
    ("command", "section"),
    [(r"\df pulse.*", "functions"), (r"\dv pulse.*", "views")],
)
def test_psql_shows_the_listed_names(db: Database, command: str, section: str) -> None:
    names = shown(db, command)
    assert names == listed(section)
    assert names


@pytest.mark.parametrize("command", [r"\dt pulse.*", r"\ds pulse.*", r"\dm pulse.*"])
def test_psql_shows_no_table_and_no_sequence(db: Database, command: str) -> None:
    assert shown(db, command) == set()


def test_psql_shows_the_listed_types(db: Database) -> None:
    output = db.psql("-F", "\t", "-c", r"\dT pulse.*")
    names = {line.split("\t")[1].partition(".")[2] for line in output.splitlines()}
    assert names == listed("types")


def test_an_object_that_nobody_listed_changes_the_listing(db: Database) -> None:
    db.connect().execute("CREATE DOMAIN pulse.stray AS integer")
    assert "type pulse.stray" in api.listing(db.dsn)
