"""An upgrade while jobs run: none is lost, and no session sees an error.

PULSE_LOAD=100000 (make upgrade-load) runs more jobs than the test does.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pulse import install
from tests.conftest import Connection, Database
from tests.python.worker.conftest import pgbouncer
from tests.upgrade.builds import Builds
from tests.upgrade.conftest import Install
from tests.upgrade.load import EXCHANGE, FAILING, Load, Warnings

JOBS = int(os.environ.get("PULSE_LOAD", "5000"))
PATIENCE = 60 + JOBS / 200

# What only a package of 1.1 sends: its argument, and its column of pulse.claimed.
NEWER = EXCHANGE.replace("interval)\n)", "interval),\n    region => 'north'\n)")


def install_from(
    builds: Builds,
    version: str,
    database: Database,
    patch: pytest.MonkeyPatch,
    connection: Connection | None = None,
) -> str:
    """`pulse install` of a package that carries this version."""
    patch.setattr(install, "source", lambda: builds.tree(version))
    connection = connection or database.connect("pulse_owner")
    todo = install.plan(install.inspect(connection))
    install.apply(connection, todo)
    return f"{todo.summary}: {install.inspect(connection)}"


@pytest.mark.parametrize("product", ["extension", "plain"])
@pytest.mark.parametrize(("before", "after"), [("1.0", "1.1")])
def test_nothing_is_lost_and_nobody_sees_an_error(
    install_version: Install,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    product: str,
    before: str,
    after: str,
) -> None:
    database = install_version(before, product)
    load = Load(database, JOBS)
    handler = Warnings(load.errors)
    logging.getLogger("pulse").addHandler(handler)
    try:
        for first in range(2):
            load.start(load.produce, first, 2)
        load.start(load.read)
        load.start(load.exchange, "old 1")
        load.start(load.exchange, "old 2")
        load.start(load.claim, "old 3")
        load.start(load.package, "package")
        load.wait_for(JOBS // 10, PATIENCE)
        started = time.monotonic()
        said = install_from(builds, after, database, monkeypatch)
        took = time.monotonic() - started
        during = load.done
        load.upgraded.set()
        load.start(load.exchange, "new", NEWER)
        load.wait_for(JOBS, PATIENCE)
        load.stop()
    finally:
        load.over.set()
        logging.getLogger("pulse").removeHandler(handler)

    print(f"{said} in {took:.2f} s, {during} of {JOBS} jobs before: {dict(load.by)}")
    assert said.endswith(f"to {after}: pulse {after} ({named(product)})")
    assert load.errors == []
    assert load.ran == Counter(dict.fromkeys(range(JOBS), 1))
    assert during < JOBS * 0.85, "the upgrade came too late"
    for name in ("old 1 after", "old 3 after", "package after"):
        assert load.by[name] > 0, f"{name} did nothing"
    connection = database.connect()
    ends = connection.execute(
        "SELECT state, attempts, count(*) FROM pulse.jobs GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    retried = sum(count for _, attempts, count in ends if attempts > 1)
    assert [state for state, _, _ in ends] == ["completed"] * len(ends)
    assert sum(count for _, _, count in ends) == JOBS
    assert 0 < retried <= JOBS / FAILING
    assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []


def named(product: str) -> str:
    return "plain script" if product == "plain" else product


WAITING = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"


def wait_for_lock(session: Connection, watcher: Connection) -> None:
    """Until the session waits for a lock."""
    ends = time.monotonic() + 20
    while watcher.execute(WAITING, [session.info.backend_pid]).fetchone() == (0,):
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize(("before", "after"), [("1.0", "1.1")])
def test_calls_that_meet_an_upgrade_end_well(
    install_version: Install, builds: Builds, before: str, after: str
) -> None:
    """They run old bodies: claims and ticks leave at once, the rest waits."""
    database = install_version(before, "plain")
    watcher = database.connect()
    watcher.execute("SELECT pulse.enqueue('work', '{}') FROM generate_series(1, 9)")
    leases = [
        row[0]
        for row in watcher.execute(
            "SELECT lease FROM pulse.claim_batch('me', max_jobs => 4)"
        )
    ]
    watcher.execute("SELECT FROM pulse.tick()")
    script = (builds.tree(after) / f"build/pulse.{before}--{after}.sql").read_text()
    calls = [
        f"SELECT pulse.complete({leases[0]})",
        f"SELECT pulse.fail({leases[1]}, 'why', fatal => true)",
        f"SELECT pulse.release(ARRAY[{leases[2]}])",
        f"SELECT pulse.heartbeat(ARRAY[{leases[3]}])",
        "SELECT pulse.enqueue('work', '{}')",
        "SELECT pulse.enqueue('work', '{}', delay => '1 hour', unique_key => 'k')",
        "SELECT * FROM pulse.jobs",
    ]
    sessions = [database.connect() for _ in calls]
    for session in sessions:
        # So that their functions are compiled and planned before the upgrade.
        session.execute("SELECT pulse.complete(%s)", [leases[0]])
        session.execute("SELECT FROM pulse.fail_batch('{1}', '{x}')")
        session.execute("SELECT FROM pulse.heartbeat('{1}')")
        session.execute("SELECT pulse.enqueue('work', '{}', delay => '1 hour')")
    upgrader = database.connect("pulse_owner")
    upgrader.execute(script.removesuffix("COMMIT;\n").encode())
    assert upgrader.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    claimed = watcher.execute("SELECT * FROM pulse.claim_batch('me')").fetchall()
    assert claimed == []
    assert watcher.execute("SELECT * FROM pulse.tick()").fetchall() == []
    with ThreadPoolExecutor(len(calls)) as pool:
        results = [
            pool.submit(session.execute, call.encode())
            for session, call in zip(sessions, calls, strict=True)
        ]
        for session in sessions:
            wait_for_lock(session, watcher)
        upgrader.execute("COMMIT")
        errors = [result.exception(20) for result in results]
    assert errors == [None] * len(calls)
    states = watcher.execute(
        "SELECT state, count(*) FROM pulse.jobs GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert dict(states) == {
        **{"completed": 1, "dead": 1, "ready": 7, "running": 1},
        "scheduled": len(calls) + 1,
    }
    assert watcher.execute("SELECT * FROM pulse.check()").fetchall() == []


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_a_claim_that_began_before_an_upgrade_gets_no_lock_after_it(
    install_version: Install,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    product: str,
) -> None:
    """It would go on with old code: pulse install keeps claims out until it is over."""
    database = install_version("1.0", product)
    watcher = database.connect()
    watcher.execute("SELECT pulse.enqueue('work')")
    claimer = database.connect("a_worker", autocommit=False)
    claimer.execute("SELECT 1")
    upgrader = database.connect("pulse_owner")
    with ThreadPoolExecutor(1) as pool:
        upgraded = pool.submit(
            install_from, builds, "1.1", database, monkeypatch, upgrader
        )
        while watcher.execute("SELECT version FROM pulse.version()").fetchone() != (
            "1.1",
        ):
            assert not upgraded.done()
        assert claimer.execute("SELECT FROM pulse.claim_batch('me')").fetchall() == []
        assert not upgraded.done()
        claimer.commit()
        upgraded.result(20)
    locks = watcher.execute(
        "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = %s",
        [upgrader.info.backend_pid],
    )
    assert locks.fetchall() == []
    assert len(claimer.execute("SELECT FROM pulse.claim_batch('me')").fetchall()) == 1


def test_an_upgrade_through_a_pooler_leaves_no_lock_behind(
    install_version: Install, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of the session would stay with the pooler, and nobody could claim."""
    database = install_version("1.0", "plain")
    watcher = database.connect()
    watcher.execute("SELECT pulse.enqueue('work')")
    monkeypatch.setattr(install, "KEEP_OUT", "SELECT 1 / 0")
    with (
        pgbouncer(database, "transaction") as dsn,
        psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as client,
    ):
        said = install_from(builds, "1.1", database, monkeypatch, client)
        assert said.endswith("pulse 1.1 (plain script)")
        locks = watcher.execute(
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = %s",
            watcher.execute("SELECT 'pulse_internal.hold'::regclass::oid").fetchone(),
        )
        assert locks.fetchall() == []
        claimed = watcher.execute("SELECT FROM pulse.claim_batch('me')").fetchall()
        assert len(claimed) == 1


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_a_transaction_that_an_upgrade_waits_for_is_no_victim_of_a_deadlock(
    install_version: Install,
    builds: Builds,
    monkeypatch: pytest.MonkeyPatch,
    product: str,
) -> None:
    """It holds a table that the upgrade wants, and then asks for what that has got."""
    database = install_version("1.0", product)
    database.psql(
        "-c", f"ALTER DATABASE {database.name} SET deadlock_timeout = '200ms'"
    )
    producer = database.connect("a_admin", autocommit=False)
    producer.execute("SELECT pulse.enqueue('work')")
    upgrader = database.connect("pulse_owner")
    monkeypatch.setattr(install, "source", lambda: builds.tree("1.1"))
    todo = install.plan(install.inspect(upgrader))
    with ThreadPoolExecutor(1) as pool:
        upgraded = pool.submit(install.apply, upgrader, todo)
        wait_for_lock(upgrader, database.connect())
        # Who waits looks for deadlocks once: the upgrade has done so by now.
        time.sleep(0.4)
        for _ in range(3):
            producer.execute("SELECT count(*) FROM pulse.jobs")
            producer.execute("SELECT count(*) FROM pulse.lanes")
        producer.commit()
        upgraded.result(30)
    assert install.inspect(upgrader).version == "1.1"


