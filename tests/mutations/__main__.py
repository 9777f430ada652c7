"""Which spec fails when which rule is taken out.

    python -m tests.mutations           each rule with its specs, as a table
    python -m tests.mutations doubt     only rules with this word in their name
    python -m tests.mutations --all     each rule with every spec

The status is 1 when a spec passes without its rule. The tables are kept in
docs/decisions/flows.md and docs/decisions/limits.md.
"""

from __future__ import annotations

import argparse
import sys

import psycopg

from tests import isolation
from tests.mutations import listed
from tests.mutations.harness import Mutation
from tools import servers
from tools.servers import Server

SPECS = sorted({spec for each in listed.ALL.values() for spec in each.specs})


def fails(server: Server, mutation: Mutation, spec: str) -> bool:
    path = isolation.HERE / "specs" / f"{spec}.spec"

    def take_out(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            mutation.apply(connection)

    wanted = isolation.expected(path).read_text()
    # Without its rule a step may wait for ever.
    return isolation.run(server, path, take_out, patience=10) != wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--all", action="store_true", help="every spec")
    asked = parser.parse_args()
    missed = 0
    with servers.temporary() as server:
        print("| without the rule that | these fail |\n|---|---|")
        for rule, mutation in listed.ALL.items():
            if asked.word not in rule or not mutation.specs:
                continue
            tried = SPECS if asked.all else mutation.specs
            failed = [spec for spec in tried if fails(server, mutation, spec)]
            missed += len(set(mutation.specs) - set(failed))
            words = ", ".join(f"`{spec}`" for spec in failed) or "**none**"
            print(f"| {rule} | {words} |", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
