"""--dsn more than once: several databases on one screen."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pulse.cli import nodes, queries
from pulse.cli.nodes import listed
from pulse.cli.screen import Screen
from pulse.cli.session import Session
from pulse.cli.top import Controls
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
        ran = both(verb)
        assert ran.code == 0, ran.err
        head, *lines = ran.out.splitlines()
        assert head.split()[0] == "NODE"
        sums = {"all"} if verb == "lanes" else set()
        assert {line.split()[0] for line in lines} == {"1", "2"} | sums
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
    ran = both("why", (7 << 43) + 1)
    assert ran.code == 1
    assert "node 7" in ran.err


def test_one_that_does_not_answer_is_told_and_skipped(
    run_pulse: Pulse, two: list[Database]
) -> None:
    ran = run_pulse("lanes", "--json", "--dsn", SILENT, "--dsn", two[0].dsn)
    assert ran.code == 0
    assert {row["node"] for row in ran.json} == {1}
    assert "does not answer: connection" in ran.err
    assert run_pulse("health", "--dsn", SILENT, "--dsn", two[0].dsn).code == 1
    assert run_pulse("lanes", "--dsn", SILENT, "--dsn", f"{SILENT} user=x").code == 4


def test_two_with_one_number_are_refused(both: Pulse, two: list[Database]) -> None:
    two[1].psql("-c", "SELECT pulse.set_node(1)")
    ran = both("lanes")
    assert ran.code == 1
    assert "both node 1" in ran.err
    assert "set_node" in ran.err


def test_lanes_are_summed(both: Pulse, two: list[Database]) -> None:
    two[0].psql("-c", "SELECT pulse.set_lane('default', max_slots => 3)")
    two[0].psql("-c", "SELECT pulse.enqueue('k')")
    two[0].psql("-c", "SELECT pulse.enqueue('k', lane => 'alone')")
    two[1].psql("-c", "SELECT pulse.set_lane('default', max_slots => 4)")
    two[1].psql("-c", "SELECT lease FROM pulse.claim_batch('w')")
    lines = [line.split()[:4] for line in both("lanes").out.splitlines()[1:]]
    assert ["all", "default", "1/7", "2"] in lines
    assert [lane for node, lane, *_ in lines if node == "all"] == ["default"]
    assert {row["node"] for row in both("lanes", "--json").json} == {1, 2}


def test_verbs_go_where_the_ids_say(both: Pulse, two: list[Database]) -> None:
    ids = [(1 << 43) + 1, (2 << 43) + 1]
    assert both("cancel", *ids).code == 0
    assert both("retry", *ids).code == 0
    assert both("reschedule", "--in", "1 hour", *ids).code == 0
    states = "SELECT state FROM pulse.jobs"
    assert [database.psql("-c", states) for database in two] == ["scheduled\n"] * 2


def test_a_verb_for_one_database_says_so(both: Pulse) -> None:
    ran = both("cancel", "--kind", "k", "--yes")
    assert ran.code == 2
    assert "takes one database" in ran.err


def test_the_environment_may_name_several(
    run_pulse: Pulse, two: list[Database]
) -> None:
    def uri(database: Database) -> str:
        found = dict(word.split("=", 1) for word in database.dsn.split())
        host = quote(found["host"], safe="")
        return f"postgresql://postgres@{host}:{found['port']}/{found['dbname']}"

    both = " ".join(map(uri, two))
    rows = run_pulse("lanes", "--json", PULSE_DSN=both).json
    assert {row["node"] for row in rows} == {1, 2}
    assert listed("host=one dbname=app") == ["host=one dbname=app"]


def test_one_that_accepts_and_never_answers_is_not_waited_for(
    two: list[Database], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(nodes, "PATIENCE", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        wedged = f"host=127.0.0.1 port={mute.getsockname()[1]} dbname=app"
        session = Session("lanes", [wedged, two[0].dsn], as_json=True)
        assert session.nodes[1].connection
        rows = session.gather(lambda node: node.rows(queries.LANES))
        assert {row["node"] for row in rows} == {1}
        assert "no answer within 3 seconds" in capsys.readouterr().err
        session.close()


def test_top_shows_all_of_them_and_who_is_away(
    both: Pulse, run_pulse: Pulse, two: list[Database]
) -> None:
    two[1].psql("-c", "SELECT lease FROM pulse.claim_batch('w')")
    output = both("top", "--once").out
    assert "pulse 2 databases  1 ready  1 running" in output
    lanes = [line.split()[:2] for line in output.splitlines() if "default" in line]
    assert ["1", "default"] in lanes
    assert ["2", "default"] in lanes
    away = run_pulse(
        *("top", "--once", "--dsn", SILENT, "--dsn", two[0].dsn), COLUMNS="100"
    )
    assert away.code == 0, away.err
    assert "does not answer: 127.0.0.1:1/app" in away.out
    assert "1 ready" in away.out
    found = run_pulse("top", "--json", "--dsn", SILENT, "--dsn", two[0].dsn).json
    assert len(found["silent"]) == 1


def test_keys_of_top_act_where_the_row_came_from(two: list[Database]) -> None:
    screen = Screen(Session("top", [database.dsn for database in two], as_json=False))
    screen.look()
    controls = Controls(screen)
    screen.panels[0].chosen = (2, "default")
    for key in "dy":
        controls.press(key)
    screen.session.close()
    drained = "SELECT drained FROM pulse.lanes WHERE name = 'default'"
    assert [database.psql("-c", drained) for database in two] == ["f\n", "t\n"]
    assert "drain lane default of node 2: done" in str(screen.line)


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
