"""docs/reference.md and verbs.json, from what a database with pulse says about itself.

tools/reference.py                write it, from a server started for the purpose
tools/reference.py DSN            write it, from this database
tools/reference.py --check        exit 1 when it, or docs/errors.md, is stale
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import class_row

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
ERRORS = ROOT / "docs" / "errors.md"
VERBS = ROOT / "python" / "pulse" / "verbs.json"

GROUPS = {
    "Producer": "Enqueue, in your own transaction.",
    "Worker": "Claim jobs and report on them. Every verb takes the lease.",
    "Operator": "See and steer.",
    "System": "Upkeep, checks, access.",
}
SYSTEM = {"tick", "reap", "check"}

# The type of the last argument of verbs that know their caller. No caller gives it, so
# neither the reference nor extension/api.txt lists it (docs/decisions/identity.md).
SIGNATURE = "pulse_internal.caller_signature"

FUNCTIONS = """
SELECT
    p.proname::text AS name,
    p.pronamespace = 'pulse'::regnamespace AS public,
    coalesce(p.proargnames, '{}') AS argument_names,
    array(
        SELECT format_type(t.type, NULL)
        FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid [])) WITH ORDINALITY
            AS t (type, n)
        ORDER BY t.n
    ) AS argument_types,
    coalesce(p.proargmodes::text [], '{}') AS argument_modes,
    array(
        SELECT pg_get_function_arg_default(p.oid, n)
        FROM generate_series(1, p.pronargs) AS n
    ) AS defaults,
    pg_get_function_result(p.oid) AS result,
    obj_description(p.oid, 'pg_proc') AS comment,
    p.prosrc AS source,
    array(
        SELECT m.access
        FROM pulse_internal.access_matrix() AS m
        WHERE m.namespace = 'pulse' AND m.object = p.proname
    ) AS levels
FROM pg_proc AS p
WHERE p.pronamespace IN ('pulse'::regnamespace, 'pulse_internal'::regnamespace)
ORDER BY p.proname, p.pronargs DESC
"""

COLUMNS = """
SELECT
    c.relname::text AS view,
    obj_description(c.oid, 'pg_class') AS view_comment,
    a.attname::text AS name,
    format_type(a.atttypid, a.atttypmod) AS type,
    coalesce(col_description(c.oid, a.attnum), '') AS comment,
    array(
        SELECT m.access
        FROM pulse_internal.access_matrix() AS m
        WHERE m.namespace = 'pulse' AND m.object = c.relname
    ) AS levels
FROM pg_class AS c
INNER JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'pulse'::regnamespace
    AND c.relkind IN ('v', 'c')
