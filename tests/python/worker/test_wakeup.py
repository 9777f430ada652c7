"""Waking up: notifications, their probe, polling without LISTEN, maintenance."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import pulse
from pulse import Job, Worker
from pulse.worker.protocol import Exchange
from pulse.worker.wakeup import CLAIM_AGAIN_AFTER
from tests.conftest import Database
from tests.python.worker.conftest import ARMED, PATIENCE, Own, Queue, Start
from tools.servers import Server


def test_a_sleeping_worker_is_woken_at_once(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, poll_interval=600)
    ran = threading.Event()

    @worker.handle("wake")
    async def wake(job: Job) -> None:
        ran.set()

    start(worker)
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed")
    for i in range(150):
        # Some of them are enqueued while it looks for the last time before it sleeps.
        threading.Event().wait(i % 8 / 1000)
        ran.clear()
        queue.enqueue("wake")
        assert ran.wait(PATIENCE), "at ten minutes between polls only the bell wakes it"


def test_a_busy_worker_is_not_rung(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, concurrency=1, poll_interval=600)
    began, end = threading.Event(), threading.Event()

    @worker.handle("long")
    def long(job: Job) -> None:
        began.set()
        end.wait(PATIENCE)

    start(worker)
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed")
    queue.enqueue("long")
    assert began.wait(PATIENCE)
    queue.until(lambda: queue.one(ARMED) == 0, "the bell is disarmed")
    end.set()
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed again")


def test_a_bell_asks_no_other_lane(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten lanes each has its price, and only one has a job."""
    worker = Worker(queue.db.dsn, lanes={"a": 1, "b": 2, "c": 3}, poll_interval=600)
    asked: list[dict[str, int]] = []
    send = Exchange.send

    async def noted(self: Any, ended: Any, wants: Any) -> Any:
        asked.append(dict(wants))
        return await send(self, ended, wants)

    monkeypatch.setattr(Exchange, "send", noted)

    @worker.handle("wake")
    async def wake(job: Job) -> None: ...

    start(worker)
    queue.until(lambda: queue.one(ARMED) == 3, "the bells are armed")
    time.sleep(3 * CLAIM_AGAIN_AFTER)  # Until it has looked for the last time.
    before = len(asked)
    job = queue.enqueue("wake", lane="b")
    queue.until_state(job, "completed")
    assert asked[before] == {"b": 2}


class Counting(pulse.Hooks):
    def __init__(self) -> None:
        self.cycles = 0
        self.claimed_jobs: list[int] = []

    def claimed(self, jobs: object, seconds: float) -> None:
        self.cycles += 1
        self.claimed_jobs += [job.id for job in jobs]  # type: ignore[attr-defined]


def test_a_thousand_wake_ups_cause_no_duplicate_and_no_storm(
    queue: Queue, start: Start
) -> None:
    """Every one arrives while no job is there: claims stay far below rings."""
    hooks = Counting()
    worker = Worker(queue.db.dsn, concurrency=10, poll_interval=600, hooks=[hooks])
    runs: list[int] = []

    @worker.handle("once")
    async def once(job: Job) -> None:
        runs.append(job.id)

    start(worker)
    queue.until(lambda: queue.one(ARMED) == 1, "the bell is armed")
    queue.until(lambda: hooks.cycles >= 3, "it has looked after arming")
    quiet = hooks.cycles
    other = queue.db.connect()
    for _ in range(1000):
        # Each a transaction: equal ones of one transaction are folded into one.
        other.execute("SELECT pg_notify('pulse', 'default')")
    ids = [queue.enqueue("once") for _ in range(20)]
    queue.until(lambda: queue.states() == {"completed": 20})
    assert sorted(runs) == sorted(ids)
    assert sorted(hooks.claimed_jobs) == sorted(ids)
    assert hooks.cycles - quiet < 300


def test_a_cycle_is_one_statement(queue: Queue, start: Start) -> None:
    """Of reports, claims and refills: counted by the server, per connection."""
    hooks = Counting()
    worker = Worker(
        queue.db.dsn, concurrency=10, hooks=[hooks], listen=False, tick=False
    )

    @worker.handle("quick")
    async def quick(job: Job) -> None: ...

    pulse.enqueue_many(queue.connection, "quick", [{}] * 500)
    transactions = (
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    )
    with psycopg.connect(queue.db.server.dsn("postgres"), autocommit=True) as outside:
        query = transactions.replace("current_database()", f"'{queue.db.name}'")

        def count() -> int:
            row = outside.execute(query.encode()).fetchone()
            assert row is not None
            return int(row[0])

        before = count()
        running = start(worker)
        assert running.worker.ready.wait(PATIENCE)
        queue.until(lambda: len(hooks.claimed_jobs) == 500)
        running.stop()
        queue.connection.close()
        # Statistics arrive when a session ends.
        until = time.monotonic() + PATIENCE
        spent = 0
        while time.monotonic() < until and spent < hooks.cycles:
            spent = count() - before
        assert hooks.cycles <= 500 / 10 + 25
        assert spent >= hooks.cycles
    queue.connection = queue.db.connect()
    assert queue.states() == {"completed": 500}


