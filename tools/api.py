"""extension/api.txt: what schema pulse offers, as a database with pulse lists it.

    python -m tools.api                write it, from a server started for the purpose
    python -m tools.api DSN            write it, from this database
    python -m tools.api --check DSN    print what differs, exit 1 when something does

A change of this file is a change of the public API: a reviewer reads it line by line.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from typing import Any

import psycopg

from tools import paths, reference, servers

API = paths.EXTENSION / "api.txt"
HEAD = """\
# The public API of pulse: everything in schema pulse, and the error codes.
# Written by `make api`; a test compares it with the catalog.
"""

# Whatever lies in the schema, of any sort: what nobody thought of is listed as well.
OTHERS = """
SELECT i.type || ' ' || i.identity
FROM pg_depend AS d
CROSS JOIN pg_identify_object(d.classid, d.objid, d.objsubid) AS i
WHERE
    d.refclassid = 'pg_namespace'::regclass
    AND d.refobjid = 'pulse'::regnamespace
    AND i.type NOT IN ('function', 'procedure', 'view', 'composite type')
    AND NOT EXISTS (
        SELECT FROM pg_type AS t
        WHERE t.oid = d.objid AND d.classid = 'pg_type'::regclass AND t.typtype = 'c'
    )
ORDER BY 1
"""


def listing(dsn: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in lines(dsn)).replace(
        "timestamp with time zone", "timestamptz"
    )


def lines(dsn: str) -> Iterator[str]:
    functions, columns, types = reference.ask(dsn)
    yield from ("", "[functions]")
    for function in functions:
        if function.public:
            yield from ("", f"{function.name} -> {function.returns()}")
            yield from (f"    {argument}" for argument in function.arguments())
    for title, wanted in (("views", False), ("types", True)):
        yield from ("", f"[{title}]")
        names = dict.fromkeys(c.view for c in columns if (c.view in types) is wanted)
        for name in names:
            yield from ("", name)
            yield from (f"    {c.name} {c.type}" for c in columns if c.view == name)
    connection: psycopg.Connection[Any]
    with psycopg.connect(dsn) as connection:
        others = [row[0] for row in connection.execute(OTHERS).fetchall()]
    if others:
        yield from ("", "[others]", "", *others)
    yield from ("", "[error codes]", "")
    yield from sorted(reference.raised(functions))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dsn", nargs="?", help="a database with pulse in it")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    if options.dsn:
        text = listing(options.dsn)
    else:
        with servers.temporary() as server:
            text = listing(server.dsn(server.create(product="plain")))
    if not options.check:
        API.write_text(text)
        return 0
    before = API.read_text().splitlines()
    found = list(
        difflib.unified_diff(
            before, text.splitlines(), "extension/api.txt", "the catalog", lineterm=""
        )
    )
    if found:
        print("\n".join([*found, "If the change is meant: `make api`"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
