"""A short run over three databases, and what the judge of budgets finds."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.chaos import nodes
from tools import paths


def test_workers_of_three_databases_keep_every_promise() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.nodes", "--jobs", "600", "--seed", "3"],
        cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": f"{paths.ROOT}:{paths.ROOT / 'python'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "violations: 0" in done.stdout
    for fault in ("power_cut", "lock_up", "kill_worker"):
        assert fault in done.stdout


def test_a_run_above_the_budget_is_found() -> None:
    slots = nodes.SLOTS["narrow"]
    begun = [
        {"t": n, "who": "w", "what": "effect_begin", "lease": n, "lane": "narrow"}
        for n in range(slots + 1)
    ]
    assert len(nodes.budgets(begun)) == 1
    ended = {"t": slots - 0.5, "who": "w", "what": "effect_end", "lease": 0}
    assert nodes.budgets([*begun, ended]) == []
