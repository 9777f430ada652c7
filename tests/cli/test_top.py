"""pulse top on a small screen, and on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import sys
import time
from collections.abc import Callable

import pytest

from tests.cli.conftest import Pulse, environment
from tests.conftest import Connection, Database


@pytest.fixture
def busy(connect: Callable[..., Connection]) -> Connection:
    """Many lanes, many running jobs with long names, many workers."""
    connection = connect()
    for n in range(12):
        connection.execute("SELECT pulse.set_lane(%s, max_slots => 50)", [f"lane-{n}"])
    connection.execute(
        "SELECT pulse.enqueue_many(%s, array_fill('{}'::jsonb, ARRAY[60]), lane => %s)",
        ["a-kind-with-quite-a-long-name", "lane-3"],
    )
    for n in range(9):
        worker = f"worker-{n}.eu-central.example.com:{n}"
        for (lease,) in connection.execute(
            "SELECT lease FROM pulse.claim_batch(%s, 'lane-3', 4)", [worker]
        ).fetchall():
            connection.execute("SELECT pulse.progress(%s, 0.5, 'half way')", [lease])
        connection.execute("SELECT pulse.hello(%s, '{lane-3}')", [worker])
    return connection


def test_it_fits_80_by_24(pulse: Pulse, busy: Connection) -> None:
    ran = pulse("top", "--once", COLUMNS="80", LINES="24")
    lines = ran.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    said = ran.out
    assert "24 ready  36 running" in said
    for head in ("LANE", "JOB", "WORKER"):
        assert any(line.lstrip().startswith(head) for line in lines)
    assert said.count("more") == 3
    assert "███···  50%" in said
    assert "36/50" in said


@pytest.mark.parametrize(("width", "height"), [(40, 12), (200, 60)])
def test_it_fits_other_screens(
    pulse: Pulse, busy: Connection, width: int, height: int
) -> None:
    ran = pulse("top", "--once", COLUMNS=str(width), LINES=str(height))
    assert ran.code == 0
    if width > 80:
        assert len(ran.out.splitlines()) <= height
        assert ran.out.count("half way") > 12


def test_an_empty_database_says_what_to_do(pulse: Pulse) -> None:
    said = pulse("top", "--once", COLUMNS="80", LINES="24").out
    assert "nothing runs" in said
    assert "none: pulse work app:worker" in said


def test_without_a_terminal_it_says_so(pulse: Pulse) -> None:
    ran = pulse("top")
    assert ran.code == 2
    assert "pulse top --once" in ran.err
    assert set(pulse("top", "--json").json) == {"lanes", "running", "workers"}


def test_it_draws_until_q(db: Database, busy: Connection) -> None:
    """On a terminal of 80 by 24, with the keys a person presses."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execve(
            sys.executable,
            [sys.executable, "-c", "from pulse.cli import main; main()", "top"],
            environment(PULSE_DSN=db.dsn, TERM="xterm"),
        )
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    said = b""
    begin = time.monotonic()
    try:
        while said.count(b"q ends") < 2:
            assert time.monotonic() - begin < 30, said[-2000:]
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 65536)
        os.write(terminal, b"q")
        while True:
            try:
                more = os.read(terminal, 65536)
            except OSError:
                break
            if not more:
                break
            said += more
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    # The screen is put back: alternate screen left, cursor shown.
    assert b"\x1b[?1049h" in said
    assert said.rindex(b"\x1b[?1049l") > said.rindex(b"\x1b[?1049h")
    assert b"\x1b[?25h" in said
