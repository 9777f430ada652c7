"""Files stay short enough to be read at once, and are found where they are cited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import paths

MOST = 400
PARTS = sorted((paths.ROOT / "extension/sql").glob("*.sql"))
FILES = [
    *PARTS,
    *(paths.ROOT / "python/pulse").rglob("*.py"),
]


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if len(file.read_text().splitlines()) > MOST],
    ids=lambda file: file.name,
)
def test_a_long_file_says_in_its_head_why_it_is_long(file: Path) -> None:
    head = "\n".join(file.read_text().splitlines()[:40])
    assert "file is long" in head, f"{file} has more than {MOST} lines"


def test_no_two_parts_of_the_extension_have_one_number() -> None:
    numbers = [file.name.split("_")[0] for file in PARTS]
    assert len(numbers) == len(set(numbers))


def test_a_verb_comes_first_in_its_part() -> None:
    for part in PARTS:
        names = re.findall(r"^CREATE FUNCTION pulse\.(\w+)", part.read_text(), re.M)
        public = [name for name in names if not name.startswith("_")]
        assert public[:1] in ([], names[:1]), part.name


def test_a_part_that_is_cited_exists() -> None:
    known = {p.name for p in [*PARTS, *(paths.ROOT / "tests/sql").glob("*.sql")]}
    # add-a-verb.md adds one.
    known.add("7e_hurry.sql")
    for page in [
        *PARTS,
        *paths.ROOT.glob("*.md"),
        *paths.ROOT.glob("*/README.md"),
        *(paths.ROOT / "docs").rglob("*.md"),
    ]:
        cited = re.findall(r"\b\d[0-9a-z]{1,2}_[a-z_]+\.sql", page.read_text())
        assert set(cited) <= known, page
