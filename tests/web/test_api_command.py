"""`pulse web`: what it says when it starts, and when it cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.cli.conftest import PULSE, command, environment
from tests.conftest import Database
from tests.web.conftest import API, ROLES, TOKENS, grant_roles
from tests.web.process import pulse_web


def test_it_says_where_it_listens_and_as_which_role(db: Database) -> None:
    process = subprocess.Popen(
        [*PULSE, "web", "--port", "0", "--dsn", db.dsn],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
    finally:
        process.terminate()
        process.communicate()
    assert lines[0].startswith("pulse web on http://127.0.0.1:")
    assert f"postgres in database {db.name}" in lines[1]
    assert "not needed: it answers this machine only" in lines[2]
    assert "Ctrl-C" in lines[3]


def test_tokens_of_a_file_open_it_elsewhere_too(db: Database, tmp_path: Path) -> None:
    grant_roles(db.connect())
    (tmp_path / "tokens").write_text(f"{TOKENS['viewer']} {ROLES['viewer']}\n")
    options = ("--host", "0.0.0.0", "--token-file", tmp_path / "tokens")
    with pulse_web(tmp_path, *options, "--dsn", db.dsn) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}{API[1:]}/me").status_code == 401
        bearer = {"Authorization": f"Bearer {TOKENS['viewer']}"}
        me = httpx.get(f"{url}{API[1:]}/me", headers=bearer).json()
        assert me["role"] == ROLES["viewer"]


def test_without_its_packages_it_says_which_to_install(db: Database) -> None:
    without = "import sys; sys.modules['fastapi'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", without + PULSE[-1], "web", "--dsn", db.dsn],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'pip install "pgpulse[web]"' in done.stderr


def test_a_port_that_is_taken_is_named(db: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = command("web", "--port", port, "--dsn", db.dsn)
    assert ran.code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in ran.err
    assert "--port" in ran.err


def test_a_port_that_is_none_is_refused(db: Database) -> None:
    ran = command("web", "--port", 70000, "--dsn", db.dsn)
    assert ran.code == 2
    assert "0<=x<=65535" in ran.err
    assert "Traceback" not in ran.err


def test_a_database_without_pulse_is_reported_as_such(
    new_db: Callable[..., Database],
) -> None:
    ran = command("web", "--port", 0, "--dsn", new_db(product=None).dsn)
    assert ran.code == 3
    assert "pulse install" in ran.err


def test_the_plain_script_serves_as_well(
    new_db: Callable[..., Database], tmp_path: Path
) -> None:
    with pulse_web(tmp_path, "--dsn", new_db(product="plain").dsn) as running:
        me = httpx.get(f"{running.url}{API[1:]}/me").json()
    assert "operator" in me["rights"]
    assert me["version"] == "1.0"
