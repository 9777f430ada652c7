"""A short run with every fault, and what the plan promises about the seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.chaos import plan
from tests.chaos.faults_server import FAULTS
from tools import paths

SECONDS = 60
SEED = 4


def test_the_plan_is_a_function_of_the_seed_and_names_every_fault() -> None:
    first, again = plan.plan(SEED, SECONDS), plan.plan(SEED, SECONDS)
    assert first == again
    assert first != plan.plan(SEED + 1, SECONDS)
    assert {step.fault for steps in first.values() for step in steps} == FAULTS.keys()
    assert {*FAULTS, *plan.THROUGHOUT} == set(plan.NAMES)


def test_whatever_breaks_every_promise_is_kept() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos.run", "--rate", "100"),
            *("--seconds", str(SECONDS), "--seed", str(SEED)),
        ],
        cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": f"{paths.ROOT}:{paths.ROOT / 'python'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "violations: 0" in done.stdout
    for fault in plan.NAMES:
        line = re.search(rf"^ +([\d,]+)  {fault}( .*)?$", done.stdout, re.MULTILINE)
        assert line is not None, done.stdout
        impossible = "not possible here" in (line[2] or "")
        assert line[1] != "0" or impossible, f"{fault} did not happen:\n{done.stdout}"
