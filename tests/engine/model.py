"""The model for as long as one likes, and the table of the pairs that it explored.

    python -m tests.engine.model --seconds 300
    python -m tests.engine.model --planted all      each planted bug must be found

A seed fixes the histories; what it found is shrunk unless --quick says otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import Database
from tests.engine.life import Scratch
from tests.engine.planted import PLANTED, Planted, plant
from tests.engine.test_state_machine import SORTS, STEPS, Life
from tools import servers
from tools.servers import Server

PORTION = 20


class Explored:
    """How many histories met a feature in a kind of lane, and two features at once."""

    def __init__(self) -> None:
        self.histories = 0
        self.steps = 0
        self.met: Counter[tuple[str, str]] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.features: Counter[str] = Counter()

    def add(self, met: set[tuple[str, str]], features: set[str]) -> None:
        self.histories += 1
        self.met.update(met)
        self.features.update(features)
        self.pairs.update((a, b) for a in features for b in features if a < b)

    def table(self) -> str:
        sorts = list(SORTS)
        features = sorted(self.features)
        width = max(map(len, features), default=0)
        lines = [" " * width + "".join(f"{sort:>12}" for sort in sorts)]
        lines += [
            f"{feature:{width}}"
            + "".join(f"{self.met[sort, feature]:12}" for sort in sorts)
            for feature in features
        ]
        possible = len(features) * (len(features) - 1) // 2
        rare = sorted(
            (self.pairs[a, b], a, b) for a in features for b in features if a < b
        )
        lines.append(
            f"{self.histories} histories; of {possible} pairs of features"
            f" {len(self.pairs)} met in one history at least; the rarest: "
            + "; ".join(f"{a} with {b} {n}" for n, a, b in rare[:8])
        )
        return "\n".join(lines)


def run(number: int, histories: int, shrink: bool) -> str | None:
    """So many histories from a seed: what broke, or None."""
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    Life._hypothesis_internal_use_seed = None
    try:
        run_state_machine_as_test(
            seed(number)(Life),
            settings=settings(
                max_examples=histories,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=phases,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )
    except Exception as caught:
        error: BaseException = caught
        while several := getattr(error, "exceptions", None):
            error = several[0]
        notes = "\n".join(getattr(error, "__notes__", []))
        last = "".join(traceback.format_tb(error.__traceback__)[-4:])
        return f"{type(error).__name__}: {error}\n{last}\n{notes}"
    return None


def explore(database: Database, arguments: argparse.Namespace) -> int:
    explored = Explored()
    Life.scratch = Scratch(database.connect)
    Life.report = explored.add
    until = time.monotonic() + arguments.seconds
    number, found = arguments.seed, 0
    while time.monotonic() < until:
        if broken := run(number, PORTION, not arguments.quick):
            found += 1
            print(f"seed {number}: {broken}", flush=True)
        number += 1
    print(explored.table())
    return found


def find(server: Server, bug: Planted, arguments: argparse.Namespace) -> bool:
    """Whether the model finds a bug within the time, and after how many histories."""
    database = Database(server, server.create(product="extension"))
    with database.connect() as connection:
        plant(connection, bug)
    explored = Explored()
    Life.scratch = Scratch(database.connect)
    Life.report = explored.add
    Life.sorts = bug.sorts
    until = time.monotonic() + arguments.seconds
    number, broken = arguments.seed, None
    while time.monotonic() < until and broken is None:
        broken = run(number, PORTION, shrink=False)
        number += 1
    database.close()
    words = broken.partition("\n")[0][:100] if broken else "NOT FOUND"
    print(f"{bug.promise:45} {explored.histories:4} histories  {words}", flush=True)
    return broken is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="do not shrink")
    parser.add_argument("--planted", default="", help="a word of a promise, or all")
    arguments = parser.parse_args()
    server = Server(servers.primary(), {})
    try:
        if arguments.planted:
            word = "" if arguments.planted == "all" else arguments.planted
            bugs = [bug for bug in PLANTED if word in bug.promise]
            return sum(not find(server, bug, arguments) for bug in bugs)
        database = Database(server, server.create(product="extension"))
        return explore(database, arguments)
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
