"""docs/access.md: its table is what the catalog grants, cell by cell."""

from __future__ import annotations

import re

from tests.conftest import Connect
from tools import paths

PAGE = (paths.ROOT / "docs/access.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
HEAD, TABLE = ROWS[0], ROWS[1:]

# Every public function and view, and whether the role may use it.
PUBLIC = """
    SELECT p.proname::text, has_function_privilege(%(role)s, p.oid, 'EXECUTE')
    FROM pg_proc AS p
    WHERE p.pronamespace = 'pulse'::regnamespace
    UNION
    SELECT c.relname::text, has_table_privilege(%(role)s, c.oid, 'SELECT')
    FROM pg_class AS c
    WHERE c.relnamespace = 'pulse'::regnamespace
        AND c.relkind = 'v'
"""


def test_the_table_says_what_the_catalog_grants(connect: Connect) -> None:
    owner = connect(autocommit=False)
    granted: dict[str, set[str]] = {}
    for level in HEAD[1:]:
        owner.execute(f"CREATE ROLE docs_{level}".encode())
        owner.execute("SELECT pulse.grant_access(%s, %s)", [f"docs_{level}", level])
        for name, may in owner.execute(PUBLIC, {"role": f"docs_{level}"}):
            granted.setdefault(name, set()).update([level] if may else [])
    owner.rollback()
    page = {
        name: {level for level, cell in zip(HEAD[1:], cells, strict=True) if cell}
        for names, *cells in TABLE
        for name in re.findall(r"`(\w+)`", names)
    }
    assert page == granted
