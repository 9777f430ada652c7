"""What a person reads when something is wrong, and the command that fixes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pulse import Task
from tests.cli.conftest import Pulse, command
from tests.conftest import Connection, Database
from tests.python.worker.conftest import bouncer as bouncer
from tests.python.worker.conftest import session_bouncer as session_bouncer
from tools import release
from tools.servers import Server

a_task: Task[[], None] = Task("x", lambda: None)
PRETEND = "UPDATE pg_extension SET extversion = %s WHERE extname = 'pulse'"


def test_a_database_without_pulse(
    run_pulse: Pulse, new_db: Callable[..., Database]
) -> None:
    empty = new_db(product=None)
    ran = run_pulse("ps", "--dsn", empty.dsn)
    assert ran.code == 3
    assert f"pulse is not installed in database {empty.name}" in ran.err
    assert "Fix: pulse install\n" in ran.err

    assert run_pulse("install", "--dsn", empty.dsn).code == 0
    assert run_pulse("ps", "--dsn", empty.dsn).code == 0


@pytest.mark.parametrize(
    "dsn", ["postgresql://u:hush%zz@h/db", "host=h password=my hush dbname=x"]
)
def test_what_is_no_dsn_is_not_quoted_with_its_password(
    run_pulse: Pulse, dsn: str
) -> None:
    ran = run_pulse("ps", "--dsn", dsn)
    assert "this is not a DSN: " in ran.err
    assert "hush" not in ran.err + ran.out


def test_a_worker_on_a_database_without_pulse(
    new_db: Callable[..., Database], tmp_path: Path
) -> None:
    app = (
        "import pulse\nworker = pulse.Worker()\nworker.handle('x')(lambda job: None)\n"
    )
    (tmp_path / "lonely_app.py").write_text(app)
    empty = new_db(product=None)
    ran = command("work", "lonely_app:worker", "--dsn", empty.dsn, cwd=tmp_path)
    assert ran.code == 3
    assert f"pulse is not installed in the database {empty.name}" in ran.err
    assert "pulse install" in ran.err


def test_a_database_with_an_older_pulse(
    pulse: Pulse, db: Database, connect: Callable[..., Connection]
) -> None:
    connect().execute(PRETEND, ["0.9"])
    ran = pulse("lanes")
    assert ran.code == 0
    assert "pulse 0.9 in database" in ran.out
    assert "is older than this package, which needs 1.0" in ran.out
    assert "Fix: pulse install" in ran.out
    # With --json the words go elsewhere.
    ran = pulse("lanes", "--json")
    assert ran.json[0]["lane"] == "default"
    assert "Fix: pulse install" in ran.err
    health = {row["check_name"]: row for row in pulse("health", "--json").json}
    assert health["package"]["status"] == "warn"
    assert "pulse install" in health["package"]["advice"]


def test_an_older_pulse_that_lacks_what_we_call(
    run_pulse: Pulse, new_db: Callable[..., Database]
) -> None:
    plain = new_db(product="plain")
    plain.psql("-c", "DROP FUNCTION pulse.why(bigint)")
    ran = run_pulse("why", 1, "--dsn", plain.dsn)
    assert ran.code == 3
    assert "is older than this package" in ran.err
    assert "It lacks why." in ran.err
    assert "Fix: pulse install" in ran.err


def test_no_server_at_the_address_given(run_pulse: Pulse, tmp_path: Path) -> None:
    ran = run_pulse("ps", "--dsn", f"postgresql://ada:secret@/shop?host={tmp_path}")
    assert ran.code == 4
    assert f"cannot reach the server: database shop at {tmp_path} as ada" in ran.err
    assert "failed: No such file or directory" in ran.err
    assert "Fix: is it running there? check --dsn" in ran.err
    assert "secret" not in ran.err


def test_no_server_and_no_address(
    run_pulse: Pulse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    # The same as a machine without PostgreSQL: nothing listens on this port.
    ran = run_pulse("ps", PGPORT="1", PGUSER="ada")
    assert ran.code == 4
    assert "Fix: pulse dev" in ran.err


def test_no_such_database(run_pulse: Pulse, server: Server) -> None:
    ran = run_pulse("ps", "--dsn", server.dsn("nowhere"))
    assert ran.code == 4
    assert "there is no database nowhere at this server" in ran.err
    assert "Fix: createdb nowhere" in ran.err


def test_no_such_role(run_pulse: Pulse, server: Server) -> None:
    ran = run_pulse("ps", "--dsn", server.dsn("postgres", user="nobody_here"))
    assert ran.code == 5
    assert "the server knows no role nobody_here" in ran.err


def test_a_role_without_access(
    pulse: Pulse, db: Database, connect: Callable[..., Connection]
) -> None:
    connect().execute("DROP ROLE IF EXISTS cli_guest")
    connect().execute("CREATE ROLE cli_guest LOGIN")
    guest = db.server.dsn(db.name, user="cli_guest")
    for verb, level, has in (
        (("kinds",), "viewer", "none"),
        (("drain", "default"), "operator", "viewer"),
        (("prune",), "admin", "viewer, approver, operator"),
    ):
        ran = pulse(*verb, "--dsn", guest)
        assert ran.code == 5
        assert "cli_guest may not do this: permission denied" in ran.err
        assert f"`pulse {verb[0]}` needs the access level {level}; " in ran.err
        assert f"cli_guest has {has}." in ran.err
        assert f"Fix: SELECT pulse.grant_access('cli_guest', '{level}')" in ran.err
        connect().execute("SELECT pulse.grant_access('cli_guest', %s)", [level])
        assert pulse(*verb, "--dsn", guest).code == 0
    for level in ("viewer", "operator", "admin"):
        connect().execute("SELECT pulse.revoke_access('cli_guest', %s)", [level])
    connect().execute("DROP ROLE cli_guest")


def test_no_watchdog(pulse: Pulse) -> None:
    ran = pulse("health")
    assert "watchdog" in ran.out
    assert "SELECT pulse.start_watchdog()" in ran.out
    output = pulse("install").out
    assert (
        f"pulse {release.control()} (extension) is installed; nothing to do" in output
    )
    assert "watchdog: none; " in output
    assert "the administrator runs:" in output


def test_a_dead_listen(
    run_pulse: Pulse,
    bouncer: str,
) -> None:
    """Behind a transaction pooler everything works, and health says what does not."""
    assert run_pulse("enqueue", "x", "--dsn", bouncer).code == 0
    assert "1  ready" in run_pulse("jobs", "--dsn", bouncer).out
    ran = run_pulse("health", "--dsn", bouncer)
    assert "LISTEN receives nothing here" in ran.out
    assert "give them a DSN that leads straight to PostgreSQL" in ran.out


def test_a_session_pooler_is_no_reason_to_worry(
    run_pulse: Pulse, session_bouncer: str
) -> None:
    ran = run_pulse("health", "--dsn", session_bouncer)
    assert "LISTEN receives nothing here" not in ran.out


def test_no_libpq(run_pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "psycopg":
                raise ImportError("no pq wrapper available.")

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "psycopg")
    ran = run_pulse("ps", "--dsn", "postgresql:///x")
    assert ran.code == 4
    assert 'Fix: pip install "pgpulse[binary]"' in ran.err


def test_what_the_server_refuses_is_shown_in_its_words(pulse: Pulse) -> None:
    ran = pulse("why", 4711)
    assert ran.code == 1
    assert "pulse: job 4711 does not exist [PU004]" in ran.err
    assert "Fix: SELECT * FROM pulse.jobs" in ran.err


def test_a_problem_as_json(pulse: Pulse) -> None:
    ran = pulse("why", 4711, "--json")
    assert ran.code == 1
    assert ran.out == ""
    assert json.loads(ran.err)["error"] == "job 4711 does not exist [PU004]"


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("no_such_app:worker", "there is no module no_such_app here"),
        ("json:nothing", "json has no nothing"),
        ("json:dumps.__name__", "is a str, not a pulse.Worker"),
        ("json:JSONEncoder", "is a type, not a pulse.Worker"),
        ("tests.cli.test_problems:a_task", "is a Task, not a pulse.Worker"),
    ],
)
def test_a_worker_that_is_not_there(pulse: Pulse, where: str, reason: str) -> None:
    ran = pulse("work", where)
    assert ran.code == 2
    assert reason in ran.err
    assert "Fix: " in ran.err


def test_wrong_usage_is_2(pulse: Pulse) -> None:
    assert pulse("cancel").code == 2
    assert pulse("no-such-verb").code == 2
    assert pulse("ps", "--dsn", "this is no dsn").code == 2