def test_without_a_watchdog_the_worker_ticks_and_says_so(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue.db.dsn)

    @worker.handle("report")
    def report(job: Job) -> None: ...

    queue.connection.execute(
        "SELECT pulse.schedule('often', 'report', every => '1 second')"
    )
    start(worker)
    queue.until(
        lambda: queue.states().get("completed", 0) >= 2, "the schedule fires by itself"
    )
    warnings = [r for r in caplog.records if "start_watchdog" in r.getMessage()]
    assert len(warnings) == 1


def test_where_there_can_be_no_watchdog_none_is_asked_for(
    new_db: Callable[..., Database],
    server18: Server,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The embedded server has no pg_cron: the advice could not be taken."""
    queue = Queue(new_db(on=server18))
    assert not queue.one(
        "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_cron')"
    )
    worker = idle(queue.db.dsn)
    start(worker)
    reaped = "SELECT count(*) FROM pulse_internal.upkeep_run WHERE step = 'sweep'"
    queue.until(lambda: queue.one(reaped) > 0, "it has reaped")
    worker.stop()
    assert "watchdog" not in caplog.text


def idle(dsn: str) -> Worker:
    worker = Worker(dsn)

    @worker.handle("x")
    def x(job: Job) -> None: ...

    return worker


SLOW_TICK = """
CREATE OR REPLACE FUNCTION pulse.tick()
RETURNS TABLE (step text, did bigint, error text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS 'BEGIN
    PERFORM pg_sleep(0.6);
    INSERT INTO public.seen VALUES (
        current_setting(''statement_timeout''), current_setting(''lock_timeout'')
    );
END'
"""


@pytest.mark.parametrize("way", ["directly", "through a pooler"])
def test_maintenance_is_not_bound_by_timeouts_meant_for_people(
    queue: Queue, start: Start, request: pytest.FixtureRequest, way: str
) -> None:
    connection = queue.connection
    for setting in (
        "statement_timeout = '300ms'",
        "lock_timeout = '1ms'",
        "idle_session_timeout = '2s'",
    ):
        connection.execute(f"ALTER DATABASE {queue.db.name} SET {setting}".encode())
    connection.execute("CREATE TABLE public.seen (statement text, lock text)")
    connection.execute(SLOW_TICK.encode())
    dsn = queue.db.dsn if way == "directly" else str(request.getfixturevalue("bouncer"))
    start(idle(dsn))
    queue.until(lambda: queue.one("SELECT count(*) FROM public.seen") > 0)
    seen = connection.execute("SELECT DISTINCT s.* FROM public.seen AS s")
    assert seen.fetchall() == [("0", "5s")]


def test_maintenance_that_fails_is_warned_of_once_for_each_error(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    fails = """
    CREATE OR REPLACE FUNCTION pulse.tick()
    RETURNS TABLE (step text, did bigint, error text) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS 'BEGIN
        PERFORM nextval(''public.ticks'');
        RAISE ''it is {0}'' USING ERRCODE = ''{0}'';
    END'
    """
    steps = """
    CREATE OR REPLACE FUNCTION pulse.tick()
    RETURNS TABLE (step text, did bigint, error text) LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT 'prune', nextval('public.ticks'), {}::text $$
    """

    def ticks() -> int:
        return int(queue.one("SELECT last_value FROM public.ticks"))

    def after_ticks(definition: str) -> list[str]:
        """The records of maintenance during two ticks of this kind."""
        caplog.clear()
        queue.connection.execute(definition.encode())
        # The one that is under way may be of the kind before.
        before = ticks()
        queue.until(lambda: ticks() >= before + 3)
        records = [
            r for r in caplog.records if r.getMessage().startswith("maintenance:")
        ]
        return [f"{r.levelname} {r.getMessage().splitlines()[0]}" for r in records]

    queue.connection.execute("CREATE SEQUENCE public.ticks")
    with (
        pytest.MonkeyPatch.context() as patch,
        caplog.at_level(logging.INFO, "pulse.worker"),
    ):
        patch.setattr("pulse.worker.wakeup.TICK_SELDOM", 0.05)
        patch.setattr("pulse.worker.wakeup.TICK_EVERY", 0.05)
        start(idle(queue.db.dsn))
        assert after_ticks(fails.format("XX001")) == [
            "WARNING maintenance: tick failed: it is XX001"
        ]
        assert after_ticks(fails.format("XX002")) == [
            "WARNING maintenance: tick failed: it is XX002"
        ]
        assert after_ticks(steps.format("'57014: at ' || clock_timestamp()"))[0] == (
            "INFO maintenance: tick works again"
        )
        # Still the same, though the words differ each time.
        assert after_ticks(steps.format("'57014: by ' || clock_timestamp()")) == []
        assert after_ticks(steps.format("NULL")) == [
            "INFO maintenance: prune works again"
        ]


def test_hello_names_lanes_and_kinds(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, lanes={"a": 1, "b": 2}, name="the-worker")

    @worker.handle("x")
    def x(job: Job) -> None: ...

    start(worker)
    query = "SELECT to_jsonb(w) FROM pulse.workers AS w WHERE worker = 'the-worker'"
    queue.until(lambda: queue.connection.execute(query).fetchone() is not None)
    row = queue.one(query)
    assert (sorted(row["lanes"]), row["kinds"]) == (["a", "b"], ["x"])


# -- PgBouncer ----------------------------------------------------------------------


def test_behind_pgbouncer_everything_works_by_polling_and_one_line_says_so(
    bouncer: str, queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    queue.connection.execute(
        "SELECT pulse.set_lane('default', lease_for => '1 second')"
    )
    worker = Worker(bouncer, concurrency=5, poll_interval=0.1)
    began, end = threading.Event(), threading.Event()

    @worker.handle("job")
    def job(job: Job, n: int) -> int:
        if n == 1:
            raise pulse.RetryIn(0)
        job.progress(0.5)
        job.checkpoint({"n": n})
        return n

    @worker.handle("long")
    def long(job: Job) -> None:
        began.set()
        while not job.cancelled:
            threading.Event().wait(0.01)

    with caplog.at_level(logging.INFO, "pulse"):
        running = start(worker)
        with pulse.Client(bouncer) as client:
            ids = client.enqueue_many(
                "job", [{"n": n} for n in range(1, 50)], max_attempts=2
            )
            queue.until(
                lambda: queue.states() == {"completed": 48, "dead": 1}, "all have ended"
            )
            assert client.result(ids[-1], 5) == 49
            cancelled = client.enqueue("long")
            assert began.wait(PATIENCE)
            client.cancel(cancelled)
            queue.until_state(cancelled, "cancelled")
        end.set()
        queue.until(lambda: "LISTEN receives nothing" in caplog.text, "it says so")
        assert queue.one(ARMED) == 0
        running.stop()
    assert caplog.text.count("LISTEN receives nothing") == 1
    assert "polling instead" in caplog.text
    # No lock was left behind in one of the pooler's sessions.
    assert queue.one(ARMED) == 0


def test_nothing_is_lost_when_the_database_restarts_under_load(
    own: Own, start: Start
) -> None:
    queue, db, server = own, own.db, own.server
    queue.connection.execute(
        "SELECT pulse.set_lane('default', lease_for => '2 seconds')"
    )
    queue.connection.execute(
        "SELECT pulse.set_kind('job', backoff => 'none', max_attempts => 20)"
    )
    worker = Worker(db.dsn, concurrency=10)
    runs: dict[int, int] = {}
    lock = threading.Lock()

    @worker.handle("job")
    def job(job: Job, n: int) -> int:
        with lock:
            runs[n] = runs.get(n, 0) + 1
        threading.Event().wait(0.002)
        return n

    jobs = 2000
    pulse.enqueue_many(queue.connection, "job", [{"n": n} for n in range(jobs)])
    start(worker)
    for how in ("SIGINT", "SIGQUIT"):
        had = len(runs)
        queue.until(lambda had=had: len(runs) > had + 200, "it works")  # type: ignore[misc]
        server.restart(how)
        queue.connection = db.connect()
    queue.until(
        lambda: queue.states() == {"completed": jobs}, "every job is completed", 60
    )
    assert set(runs) == set(range(jobs))
    queue.check()
    # Only what was in flight at a restart ran again.
    assert sum(runs.values()) <= jobs + 2 * 10 * 2


def test_a_claim_error_restores_every_slot_and_backs_off(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[tuple[float, BaseException]] = []
    enough = threading.Event()

    class Watch(pulse.Hooks):
        def disconnected(self, error: BaseException) -> None:
            errors.append((time.monotonic(), error))
            if len(errors) == 4:
                enough.set()

    worker = Worker(queue.db.dsn, concurrency=4, hooks=[Watch()], poll_interval=0.05)
    everyone = threading.Barrier(4)

    @worker.handle("job")
    def job(job: Job) -> None:
        everyone.wait(PATIENCE)

    start(worker)
    rename = "ALTER FUNCTION pulse.{} RENAME TO {}"
    signature = "claim_batch(text, text, integer, interval, text[])"
    queue.connection.execute(rename.format(signature, "hidden").encode())
    pulse.enqueue_many(queue.connection, "job", [{}] * 8)
    assert enough.wait(PATIENCE)
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(errors)]
    assert gaps[-1] > gaps[0] / 2
    assert gaps[-1] >= 0.15, "it waits longer each time"
    hidden = signature.replace("claim_batch", "hidden")
    queue.connection.execute(rename.format(hidden, "claim_batch").encode())
    # The barrier opens only for four at once: every slot is there again.
    queue.until(lambda: queue.states() == {"completed": 8})
