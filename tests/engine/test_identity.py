"""Who calls, across sessions: autovacuum, and signatures of other sessions."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Database
from tools.servers import Server

TRAP = """
CREATE TABLE trap.loot (what text);
CREATE TABLE trap.bait (n integer) WITH (
    autovacuum_analyze_threshold = 1, autovacuum_analyze_scale_factor = 0
);
CREATE FUNCTION trap.act() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trap.loot SELECT 'sees ' || j.job_id FROM pulse.jobs AS j;
    PERFORM pulse.enqueue('vacuumed');
    PERFORM pulse.cancel(current_setting('trap.victim')::bigint, force => true);
    INSERT INTO trap.loot VALUES ('cancelled');
EXCEPTION WHEN OTHERS THEN
    INSERT INTO trap.loot VALUES (SQLSTATE);
    PERFORM pulse.enqueue('vacuumed');
END;
$$;
CREATE FUNCTION trap.spring(n integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('trap.victim', true) <> '' THEN
        PERFORM trap.act();
    END IF;
    RETURN n;
END;
$$;
CREATE INDEX bait_sprung ON trap.bait (trap.spring(n));
"""


def test_autovacuum_lets_a_producer_read_and_cancel_nothing_of_others(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(autovacuum_naptime="1s")
    database = Database(server, server.create(product="extension"))
    run = database.connect().execute
    run("CREATE ROLE trap_mallory LOGIN")
    run("SELECT pulse.grant_access('trap_mallory', 'producer')")
    run("CREATE SCHEMA trap AUTHORIZATION trap_mallory")
    [victim] = run("SELECT pulse.enqueue('secret')").fetchone() or [0]
    run(f"ALTER DATABASE {database.name} SET trap.victim = '{victim}'".encode())

    hostile = database.connect(user="trap_mallory")
    hostile.execute("SET trap.victim = ''")
    hostile.execute(TRAP.encode())
    hostile.execute("INSERT INTO trap.bait SELECT generate_series(1, 5)")

    # Nothing but its naptime says when autovacuum comes.
    deadline = time.monotonic() + 60
    while not (loot := run("SELECT what FROM trap.loot").fetchall()):
        assert time.monotonic() < deadline, "autovacuum did not come"
        time.sleep(0.1)

    # PU004: the job of another role does not exist for a producer.
    assert set(loot) == {("PU004",)}
    owners = "SELECT DISTINCT enqueued_by FROM pulse.jobs WHERE kind = 'vacuumed'"
    assert run(owners).fetchall() == [("trap_mallory",)]
    state = "SELECT state, enqueued_by FROM pulse.jobs WHERE job_id = %s"
    assert run(state, [victim]).fetchall() == [("ready", "postgres")]
    database.close()


def test_a_signature_is_of_no_use_in_another_session(db: Database) -> None:
    signer, other = db.connect(autocommit=False), db.connect()
    row = signer.execute("SELECT pulse_internal.sign()").fetchone()
    # While the signer's transaction is open, and when it has committed.
    for _ in range(2):
        with pytest.raises(psycopg.Error) as refused:
            other.execute("SELECT pulse.pause('x', signature => %s)", row)
        assert refused.value.sqlstate == "PU012"
        signer.commit()
    assert other.execute("SELECT FROM pulse.pause_status()").fetchall() == []
