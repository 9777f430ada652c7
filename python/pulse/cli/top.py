"""top: one screen, drawn again and again. It fits 80 by 24, and grows."""

import contextlib
import os
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from pulse.cli import queries, see, show
from pulse.cli.problems import USAGE, Problem
from pulse.cli.session import Row, Session, with_session

SPARKS = "▁▂▃▄▅▆▇█"
LOOKS = 8
EVERYTHING = {"lane": None, "kind": None, "worker": None, "limit": 200}


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
    """A live screen of lanes, running jobs and workers; q ends it."""
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
    with (
        keys() as pressed,
        Live(console=session.out, screen=True, auto_refresh=False) as live,
    ):
        while True:
            width, height = os.get_terminal_size()
            live.update(screen.draw(width, height), refresh=True)
            if pressed(every) in ("q", "Q", "\x1b", "\x03"):
                return None
            screen.look()


@contextlib.contextmanager
def keys() -> "Iterator[Any]":
    """Single keys without Enter; the terminal is put back however we end."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str | None:
        if select.select([descriptor], [], [], seconds)[0]:
            return os.read(descriptor, 1).decode(errors="replace")
        return None

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Screen:
    """What was seen last, and how deep each lane was before."""

    def __init__(self, session: Session, hint: str = "  q ends") -> None:
        self.session = session
        self.hint = hint
        self.lanes: list[Row] = []
        self.running: list[Row] = []
        self.workers: list[Row] = []
        self.lost = ""
        self.depths: dict[str, deque[int]] = {}

    def look(self) -> None:
        """Read all three; when the server is away, keep the last picture and say so."""
        import psycopg

        try:
            self.lanes = self.session.rows(queries.LANES)
            self.running = self.session.rows(queries.RUNNING, EVERYTHING)
            self.workers = self.session.rows(queries.WORKERS)
            self.lost = ""
        except psycopg.OperationalError as error:
            if not self.lanes:
                raise
            self.lost = show.first_line(str(error)) or "connection lost"
            with contextlib.suppress(Problem, psycopg.Error):
                self.session.__dict__["connection"] = self.session.open()
        for row in self.lanes:
            seen = self.depths.setdefault(row["lane"], deque(maxlen=LOOKS))
            seen.append(row["depth"])

    def as_json(self) -> Row:
        return {"lanes": self.lanes, "running": self.running, "workers": self.workers}

    # -- drawing ------------------------------------------------------------------

    def draw(self, width: int, height: int) -> RenderableType:
        """Lanes and workers get what they need, up to a share; running the rest."""
        rest = height - 1 - 3 * 2
        lanes = min(len(self.lanes), max(rest // 2, 1))
        workers = min(len(self.workers) or 1, max(rest // 4, 1))
        running = max(rest - lanes - workers, 1)
        return Group(
            self.head(width),
            Text(""),
            self.draw_lanes(lanes),
            Text(""),
            self.draw_running(running),
            Text(""),
            self.draw_workers(workers),
        )

    def head(self, width: int) -> Text:
        many = any(row["depth_estimated"] for row in self.lanes)
        later = any(row["delayed_estimated"] for row in self.lanes)
        ready = sum(row["depth"] for row in self.lanes)
        delayed = sum(row["delayed"] for row in self.lanes)
        text = Text.assemble(
            ("pulse ", "bold"),
            (self.session.target.database, "bold cyan"),
            f"  {show.about(ready, many)} ready  {len(self.running)} running",
            f"  {show.about(delayed, later)} delayed",
            f"  {sum(row['throughput'] for row in self.lanes):,.0f}/min",
        )
        if self.lost:
            text = Text(f"connection lost: {self.lost}", style="bold red")
        clock = datetime.now().strftime("%H:%M:%S") + self.hint
        text.truncate(max(width - len(clock) - 2, 10), overflow="ellipsis", pad=True)
        return text.append(f"  {clock}", style="dim")

    def draw_lanes(self, rows: int) -> RenderableType:
        columns = ("LANE", "SLOTS", "READY", "OLDEST", "DELAYED", "/MIN", "", "STATUS")
        table = show.Grid(*columns, right=columns[1:6], cut=("LANE", "STATUS"))
        order = sorted(self.lanes, key=lambda r: (-r["used"], -r["depth"], r["lane"]))
        shown = fitting(order, rows)
        for row in shown:
            table.add(
                *(row["lane"], show.slots(row), show.depth(row)),
                show.duration(row["oldest_ready_age"]),
                *(show.delayed(row), f"{row['throughput']:,.0f}"),
                *(self.spark(row["lane"]), show.lane_status(row)),
            )
        return more(table, len(order) - len(shown))

    def spark(self, lane: str) -> Text:
        """How many jobs the lane had ready in the last refreshes."""
        seen = self.depths.get(lane, ())
        highest = max(seen, default=0) or 1
        drawn = "".join(SPARKS[min(7, depth * 7 // highest)] for depth in seen)
        return Text(drawn.rjust(LOOKS), style="cyan")

    def draw_running(self, rows: int) -> RenderableType:
        shown = fitting(self.running, rows)
        if not shown:
            return more(see.running_table([]), 0, "nothing runs")
        return more(see.running_table(shown), len(self.running) - len(shown))

    def draw_workers(self, rows: int) -> RenderableType:
        shown = fitting(self.workers, rows)
        if not shown:
            return more(see.workers_table([]), 0, "none: pulse work app:worker")
        return more(see.workers_table(shown), len(self.workers) - len(shown))


def fitting(rows: list[Row], room: int) -> list[Row]:
    """All of them, or one less than fit: the last line says how many more."""
    return rows if len(rows) <= room else rows[: max(room - 1, 0)]


def more(table: show.Grid, hidden: int, instead: str = "") -> RenderableType:
    line = instead or (f"+{hidden} more" if hidden > 0 else "")
    return Group(table, Text(line, style="dim")) if line else table
