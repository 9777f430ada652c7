"""Print the SQL files and the Python modules that one job crosses.

    python -m tools.walk [--checkout DIR]

Four jobs take their way through a fresh database: a plain one, one that fails and is
retried, one in a grouped lane, and one that waits for another job. track_functions
counts every call; the functions are looked up in extension/sql. A SQL function that
the planner inlines is not counted. Then a Python worker runs four such jobs, and
tools/walk_worker.py traces its calls.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tools import paths, walk_worker
from tools.servers import Server, primary

FUNCTION = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) (pulse\w*\.\w+)\(", re.MULTILINE
)
ENQUEUE = "SELECT pulse.enqueue('mail', '{}')"
CLAIM = "SELECT lease FROM pulse.claim_batch('walk')"
COMPLETE = "SELECT pulse.complete({lease})"

# {lease} is the lease that the last claim returned.
WALKS: dict[str, Sequence[str]] = {
    "plain": (ENQUEUE, CLAIM, COMPLETE),
    "failing": (
        ENQUEUE,
        CLAIM,
        "SELECT pulse.fail({lease}, 'the server did not answer', retry_in => '0')",
        CLAIM,
        COMPLETE,
    ),
    "grouped": (
        "SELECT pulse.enqueue('mail', '{}', lane => 'fair', group_key => 'ada')",
        "SELECT lease FROM pulse.claim_batch('walk', 'fair')",
        COMPLETE,
    ),
    "in a flow": (
        ENQUEUE,
        "SELECT pulse.enqueue('sum', '{}', after => ARRAY[("
        "SELECT max(job_id) FROM pulse.jobs WHERE kind = 'mail')])",
        CLAIM,
        COMPLETE,
        CLAIM,
        COMPLETE,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=paths.ROOT)
    checkout: Path = parser.parse_args().checkout
    files = files_by_function(checkout / "extension/sql")
    with Server(
        primary(),
        settings={"track_functions": "all"},
        build=checkout / "extension/build",
    ) as server:
        for name, statements in WALKS.items():
            called = walk(server, checkout / "extension/build/pulse.sql", statements)
            crossed = sorted({files[function] for function in called})
            print(f"{name}: {len(called)} functions in {len(crossed)} files")
            for file in crossed:
                here = sorted(f for f in called if files[f] == file)
                print(f"  {file}: {', '.join(f.partition('.')[2] for f in here)}")
        for name in walk_worker.WALKS:
            modules = walk_in_worker(server, checkout, name)
            print(f"{name}, in the worker: {len(modules)} modules")
            print(f"  {' '.join(modules)}")


def files_by_function(folder: Path) -> dict[str, str]:
    return {
        function: str(path.relative_to(folder))
        for path in sorted(folder.rglob("*.sql"))
        for function in FUNCTION.findall(path.read_text())
    }


def walk(server: Server, script: Path, statements: Sequence[str]) -> set[str]:
    """Send the statements and return the functions that they called."""
    database = server.create()
    server.psql(database, "-f", str(script))
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        connection.execute("SELECT pulse.set_lane('fair', fair => true)")
        # The first job of a database registers the server and looks for lost leases.
        send(connection, WALKS["plain"])
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.execute("SELECT pg_stat_reset()")
        send(connection, statements)
        connection.execute("SELECT pg_stat_force_next_flush()")
        rows = connection.execute(
            "SELECT DISTINCT schemaname || '.' || funcname FROM pg_stat_user_functions"
            " WHERE calls > 0"
        ).fetchall()
    return {function for (function,) in rows}


def walk_in_worker(server: Server, checkout: Path, name: str) -> list[str]:
    """The modules that a job crosses in the worker of a checkout."""
    database = server.create()
    server.psql(database, "-f", str(checkout / "extension/build/pulse.sql"))
    done = subprocess.run(
        [sys.executable, "-m", "tools.walk_worker", server.dsn(database), name],
        env={**os.environ, "PYTHONPATH": f"{checkout / 'python'}:{paths.ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.split()


def send(connection: psycopg.Connection, statements: Sequence[str]) -> None:
    lease = None
    for statement in statements:
        cursor = connection.execute(statement.replace("{lease}", str(lease)))
        if "claim_batch" in statement:
            row = cursor.fetchone()
            assert row is not None, f"nothing to claim: {statement}"
            lease = row[0]


if __name__ == "__main__":
    main()
