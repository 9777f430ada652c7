"""--dsn more than once: several databases on one screen."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import PULSE, Pulse, Ran, environment
from tests.conftest import Database

SILENT = "host=127.0.0.1 port=1 dbname=app connect_timeout=2"
APP = """
import os, signal, pulse

worker = pulse.Worker(concurrency=1)
seen = set()


@worker.handle("k")
def k(job):
    seen.add(job.node)
    if seen == {1, 2}:
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def two(new_db: Callable[..., Database]) -> list[Database]:
    made = [new_db(), new_db()]
    for number, database in enumerate(made, 1):
        database.psql("-c", f"SELECT pulse.set_node({number})")
        database.psql("-c", "SELECT pulse.enqueue('k')")
    return made


@pytest.fixture
def both(run_pulse: Pulse, two: list[Database]) -> Pulse:
    def run(*arguments: object) -> Ran:
        return run_pulse(*arguments, "--dsn", two[0].dsn, "--dsn", two[1].dsn)

    return run


def test_tables_have_a_column_for_the_node(both: Pulse, two: list[Database]) -> None:
    for database in two:
        database.psql("-c", "SELECT lease FROM pulse.claim_batch('w')")
        database.psql("-c", "SELECT pulse.hello('w')")
    for verb in ("jobs", "ps", "lanes", "workers"):
        said = both(verb)
        assert said.code == 0, said.err
        head, *lines = said.out.splitlines()
        assert head.split()[0] == "NODE"
        assert {line.split()[0] for line in lines} == {"1", "2"}
        assert {row["node"] for row in both(verb, "--json").json} == {1, 2}
    assert {row["node"] for row in both("health", "--json").json} == {1, 2}
    assert "1  node" in both("health").out


def test_one_database_has_no_such_column(pulse: Pulse) -> None:
    assert "NODE" not in pulse("lanes").out
    assert "node" not in pulse("lanes", "--json").json[0]


def test_an_id_says_which_database_is_asked(both: Pulse) -> None:
    second = (2 << 43) + 1
    assert "k" in both("jobs", second).out
    assert both("why", second).code == 0
    said = both("why", (7 << 43) + 1)
    assert said.code == 1
    assert "node 7" in said.err


def test_one_that_does_not_answer_is_told_and_skipped(
    run_pulse: Pulse, two: list[Database]
) -> None:
    said = run_pulse("lanes", "--json", "--dsn", SILENT, "--dsn", two[0].dsn)
    assert said.code == 0
    assert {row["node"] for row in said.json} == {1}
    assert "does not answer" in said.err
    assert run_pulse("health", "--dsn", SILENT, "--dsn", two[0].dsn).code == 1
    assert run_pulse("lanes", "--dsn", SILENT, "--dsn", f"{SILENT} user=x").code == 4


def test_two_with_one_number_are_refused(both: Pulse, two: list[Database]) -> None:
    two[1].psql("-c", "SELECT pulse.set_node(1)")
    said = both("lanes")
    assert said.code == 1
    assert "both node 1" in said.err
    assert "set_node" in said.err


def test_a_verb_for_one_database_says_so(both: Pulse) -> None:
    said = both("cancel", 1)
    assert said.code == 2
    assert "takes one database" in said.err


def test_work_takes_several(two: list[Database], tmp_path: Path) -> None:
    (tmp_path / "an_app.py").write_text(APP)
    for database in two:
        database.psql("-c", "SELECT pulse.enqueue('k')")
    done = subprocess.run(
        [*PULSE, "work", "an_app:worker", "--dsn", two[0].dsn, "--dsn", two[1].dsn],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "over 2 databases" in done.stderr
