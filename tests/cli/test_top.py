"""pulse top on a small screen, and on a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator

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
    output = ran.out
    assert "24 ready  36 running" in output
    for head in ("LANE", "JOB", "WORKER"):
        assert any(line.lstrip().startswith(head) for line in lines)
    assert output.count("more") == 3
    assert "███···  50%" in output
    assert "36/50" in output


@pytest.mark.parametrize(("width", "height"), [(40, 12), (200, 60)])
def test_it_fits_other_screens(
    pulse: Pulse, busy: Connection, width: int, height: int
) -> None:
    ran = pulse("top", "--once", COLUMNS=str(width), LINES=str(height))
    assert ran.code == 0
    if width > 80:
        assert len(ran.out.splitlines()) <= height
        assert ran.out.count("half way") > 12


def test_what_is_wrong_stands_on_top(pulse: Pulse, busy: Connection) -> None:
    busy.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '2 hours'"
    )
    busy.execute(
        "UPDATE pulse_internal.worker SET seen_at = now() - interval '9 minutes'"
    )
    busy.execute(
        "SELECT pulse.fail(lease, 'no', fatal => true) FROM pulse_internal.lease"
    )
    lines = pulse("top", "--once", COLUMNS="80", LINES="24").out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    wrong = lines[1].removeprefix("wrong: ").split(", ")
    assert wrong[:2] == ["last_tick", "oldest_ready_job"]
    assert "36 dead" in wrong
    assert wrong[-1].startswith("unhandled_kinds")
    narrow = pulse("top", "--once", COLUMNS="50").out.splitlines()[1].split(", ")
    assert narrow[-1] == f"+{len(wrong) - len(narrow) + 1}"
    assert any("stopped" in line for line in lines)


def test_an_empty_database_says_what_to_do(pulse: Pulse) -> None:
    output = pulse("top", "--once", COLUMNS="80", LINES="24").out
    assert "nothing runs" in output
    assert "none: pulse work app:worker" in output


def test_without_a_terminal_it_says_so(pulse: Pulse) -> None:
    ran = pulse("top")
    assert ran.code == 2
    assert "pulse top --once" in ran.err
    assert set(pulse("top", "--json").json) == {"lanes", "running", "workers"}


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """pulse top on a terminal of 80 by 24, with the keys a person presses."""

    def __init__(self, dsn: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:  # pragma: no cover
            os.execve(
                sys.executable,
                [
                    *(sys.executable, "-c", "from pulse.cli import main; main()"),
                    *("top", "--every", "0.2"),
                ],
                environment(PULSE_DSN=dsn, TERM="xterm"),
            )
        size = struct.pack("HHHH", 24, 80, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)
        self.output = b""

    def read(self) -> bool:
        """False when it has ended."""
        if not select.select([self.terminal], [], [], 1)[0]:
            return True
        try:
            more = os.read(self.terminal, 65536)
        except OSError:
            return False
        self.output += more
        return bool(more)

    def until(self, text: str, times: int = 1) -> None:
        """Wait until this was printed since the last key."""
        begin = time.monotonic()
        while (plain := ESCAPES.sub("", self.output.decode(errors="ignore"))).count(
            text
        ) < times:
            assert time.monotonic() - begin < 60, plain[-2000:]
            assert self.read(), plain[-2000:]

    def press(self, keys: str) -> None:
        self.output = b""
        os.write(self.terminal, keys.encode())

    def end(self) -> int:
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(db: Database, busy: Connection) -> Iterator[Terminal]:
    opened = Terminal(db.dsn)
    try:
        yield opened
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(opened.pid, signal.SIGKILL)
            os.waitpid(opened.pid, 0)
        os.close(opened.terminal)


def test_it_draws_until_q(terminal: Terminal) -> None:
    terminal.until("q ends", times=2)
    output = terminal.output
    terminal.press("q")
    assert terminal.end() == 0
    output += terminal.output
    # The screen is put back: alternate screen left, cursor shown.
    assert b"\x1b[?1049h" in output
    assert output.rindex(b"\x1b[?1049l") > output.rindex(b"\x1b[?1049h")
    assert b"\x1b[?25h" in output


def test_lists_are_sorted_and_filtered(terminal: Terminal) -> None:
    terminal.until("by running ↓")
    terminal.press("s")
    terminal.until("by ready ↓")
    terminal.press("S")
    terminal.until("by ready ↑")
    terminal.press("/lane-11\r")
    terminal.until("Lanes 1, by ready ↑, only 'lane-11'")
    terminal.until("none with these letters")
    terminal.press("\x1b")
    terminal.until("Lanes 13, by ready ↑")
    terminal.press("?")
    terminal.until("Whatever changes something asks first")
    terminal.press("x2v")
    terminal.until("▶Jobs: retrying 0")
    terminal.until("nothing is retrying")


def test_keys_act_after_a_question(terminal: Terminal, busy: Connection) -> None:
    terminal.until("Jobs: running 36")
    terminal.press("d")
    terminal.until("drain lane lane-3?  y / n")
    terminal.press("n")
    terminal.until("nothing was done")
    assert busy.execute("SELECT count(*) FROM pulse_internal.hold").fetchone() == (0,)
    terminal.press("d")
    terminal.until("drain lane lane-3?  y / n")
    terminal.press("y")
    terminal.until("drain lane lane-3: done")
    assert busy.execute("SELECT lane FROM pulse_internal.hold").fetchone() == (
        "lane-3",
    )
    terminal.press("2r")
    terminal.until("it runs: v shows those that are retrying or dead")
    terminal.press("C")
    terminal.until("by force?  y / n")
    terminal.press("y")
    terminal.until("done, state: cancelled")
    cancelled = "SELECT count(*) FROM pulse_internal.finished WHERE state = 'cancelled'"
    assert busy.execute(cancelled.encode()).fetchone() == (1,)
    reasons = (
        "SELECT DISTINCT reason FROM pulse_internal.audit_entry WHERE verb <> "
        "'set_lane'"
    )
    assert busy.execute(reasons.encode()).fetchall() == [("pulse top",)]


def test_a_dead_job_is_retried(terminal: Terminal, busy: Connection) -> None:
    (job,) = busy.execute(
        "SELECT pulse.fail(lease, 'oops', fatal => true), job FROM "
        "pulse_internal.lease LIMIT 1"
    ).fetchall()[0][1:]
    terminal.until("by running ↓")
    terminal.press("vv")
    terminal.until("▶Jobs: dead 1")
    terminal.press("r")
    terminal.until(f"retry job {job}")
    terminal.press("y")
    terminal.until("done, state: ready")


def test_a_viewer_is_told_what_it_may_not(db: Database, busy: Connection) -> None:
    busy.execute("CREATE ROLE top_viewer LOGIN")
    busy.execute("SELECT pulse.grant_access('top_viewer', 'viewer')")
    terminal = Terminal(f"{db.dsn} user=top_viewer")
    try:
        terminal.until("by running ↓")
        terminal.press("d")
        terminal.until("y / n")
        terminal.press("y")
        terminal.until("permission denied")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        os.close(terminal.terminal)
        busy.execute("SELECT pulse.revoke_access('top_viewer', 'viewer')")
        busy.execute("DROP ROLE top_viewer")
