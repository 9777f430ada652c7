"""docs/security.md: each line on what a role can or cannot do names its test."""

from __future__ import annotations

import re

import pytest

from tools import paths

PAGE = (paths.ROOT / "docs/security.md").read_text()
NAMED = re.findall(r"`(tests/[\w./]+)`: \*(.+?)\*", PAGE)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_named_test_exists(file: str, name: str) -> None:
    text = (paths.ROOT / file).read_text()
    assert (f"def {name}(" if file.endswith(".py") else name) in text


def test_every_line_of_a_table_names_a_test() -> None:
    lines = [
        line
        for line in PAGE.splitlines()
        if line.startswith("| ") and not line.startswith(("| | test", "| | | test"))
    ]
    assert len(lines) > 20
    assert [
        line for line in lines if not re.search(r"`tests/.+?`: \*.+?\*", line)
    ] == []


def test_the_page_revokes_what_the_test_revokes() -> None:
    page = re.search(r"p\.proname ~ '(.+?)'", PAGE)
    tested = (paths.ROOT / "tests/engine/test_foreign_locks.py").read_text()
    assert page
    assert page.group(1) in tested
