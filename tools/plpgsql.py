"""Let libpg_query read our PL/pgSQL.

Its parser has no catalog: it does not know the fields of a variable of composite
type, nor that a function's name qualifies its OUT arguments. pgspot besides takes the
default of a record and a RETURN NEXT for statements, and forgets quotes. For checks
that only read, variables become records and arguments lose their qualifier; lines stay.
"""

import re

FUNCTION = re.compile(
    r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) "
    r"pulse(?:_internal)?\.(?P<name>\w+)\("
    r".*?\bAS (?P<quote>\$\w*\$)(?P<body>.*?)(?P=quote)",
    re.DOTALL,
)
COMPOSITE = re.compile(
    r"^(\s+v_\w+) (?:CONSTANT )?pulse(?:_internal)?\.\w+;", re.MULTILINE
)
DEFAULTED = re.compile(
    r"^(\s+v_\w+) (?:CONSTANT )?pulse(?:_internal)?\.\w+ :=", re.MULTILINE
)


def readable(source: str) -> str:
    return FUNCTION.sub(simplify, source)


def simplify(found: "re.Match[str]") -> str:
    body = COMPOSITE.sub(r"\1 record;", found["body"])
    body = DEFAULTED.sub(r"\1 record; \1_default text :=", body)
    body = re.sub(r"\bRETURN NEXT (?=\w)", "PERFORM ", body)
    body = re.sub(rf"(?<![.\w]){found['name']}\.", "", body)
    head = found[0][: found.start("body") - found.start()]
    head = re.sub(r'"(\w+)"', r"\1_", head)
    return head + body + found["quote"]
