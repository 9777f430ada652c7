"""Run jobs inside a test: this connection, this transaction, no thread, no clock.

    def test_signup(conn):
        sign_up(conn, "a@b.c")                    # enqueues in the test's transaction
        assert_enqueued(conn, "send-email", {"to": "a@b.c"}, lane="mail")
        [done] = work_off(conn, worker)
        assert done.outcome == "complete"

conn is a connection of psycopg or Django, or a connection or session of SQLAlchemy on
psycopg. With `pytest_plugins = ["pulse.testing.plugin"]` in conftest.py there are
fixtures, and pulse is put into the test database.
"""

from pulse.testing.enqueued import assert_enqueued, enqueued, refute_enqueued
from pulse.testing.work import Done, forget_jobs, pass_time, perform, work_off

__all__ = [
    "Done",
    "assert_enqueued",
    "enqueued",
    "forget_jobs",
    "pass_time",
    "perform",
    "refute_enqueued",
    "work_off",
]
