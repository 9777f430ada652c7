"""What the package says about SQL is true of the server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulse.sql import operator, producer, testing, worker
from tests.conftest import Connect
from tools import paths

PACKAGE = paths.ROOT / "python" / "pulse"
STATEMENTS = {**producer.STATEMENTS, **testing.STATEMENTS, **worker.STATEMENTS}


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_understood_by_the_server(
    connect: Connect, name: str
) -> None:
    statement = re.sub(r"%\(\w+\)s", "NULL", STATEMENTS[name])
    connect().execute(f"EXPLAIN {statement}".encode())


def test_every_call_names_arguments_that_exist(connect: Connect) -> None:
    rows = connect().execute(
        "SELECT p.proname, p.proargnames FROM pg_proc AS p "
        "WHERE p.pronamespace = 'pulse'::regnamespace"
    )
    known: dict[str, set[str]] = {}
    for name, arguments in rows:
        known.setdefault(name, set()).update(arguments or ())
    for statement in STATEMENTS.values():
        for function, rest in re.findall(r"pulse\.(\w+)\(([^;]*)", statement):
            assert function in known
            named = set(re.findall(r"(\w+) =>", rest))
            assert named <= known[function]


def test_the_states_of_a_job_are_those_of_the_server(connect: Connect) -> None:
    [found] = connect().execute("SELECT pulse_internal.acts_on('find')").fetchall()
    assert tuple(found[0]) == operator.STATES


def test_a_worker_checks_for_all_it_calls() -> None:
    called = {
        function
        for statement in worker.STATEMENTS.values()
        for function in re.findall(r"pulse\.(\w+)\(", statement)
    }
    assert set(worker.WORKER_FUNCTIONS) == called


def tables() -> set[str]:
    source = "".join(
        p.read_text() for p in (paths.EXTENSION / "sql/schema").glob("*.sql")
    )
    return set(re.findall(r"CREATE (?:UNLOGGED )?TABLE pulse_internal\.(\w+)", source))


@pytest.mark.parametrize(
    "path",
    sorted(PACKAGE.rglob("*.py")),
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_no_table_is_named_in_python(path: Path) -> None:
    pattern = rf"pulse(?:_internal)?\.({'|'.join(sorted(tables()))})\b(?!\()"
    found = re.findall(rf"(?:FROM|JOIN|INTO|UPDATE)\s+{pattern}", path.read_text())
    assert found == []
