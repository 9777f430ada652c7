"""top: one screen, drawn again and again, and the keys that act on it.

It reads keys and the clock; screen.py reads the database and lays out the rows.
"""

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.live import Live
from rich.text import Text

from pulse.cli import show
from pulse.cli.problems import USAGE, Problem
from pulse.cli.screen import Screen
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

if TYPE_CHECKING:
    from typing_extensions import LiteralString

ENDS = ("q", "Q", "\x03")
ESCAPE, ENTER, ERASE = "\x1b", ("\r", "\n"), ("\x7f", "\x08")
ARROWS = {"\x1b[A": "k", "\x1b[B": "j", "\x1bOA": "k", "\x1bOB": "j", "\x1b[Z": "\t"}
STATES = ("running", "retrying", "dead")


@click.command()
@click.option(
    "--every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Time between two refreshes.",
)
@click.option("--once", is_flag=True, help="Draw one screen and end.")
@with_session
def top(session: Session, every: float, once: bool) -> None:
    """A live screen of lanes, jobs and workers. ? lists its keys, q ends it."""
    screen = Screen(session)
    if session.as_json:
        screen.look()
        return session.print_json(screen.as_json())
    if once:
        screen.look()
        width, height = shutil.get_terminal_size()
        return session.out.print(screen.draw(width, height), width=width)
    if not session.out.is_terminal:
        raise Problem(
            "pulse top needs a terminal", remedy="pulse top --once", code=USAGE
        )
    screen.look()
    controls = Controls(screen)
    with (
        keys() as pressed,
        Live(console=session.out, screen=True, auto_refresh=False) as live,
    ):
        while True:
            width, height = os.get_terminal_size()
            live.update(screen.draw(width, height), refresh=True)
            for key in pressed(every):
                if not controls.press(key):
                    return None
            screen.look()


@contextlib.contextmanager
def keys() -> "Iterator[Any]":
    """Keys without Enter; the terminal is put back however we end."""
    if not sys.stdin.isatty():

        def none(seconds: float) -> list[str]:
            time.sleep(seconds)
            return []

        yield none
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> list[str]:
        if not select.select([descriptor], [], [], seconds)[0]:
            return []
        return split(os.read(descriptor, 64).decode(errors="replace"))

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def split(read: str) -> list[str]:
    """Several keys may come at once; an arrow is one of three characters."""
    found = []
    while read:
        arrow = read[:3] if read[:3] in ARROWS else ""
        found.append(ARROWS.get(arrow, read[0]))
        read = read[len(arrow) or 1 :]
    return found


@dataclass
class Action:
    """The action of a key, until it is confirmed."""

    question: str
    query: "LiteralString"
    values: Row
    session: Session


class Controls:
    """The actions of keys: choose, sort, filter, and act after a question."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.asked: Action | None = None
        self.typing = False

    def press(self, key: str) -> bool:
        """False when the key ends it."""
        screen = self.screen
        if self.asked is not None:
            self.answer(key)
        elif screen.helps:
            screen.helps = False
        elif self.typing:
            self.type(key)
        elif key in ENDS:
            return False
        else:
            screen.line = Text("")
            self.steer(key)
        return True

    # -- looking ------------------------------------------------------------------

    def steer(self, key: str) -> None:
        screen = self.screen
        panel = screen.panels[screen.focus]
        if key == "?":
            screen.helps = True
        elif key == "\t":
            screen.focus = (screen.focus + 1) % 3
        elif key in ("1", "2", "3"):
            screen.focus = int(key) - 1
        elif key in ("j", "k"):
            screen.choose(1 if key == "j" else -1)
        elif key == "s":
            panel.sort, panel.turned = (panel.sort + 1) % len(panel.sorts), False
        elif key == "S":
            panel.turned = not panel.turned
        elif key == "v":
            screen.focus = 1
            screen.state = STATES[(STATES.index(screen.state) + 1) % len(STATES)]
        elif key == "/":
            self.typing = True
            self.show_typed()
        elif key == ESCAPE:
            screen.wanted = ""
        elif key in ("c", "C", "r", "d"):
            self.ask(key)

    def type(self, key: str) -> None:
        screen = self.screen
        if key in ENTER or key == ESCAPE:
            self.typing = False
            screen.wanted = "" if key == ESCAPE else screen.wanted
            screen.line = Text("")
            return
        if key in ERASE:
            screen.wanted = screen.wanted[:-1]
        elif key.isprintable():
            screen.wanted += key
        self.show_typed()

    def show_typed(self) -> None:
        self.screen.line = Text.assemble(
            ("only rows with: ", "bold"),
            self.screen.wanted,
            ("▏  Enter keeps it, Esc shows all", "dim"),
        )

    # -- acting -------------------------------------------------------------------

    def ask(self, key: str) -> None:
        """Say what would be done to the chosen row, and wait for y."""
        found = self.action(key, self.screen.chosen)
        if isinstance(found, str):
            self.screen.line = Text(found, style="yellow")
            return
        self.asked = found
        self.screen.line = Text(f"{show.safe(found.question)}  y / n", style="bold red")

    def action(self, key: str, row: Row | None) -> Action | str:
        focus, state = self.screen.focus, self.screen.state
        if row is None:
            return "no row is chosen"
        there = self.screen.having(row)
        if key == "d":
            if focus != 0:
                return "choose a lane first: 1"
            lane = row["lane"]
            where = f" of node {row['node']}" if "node" in row else ""
            values = {"lane": lane, "reason": "pulse top", "new": True}
            if row["drained"]:
                return Action(
                    f"resume lane {lane}{where}?", operator.RESUME_LANE, values, there
                )
            return Action(f"drain lane {lane}{where}?", operator.DRAIN, values, there)
        if focus != 1:
            return "choose a job first: 2"
        job = f"job {row['job_id']} ({row['kind']})"
        values = {"job_id": int(row["job_id"]), "reason": "pulse top"}
        if key == "r":
            if state == "running":
                return "it runs: v shows those that are retrying or dead"
            if state == "retrying":
                return Action(f"run {job} now?", operator.RUN_NOW, values, there)
            return Action(f"retry {job}?", operator.RETRY, values, there)
        if state == "dead":
            return "it has ended: r retries it"
        force = key == "C"
        question = f"cancel {job}{' by force' if force else ''}?"
        return Action(question, operator.CANCEL, {**values, "force": force}, there)

    def answer(self, key: str) -> None:
        import psycopg

        asked, self.asked = self.asked, None
        assert asked is not None
        self.screen.line = Text("")
        if key not in ("y", "Y"):
            self.screen.line = Text("nothing was done", style="dim")
            return
        try:
            answer = asked.session.one(asked.query, asked.values)
        except psycopg.Error as error:
            reason = error.diag.message_primary or show.first_line(str(error))
            self.screen.line = Text(show.safe(reason), style="bold red")
            return
        values = ", ".join(f"{name}: {value}" for name, value in answer.items())
        done = asked.question.rstrip("?")
        self.screen.line = Text(f"{show.safe(done)}: done, {values}", style="green")
