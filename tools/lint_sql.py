"""Lint what sqlfluff cannot see: the statements inside function bodies.

    python -m tools.lint_sql FILE...

sqlfluff takes a $$ body for one string. Here pglast finds the static statements of
every body, and sqlfluff looks at those; how they are laid out is left to the eye, for
PL/pgSQL cuts its INTO clauses out of them. Long lines are looked for here as well:
they may be long only where a text makes them so.
"""

import bisect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pglast
from pglast import ast
from sqlfluff.core import FluffConfig, Linter

from tools import paths, plpgsql

# Case of keywords, functions and types; aliases with AS; INNER JOIN in full;
# coalesce, IS NULL, LEFT JOIN. Names are no use here: half of them are variables.
RULES = "CP01,CP03,CP05,AL01,AL02,AL04,AM05,CV02,CV05,CV08"
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", re.IGNORECASE)
LOWER = re.compile(
    r"^\s*(begin|declare|if|elsif|else|end|loop|for|foreach|while|return|perform|raise"
    r"|exit|continue|execute)\b(?!\s*:?=|\.)"
)
# 88 is the aim; a line that no text makes long ends here at the latest.
WIDTH = 100

Finding = tuple[int, str]


def main() -> int:
    found = 0
    for name in sys.argv[1:]:
        path = Path(name)
        for line, text in sorted(set(lint(path.read_text()))):
            print(f"{path}:{line}: {text}")
            found += 1
    return 1 if found else 0


def lint(source: str) -> list[Finding]:
    return [*long_lines(source), *lower_keywords(source), *bodies(source)]


def long_lines(source: str) -> Iterator[Finding]:
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > WIDTH and "'" not in line:
            yield number, f"line is {len(line)} columns wide; {WIDTH} is the limit"


def lower_keywords(source: str) -> Iterator[Finding]:
    for number, line in enumerate(source.splitlines(), 1):
        found = LOWER.match(line)
        if found:
            yield number, f"keyword {found[1]} must be upper case"


def bodies(source: str) -> Iterator[Finding]:
    """Everything static in one text, linted in one go and mapped back to the file."""
    config = FluffConfig.from_path(
        str(paths.ROOT), overrides={"rules": RULES, "exclude_rules": ""}
    )
    try:
        inside = list(statements(plpgsql.readable(source)))
    except pglast.parser.ParseError as error:
        yield 1, str(error)
        return
    text = ""
    starts: list[int] = []
    lines: list[int] = []
    for line, statement in inside:
        starts.append(text.count("\n") + 1)
        lines.append(line)
        text += statement.strip().rstrip(";") + ";\n\n"
    if not text:
        return
    result = Linter(config=config).lint_string(text)
    for violation in result.get_violations():
        if violation.rule_code() == "PRS":
            # PostgreSQL's own parser took it; sqlfluff's does not know all of it.
            continue
        at = bisect.bisect_right(starts, violation.line_no) - 1
        line = lines[at] + violation.line_no - starts[at]
        yield line, f"{violation.rule_code()} {violation.desc()}"


def statements(source: str) -> Iterator[tuple[int, str]]:
    """(line, statement) for every static statement in every function body."""
    for raw in pglast.parse_sql(source):
        node = raw.stmt
        if not isinstance(node, ast.CreateFunctionStmt):
            continue
        start = raw.stmt_location
        whole = source[start : start + raw.stmt_len] if raw.stmt_len else source[start:]
        options = {option.defname: option.arg for option in node.options or ()}
        body = options["as"][0].sval
        first = source.count("\n", 0, start + whole.index(body)) + 1
        if options["language"].sval == "sql":
            yield first + 1, body
        elif options["language"].sval == "plpgsql":
            tree = json.loads(pglast.parser.parse_plpgsql_json(whole))
            for line, query in queries(tree, 0):
                yield first + line - 1, query


def queries(node: Any, line: int) -> Iterator[tuple[int, str]]:
    if isinstance(node, list):
        for each in node:
            yield from queries(each, line)
    elif isinstance(node, dict):
        line = node.get("lineno", line)
        expression = node.get("PLpgSQL_expr")
        if expression and STATEMENT.match(expression["query"]):
            yield line, expression["query"]
        for each in node.values():
            yield from queries(each, line)


if __name__ == "__main__":
    sys.exit(main())
