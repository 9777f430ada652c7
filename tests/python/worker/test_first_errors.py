"""The first thing that goes wrong names itself and its fix."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pulse import Job, Worker, errors
from tests.conftest import Database
from tests.python.worker.conftest import Queue, Start


def build(dsn: str) -> Worker:
    worker = Worker(dsn)

    @worker.handle("x")
    def x(job: Job) -> None: ...

    return worker


def test_a_database_without_pulse(new_db: Callable[..., Database]) -> None:
    db = new_db(product=None)
    with pytest.raises(errors.NotInstalled) as error:
        build(db.dsn).run()
    assert f"pulse is not installed in the database {db.name}" in str(error.value)
    assert "CREATE EXTENSION pulse;" in str(error.value)
    assert "pulse install" in str(error.value)


def test_a_server_older_than_the_package(db: Database) -> None:
    db.psql("-c", "ALTER FUNCTION pulse.arm_bell(text) RENAME TO not_yet")
    with pytest.raises(errors.VersionTooOld) as error:
        build(db.dsn).run()
    assert "older than this package" in str(error.value)
    assert "It lacks arm_bell." in str(error.value)
    assert "ALTER EXTENSION pulse UPDATE;" in str(error.value)


def test_a_role_that_may_not_work(db: Database) -> None:
    db.psql("-c", "CREATE ROLE newcomer LOGIN")
    try:
        dsn = db.server.dsn(db.name, "newcomer")
        with pytest.raises(errors.PermissionDenied) as error:
            build(dsn).run()
        advice = re.search(r"HINT: (SELECT .*;)", str(error.value))
        assert advice is not None
        # The remedy is what it says.
        db.psql("-c", advice[1])
        worker = build(dsn)
        worker.stop()
        worker.run()
    finally:
        db.psql("-c", "SELECT pulse.revoke_access('newcomer', 'worker')", check=False)
        db.psql("-c", "DROP OWNED BY newcomer", "-c", "DROP ROLE newcomer")


def test_a_worker_role_can_do_all_a_worker_does(queue: Queue, start: Start) -> None:
    queue.db.psql("-c", "CREATE ROLE labourer LOGIN")
    try:
        queue.connection.execute("SELECT pulse.grant_access('labourer', 'worker')")
        worker = Worker(queue.db.server.dsn(queue.db.name, "labourer"))

        @worker.handle("walk")
        def walk(job: Job) -> str:
            job.progress(0.1)
            job.checkpoint({})
            return "there"

        running = start(worker)
        queue.until_state(queue.enqueue("walk"), "completed")
        running.stop()
    finally:
        queue.db.psql("-c", "DROP OWNED BY labourer", "-c", "DROP ROLE labourer")


def test_lanes_that_a_worker_leaves_out_are_a_warning(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(**lanes: int) -> list[str]:
        worker = Worker(queue.db.dsn, lanes=lanes or None)
        for kind, lane in (("a", "mail"), ("b", "default"), ("c", "bulk")):
            worker.handle(kind, lane=lane)(lambda: None)
        worker.handle("d")(lambda: None)
        caplog.clear()
        start(worker).stop()
        return [r.message for r in caplog.records if "takes lane default" in r.message]

    [warning] = warnings()
    assert "go also into mail (a), bulk (c)" in warning
    # Who names lanes has chosen.
    assert warnings(mail=1) == []


def test_lanes_without_slots_are_refused() -> None:
    for wrong in (["mail"], {}, {"mail": 0}, {"mail": "4"}, "mail"):
        with pytest.raises(ValueError, match=r"slots by lane.*\{'mail': 4\}"):
            Worker(lanes=wrong)  # type: ignore[arg-type]


def test_a_server_that_is_not_there_is_waited_for(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(build("host=/nowhere dbname=app"), ready=False)
    while "trying again in" not in caplog.text:
        running.thread.join(0.01)
    running.stop()
    assert "cannot reach the queue" in caplog.text
