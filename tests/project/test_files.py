"""Files stay short enough to be read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import paths

MOST = 400
FILES = [
    *(paths.ROOT / "extension/sql").glob("*.sql"),
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
    numbers = [file.name.split("_")[0] for file in FILES if file.suffix == ".sql"]
    assert len(numbers) == len(set(numbers))