def test_an_upgrade_is_tried_again_when_a_lock_is_not_free(
    install_version: Install, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dashboard reads a view in a transaction that stays open."""
    database = install_version("1.0", "plain")
    reader = database.connect("a_viewer", autocommit=False)
    reader.execute("SELECT count(*) FROM pulse.jobs")
    monkeypatch.setattr(install, "source", lambda: builds.tree("1.1"))
    said: list[str] = []

    def wait(text: str, pause: float) -> None:
        said.append(text)
        assert 1 <= pause <= 2
        if len(said) == 2:
            reader.commit()

    with database.connect("pulse_owner") as connection:
        todo = install.plan(install.inspect(connection))
        install.apply(connection, todo, wait=wait)
        assert install.inspect(connection).version == "1.1"
    assert len(said) == 2
    assert f"pid {reader.info.backend_pid} (a_viewer" in said[0]


def test_an_upgrade_gives_up_in_the_end_and_changes_nothing(
    install_version: Install, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = install_version("1.0", "plain")
    reader = database.connect("a_viewer", autocommit=False)
    reader.execute("SELECT count(*) FROM pulse.jobs")
    monkeypatch.setattr(install, "source", lambda: builds.tree("1.1"))
    monkeypatch.setattr(install, "TRIES", 1)
    with database.connect("pulse_owner") as connection:
        todo = install.plan(install.inspect(connection))
        with pytest.raises(install.InstallError, match="Nothing was changed"):
            install.apply(connection, todo)
        assert install.inspect(connection).version == "1.0"
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