ORDER BY c.relname, a.attnum
"""

TYPES = """
SELECT t.typname::text, obj_description(t.oid, 'pg_type')
FROM pg_type AS t
INNER JOIN pg_class AS c ON c.oid = t.typrelid AND c.relkind = 'c'
WHERE t.typnamespace = 'pulse'::regnamespace
"""

LEVELS = ["producer", "worker", "viewer", "approver", "operator", "admin"]


@dataclass(frozen=True)
class Function:
    name: str
    public: bool
    argument_names: list[str]
    argument_types: list[str]
    argument_modes: list[str]
    defaults: list[str | None]
    result: str
    comment: str
    source: str
    levels: list[str]

    @property
    def group(self) -> str:
        if self.name in SYSTEM or set(self.levels) == {"admin"}:
            return "System"
        if "operator" in self.levels:
            return "Operator"
        return "Worker" if "worker" in self.levels else "Producer"

    def arguments(self) -> Iterator[str]:
        modes = self.argument_modes or ["i"] * len(self.argument_types)
        inputs = 0
        for name, kind, mode in zip(
            self.argument_names, self.argument_types, modes, strict=True
        ):
            if mode not in "ib":
                continue
            default = self.defaults[inputs]
            inputs += 1
            if kind == SIGNATURE:
                continue
            yield f"{name} {kind}" + (f" DEFAULT {plain(default)}" if default else "")

    def returns(self) -> str:
        if not self.argument_modes:
            return self.result
        columns = ", ".join(
            f"{name} {kind}"
            for name, kind, mode in zip(
                self.argument_names,
                self.argument_types,
                self.argument_modes,
                strict=True,
            )
            if mode in "otb"
        )
        return f"TABLE ({columns})" if "t" in self.argument_modes else f"({columns})"

    def signature(self) -> str:
        arguments = list(self.arguments())
        short = f"pulse.{self.name}({', '.join(arguments)})"
        if len(short) > 80:
            body = ",\n".join(f"    {argument}" for argument in arguments)
            short = f"pulse.{self.name}(\n{body}\n)"
        return f"{short}\nRETURNS {self.returns()}"


@dataclass(frozen=True)
class Column:
    view: str
    view_comment: str | None
    name: str
    type: str
    comment: str
    levels: list[str]


def plain(default: str) -> str:
    """A default without the cast that the server adds."""
    return re.sub(r"^('(?:[^']|'')*'|NULL)::[a-z \[\]]+$", r"\1", default)


def who(levels: list[str]) -> str:
    return ", ".join(level for level in LEVELS if level in levels)


def reference(
    functions: list[Function], columns: list[Column], types: dict[str, str]
) -> str:
    text = "\n".join(lines(functions, columns, types)) + "\n"
    return text.replace("timestamp with time zone", "timestamptz")


def lines(
    functions: list[Function], columns: list[Column], types: dict[str, str]
) -> Iterator[str]:
    public = [f for f in functions if f.public]
    yield "# Reference"
    yield ""
    yield (
        "Made from the comments in the database by `make reference`; change them, not"
        " this page. Call functions with named arguments:"
        " `SELECT pulse.enqueue('mail', priority => 10)`. Errors are listed in"
        " [errors.md](errors.md), access levels in [access.md](access.md). Functions"
        " that know their caller have a last argument `signature`, which `\\df` shows"
        " and this page leaves out: its default says who calls, and no other value is"
        " accepted."
    )
    for group, about in GROUPS.items():
        names = sorted({f.name for f in public if f.group == group})
        yield from ("", f"## {group}", "", about, "")
        yield " · ".join(f"[{name}](#{name})" for name in names)
        for name in names:
            yield from ("", f"### {name}")
            for function in (f for f in public if f.name == name):
                yield from ("", "```sql", function.signature(), "```", "")
                yield function.comment
            yield from ("", f"Access: {who(function.levels)}.")
    yield from ("", "## Views")
    for view in dict.fromkeys(c.view for c in columns if c.view not in types):
        shown = [c for c in columns if c.view == view]
        yield from ("", f"### pulse.{view}", "", shown[0].view_comment or "", "")
        yield f"Access: {who(shown[0].levels)}."
        yield from ("", *table(shown))
    yield from ("", "## Types")
    for name in sorted(types):
        shown = [c for c in columns if c.view == name]
        if any(f"pulse.{name}" in f.result for f in public):
            yield from ("", f"### pulse.{name}", "", types[name], "")
            yield from ("```sql", *(f"{c.name} {c.type}" for c in shown), "```")


def table(columns: list[Column]) -> Iterator[str]:
    yield "| column | type | |"
    yield "|---|---|---|"
    for column in columns:
        comment = column.comment.replace("|", "\\|")
        yield f"| `{column.name}` | {column.type} | {comment} |"


def raised(functions: list[Function]) -> set[str]:
    """The error codes in the bodies of functions."""
    return {code for f in functions for code in re.findall(r"'(PU\d{3})'", f.source)}


def undocumented(functions: list[Function]) -> list[str]:
    """Codes that functions raise and docs/errors.md does not list, and the reverse."""
    known = raised(functions)
    listed = set(re.findall(r"^\| `?(PU\d{3})", ERRORS.read_text(), re.MULTILINE))
    return [
        *(f"docs/errors.md does not list {code}" for code in sorted(known - listed)),
        *(
            f"docs/errors.md lists {code}, which nothing raises"
            for code in sorted(listed - known)
        ),
    ]


def ask(dsn: str) -> tuple[list[Function], list[Column], dict[str, str]]:
    connection: psycopg.Connection[Any]
    with psycopg.connect(dsn) as connection:
        functions = (
            connection.cursor(row_factory=class_row(Function))
            .execute(FUNCTIONS)
            .fetchall()
        )
        columns = (
            connection.cursor(row_factory=class_row(Column)).execute(COLUMNS).fetchall()
        )
        types: dict[str, str] = dict(connection.execute(TYPES).fetchall())
    return functions, columns, types


def verbs(dsn: str) -> str:
    """What pulse.verbs() answers, a verb on each line."""
    connection: psycopg.Connection[Any]
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT to_jsonb(v) FROM pulse.verbs() AS v")
        lines = [json.dumps(row[0], ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dsn", nargs="?", help="a database with pulse in it")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()

    if options.dsn:
        known, said = ask(options.dsn), verbs(options.dsn)
    else:
        sys.path.insert(0, str(ROOT))
        from tools import servers

        with servers.temporary() as server:
            dsn = server.dsn(server.create(product="plain"))
            known, said = ask(dsn), verbs(dsn)

    text = reference(*known)
    faults = undocumented(known[0])
    if options.check:
        current = REFERENCE.read_text() if REFERENCE.exists() else ""
        if current != text:
            faults.insert(0, "docs/reference.md is stale: run `make reference`")
        if not VERBS.exists() or VERBS.read_text() != said:
            faults.insert(0, "python/pulse/verbs.json is stale: run `make reference`")
    else:
        REFERENCE.write_text(text)
        VERBS.write_text(said)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
