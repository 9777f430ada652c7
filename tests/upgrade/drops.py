"""Which functions an upgrade by hand has to drop, as CREATE OR REPLACE finds out.

python -m tests.upgrade.drops BEFORE.sql UPGRADE.sql      two plain scripts
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.upgrade import builds
from tools.servers import temporary


def refused(dsn: str, upgrade: str) -> Iterator[str]:
    """Try the upgrade, each time with one more DROP, until it passes."""
    code = re.search(r"^-- part: (?!\d)", upgrade, re.MULTILINE)
    assert code is not None
    head, rest = upgrade[: code.start()], upgrade[code.start() :].replace("COMMIT;", "")
    while True:
        with psycopg.connect(dsn, autocommit=True) as connection:
            try:
                connection.execute((head + rest).encode())
                return
            except psycopg.errors.InvalidFunctionDefinition as error:
                found = re.search(r"DROP \w+ .*\)", error.diag.message_hint or "")
                if found is None:
                    raise
        yield f"{found[0]};"
        head += f"{found[0]};\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as place, temporary() as server:
        if len(sys.argv) == 3:
            before, upgrade = (Path(each).read_text() for each in sys.argv[1:])
        else:
            made = builds.make(Path(place))
            before = made.plain("1.0")
            upgrade = (made.tree("1.1") / "build/pulse.1.0--1.1.sql").read_text()
        dsn = server.dsn(server.create())
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(before.encode())
        for drop in refused(dsn, upgrade):
            print(drop, flush=True)


if __name__ == "__main__":
    main()
