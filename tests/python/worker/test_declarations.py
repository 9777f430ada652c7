"""Settings and schedules beside the code, written when the worker starts."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

import pulse
from pulse import Worker
from tests.python.worker.conftest import Queue, Start


@pulse.task(
    "mail", declare=True, max_attempts=5, backoff="exponential", lane="mail", tags=["x"]
)
def mail(to: str) -> None: ...


def shop(queue: Queue, cron: str = "0 7 * * *") -> Worker:
    worker = Worker(queue.db.dsn, application="shop", tasks=[mail])

    @worker.schedule("digest", cron=cron, timezone="Europe/Berlin", expires_in=60)
    @worker.handle("send-digest", declare=True, backoff_base=timedelta(seconds=5))
    def digest(page: int = 1) -> None: ...

    @worker.schedule("sweep", every="1 hour", payload={"deep": True})
    def sweep(deep: bool) -> bool:
        return deep

    assert isinstance(sweep, pulse.Task)
    return worker


def test_what_is_declared_is_written_when_the_worker_starts(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pulse"):
        start(shop(queue)).stop()
        start(shop(queue, cron="0 8 * * *")).stop()
    execute = queue.db.connect().execute
    rows: Any = execute(
        "SELECT name, kind, cron, payload, options FROM pulse.schedules ORDER BY 1"
    )
    assert rows.fetchall() == [
        ("digest", "send-digest", "0 8 * * *", {}, {"expires_in": "00:01:00"}),
        ("sweep", "sweep", None, {"deep": True}, {}),
    ]
    rows = execute(
        "SELECT item, name, facts, drift FROM pulse.declarations ORDER BY item, name"
    )
    assert rows.fetchall()[:2] == [
        (
            *("kind", "mail"),
            {"lane": "mail", "backoff": "exponential", "max_attempts": 5},
            False,
        ),
        ("kind", "send-digest", {"backoff_base": "00:00:05"}, False),
    ]
    written = [r.getMessage() for r in caplog.records if "declared" in r.getMessage()]
    assert "the schedule digest was created as declared" in written
    assert "the schedule digest was changed as declared" in written


def test_jobs_do_not_carry_what_their_kind_has(queue: Queue, start: Start) -> None:
    start(shop(queue)).stop()
    connection = queue.db.connect()
    connection.execute("SELECT pulse.set_kind('mail', max_attempts => 9)")
    job = queue.job(mail.enqueue(connection, "a@b.c").id)
    assert (job["lane"], job["max_attempts"], job["tags"]) == ("mail", 9, ["x"])


def test_an_operators_change_is_left_alone_and_told(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start(shop(queue)).stop()
    queue.db.connect().execute("SELECT pulse.unschedule('digest')")
    start(shop(queue)).stop()
    assert "the schedule digest is not as declared: it was removed by hand" in (
        caplog.text
    )


def test_a_worker_that_may_not_change_settings_works_all_the_same(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    connection = queue.db.connect()
    connection.execute("CREATE ROLE only_works LOGIN")
    connection.execute("SELECT pulse.grant_access('only_works', 'worker')")
    try:
        dsn = f"{queue.db.dsn} user=only_works"
        start(Worker(dsn, application="shop", tasks=[mail])).stop()
    finally:
        connection.execute("DROP OWNED BY only_works")
        connection.execute("DROP ROLE only_works")
    assert (
        "could not apply the declarations of application shop: permission denied"
        in caplog.text
    )


def test_what_cannot_be_declared_is_refused_at_once(queue: Queue) -> None:
    with pytest.raises(TypeError, match="belongs to the kind"):
        pulse.task("k", backoff="fixed")
    with pytest.raises(TypeError, match="belongs to an application"):
        Worker(queue.db.dsn).schedule("s", every=5)
