"""The benchmark works: every section prints, works off jobs and leaves a sound queue.

No figure is looked at: this machine is busy with tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import paths

SECTIONS = "abcdefghijpqrstuvw"


class Printed(dict[str, Any]):
    """What a quick run wrote, and the text it printed."""

    text = ""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    folder = tmp_path_factory.mktemp("bench")
    done = run("bench.run_sql", BENCH_RESULTS=str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = Path(folder).glob("sql-*.json")
    found = Printed(json.loads(written.read_text()))
    found.text = done.stdout
    return found


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=paths.ROOT,
        env={**os.environ, "BENCH_QUICK": "1", "ONLY": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_section_prints_its_rows(printed: Printed) -> None:
    assert [section["letter"] for section in printed["sections"]] == list(SECTIONS)
    for section in printed["sections"]:
        assert f"\n{section['letter']}) {section['title']}" in printed.text
        for row in section["rows"]:
            assert any(
                line.split()[: len(str(row[0]).split())] == str(row[0]).split()
                for line in printed.text.splitlines()
            )
    assert "shared_buffers" in printed.text
    assert "cores" in printed.text


def test_every_goal_is_judged(printed: Printed) -> None:
    assert {goal["section"] for goal in printed["goals"] if goal["must"]} == set(
        "bcdejpqrstuvw"
    )
    for goal in printed["goals"]:
        named = f"{goal['section']})  {goal['name']} "
        (line,) = [x for x in printed.text.splitlines() if named in x]
        assert ("   ok" in line) == goal["met"]
        assert ("   short" in line) == (not goal["met"])


def test_every_scenario_works_jobs_off_and_leaves_a_sound_queue(
    printed: Printed,
) -> None:
    assert len(printed["scenarios"]) >= 45
    for scenario in printed["scenarios"]:
        assert scenario["jobs"] > 0, scenario
        assert scenario["problems"] == [], scenario


def test_an_unknown_section_is_refused_before_a_server_starts() -> None:
    done = run("bench.run_sql", "--only", "a,z")
    assert done.returncode == 2
    assert "no section z" in done.stderr


def test_two_builds_are_compared_verb_by_verb() -> None:
    # A copy of the source has no commits.
    with_git = (paths.ROOT / ".git").exists()
    base = "HEAD" if with_git else str(paths.BUILD / "pulse.sql")
    done = run("bench.compare", "--base", base)
    assert done.returncode == 0, done.stdout + done.stderr
    for verb in ("enqueue", "enqueue_many 100", "claim_batch 1", "one at a time"):
        (line,) = [x for x in done.stdout.splitlines() if x.startswith(f"{verb}   ")]
        assert float(line.split(verb)[1].split()[2]) > 0


def test_a_job_of_two_databases_is_weighed_beside_one() -> None:
    options = ("--nodes", "1,2", "--jobs", "1000", "--rounds", "1", "--json")
    done = run("bench.nodes", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {"1", "2"}
    assert all(each["cpu"] > 0 for each in found.values())


def test_a_job_is_weighed_on_a_standby() -> None:
    done = run("bench.standby", "--jobs", "1000", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = re.findall(r"^(primary|replay|WAL) +([\d.]+)", done.stdout, re.MULTILINE)
    assert [name for name, _ in figures] == ["primary", "replay", "WAL"]
    assert all(float(figure) > 0 for _, figure in figures)
