"""examples/citus: rows on several nodes and their jobs, in one transaction.

Needs a Citus cluster with pulse's files on every machine; PULSE_CITUS_DSN leads to a
database on the coordinator that has Citus, and neither pulse nor a table orders.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import threading
import time
from types import ModuleType

import psycopg
import pytest

from tools import paths

DSN = os.environ.get("PULSE_CITUS_DSN", "")
pytestmark = pytest.mark.skipif(
    not DSN, reason="no Citus cluster: PULSE_CITUS_DSN names none"
)
EXAMPLE = paths.ROOT / "examples/citus"
ORDERS = 60


def app() -> ModuleType:
    spec = importlib.util.spec_from_file_location("citus_app", EXAMPLE / "app.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_jobs_commit_with_distributed_rows_and_run_from_every_node() -> None:
    setup = ["psql", "-X", "-q", DSN, "-f", str(EXAMPLE / "setup.sql")]
    subprocess.run(setup, check=True)
    example = app()
    every = example.nodes(DSN)
    assert len(every) > 1, "the cluster has one node"
    for number in range(ORDERS):
        example.order(every[number % len(every)], number)
    # Rolled back, neither the rows nor the job were ever there.
    with psycopg.connect(every[0]) as connection:
        for number in range(ORDERS, ORDERS + 5):
            connection.execute("INSERT INTO public.orders (id) VALUES (%s)", (number,))
        connection.execute("SELECT pulse.enqueue('ship', '{\"order\": -1}')")
        connection.rollback()
    worker = example.worker(DSN)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        until = time.monotonic() + 60
        shipped = "SELECT count(*), count(shipped_by), count(DISTINCT shipped_by)"
        with psycopg.connect(DSN, autocommit=True) as connection:
            while True:
                found = connection.execute(f"{shipped} FROM public.orders".encode())
                if (row := found.fetchone()) == (ORDERS, ORDERS, len(every)):
                    break
                assert time.monotonic() < until, row
                time.sleep(0.1)
    finally:
        worker.stop()
        running.join()
    for dsn in every:
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []
