"""The SQL files: a verb opens its file, and a file that a text cites exists."""

from __future__ import annotations

import re

from tools import paths

SQL = paths.EXTENSION / "sql"
PARTS = sorted(SQL.rglob("*.sql"))
PGTAP = paths.ROOT / "tests/sql"
FOLDERS = sorted({p.parent.name for p in [*SQL.rglob("*.sql"), *PGTAP.rglob("*.sql")]})


def test_every_file_that_a_text_cites_exists() -> None:
    folders = "|".join(FOLDERS)
    cited = re.compile(
        rf"(?<![\w/.-])(?:(?:extension|tests)/sql/)?((?:{folders})/\w+\.sql)"
    )
    # The page add-a-verb.md adds this file.
    known = {"operate/hurry.sql"}
    for base in (SQL, PGTAP):
        known |= {str(p.relative_to(base)) for p in base.rglob("*.sql")}
    for page in [
        *PARTS,
        *paths.ROOT.glob("*.md"),
        *paths.ROOT.glob("*/README.md"),
        *(paths.ROOT / "docs").rglob("*.md"),
    ]:
        missing = set(cited.findall(page.read_text())) - known
        assert not missing, f"{page} cites files that do not exist: {missing}"
