"""The screen of pulse top: the rows that it has read, and their layout.

top.py draws it again and again. It fits 80 by 24, and grows with the terminal.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pulse.cli import jobs, nodes, queries, see, show
from pulse.cli.panels import Panel, panels
from pulse.cli.problems import Problem
from pulse.cli.session import Row, Session
from pulse.sql import operator

SPARKS = "▁▂▃▄▅▆▇█"
LOOKS = 8
MOST = 200
EVERYTHING = {"lane": None, "kind": None, "worker": None, "limit": MOST}
LEFT_ALONE = 10.0
Picture = tuple[list[Row], ...]
# Seconds between two readings of pulse.health.
CHECKED = 5
# How pulse was set up: wrong at every hour of the day.
SET_UP = ("watchdog", "owner", "node")

KEYS = "Tab list  ↑↓ row  / filter  s sort  v state  c cancel  r retry  d drain"
HELP = """\
Tab, 1 2 3   the next list; lanes, jobs, workers
↑ ↓, k j     choose a row
v            jobs: running, retrying, dead
s, S         sort by the next column; the other way round
/            only rows with these letters in them; Esc: all again
c, C         cancel the job; by force: its worker loses the lease
r            retry the dead job; run the retrying one now
d            drain the lane, or resume it
?            this; any key leaves it
q            ends

Whatever changes something asks first, and is written into the audit."""


class Screen:
    """The rows of the last reading, and the depth of each lane before it."""

    def __init__(self, session: Session, hint: str = "  ? help  q ends") -> None:
        self.session = session
        self.hint = hint
        self.lanes: list[Row] = []
        self.running: list[Row] = []
        self.others: list[Row] = []
        self.workers: list[Row] = []
        self.wrong: list[Row] = []
        self.checks: dict[Session, tuple[float, list[Row]]] = {}
        self.lost = ""
        self.silent: dict[Session, float] = {}
        """The databases that did not answer, and until when they are not queried."""
        self.numbered: dict[int, Session] = {}
        self.depths: dict[tuple[Any, str], deque[int]] = {}
        self.panels = panels()
        self.focus = 0
        self.state = "running"
        self.wanted = ""
        self.line = Text("")
        self.helps = False

    def look(self) -> None:
        """Read all of it; when the server is away, keep the last picture and say so."""
        import psycopg

        try:
            if self.session.nodes:
                self.look_at_all()
            else:
                self.take(self.read(self.session))
                self.lost = ""
        except (psycopg.OperationalError, Problem) as error:
            if not self.lanes:
                raise
            self.lost = show.first_line(str(error)) or "connection lost"
            if not self.session.nodes:
                with contextlib.suppress(Problem, psycopg.Error):
                    self.session.__dict__["connection"] = self.session.open()
        for row in self.lanes:
            key = row.get("node"), row["lane"]
            self.depths.setdefault(key, deque(maxlen=LOOKS)).append(row["depth"])

    def read(self, session: Session) -> Picture:
        others: list[Row] = []
        if self.state != "running":
            others = jobs.newest(session, MOST, {"state": self.state})
        return (
            session.rows(queries.LANES),
            session.rows(queries.RUNNING, EVERYTHING),
            session.rows(queries.WORKERS),
            others,
            self.check(session),
        )

    def take(self, picture: Picture) -> None:
        self.lanes, self.running, self.workers, self.others, self.wrong = picture

    def look_at_all(self) -> None:
        """Read from all nodes; a node that did not answer is left out for a while."""
        from pulse.ids import node_label

        now = time.monotonic()
        asked = [n for n in self.session.nodes if self.silent.get(n, 0.0) <= now]
        warnings: list[str] = []
        answers = nodes.ask_all(
            asked or self.session.nodes, lambda n: (n, self.read(n)), warnings.append
        )
        self.numbered = {number: node for number, (node, _) in answers.items()}
        for node in asked:
            self.silent.pop(node, None)
            if node not in self.numbered.values():
                self.silent[node] = time.monotonic() + LEFT_ALONE
        self.take(
            tuple(
                [
                    {"node": number, **row}
                    for number, (_, picture) in sorted(answers.items())
                    for row in picture[part]
                ]
                for part in range(5)
            )
        )
        away = ", ".join(node_label(node.dsn) for node in self.silent)
        self.lost = f"does not answer: {away}" if away else ""

    def having(self, row: Row) -> Session:
        """The database that a row came from."""
        return self.numbered.get(row.get("node", -1), self.session)

    def check(self, session: Session) -> list[Row]:
        """Read the problems, the worst first; not at each drawing."""
        at, found = self.checks.get(session, (-CHECKED * 1.0, []))
        if time.monotonic() - at >= CHECKED:
            rows = session.rows(operator.HEALTH)
            found = [row for row in rows if row["status"] != "ok"]
            found = [row for row in found if row["check_name"] not in SET_UP]
            found.sort(
                key=lambda row: (
                    row["status"] != "fail",
                    row["check_name"] != "dead_jobs",
                )
            )
            self.checks[session] = time.monotonic(), found
        return found

    def as_json(self) -> Row:
        found: Row = {"lanes": self.lanes, "running": self.running}
        found["workers"] = self.workers
        if self.session.nodes:
            found["silent"] = [str(node.target) for node in self.silent]
        return found

    def rows(self, at: int) -> list[Row]:
        """Of a panel, in the order they are shown."""
        listed = self.running if self.state == "running" else self.others
        return self.panels[at].ordered(
            (self.lanes, listed, self.workers)[at], self.wanted
        )

    @property
    def chosen(self) -> Row | None:
        rows = self.rows(self.focus)
        return rows[self.panels[self.focus].place(rows)] if rows else None

    def choose(self, by: int) -> None:
        panel, rows = self.panels[self.focus], self.rows(self.focus)
        if rows:
            place = max(0, min(len(rows) - 1, panel.place(rows) + by))
            panel.chosen = panel.name(rows[place])

    # -- drawing ------------------------------------------------------------------

    def draw(self, width: int, height: int) -> RenderableType:
        """Lanes and workers get what they need, up to a share; jobs the rest. The one
        in focus gets more."""
        if self.helps:
            return Group(self.head(width), Text(""), Text(HELP))
        room = height - 2 - 3 * 2 - bool(self.wrong)
        asked = [len(self.rows(at)) or 1 for at in range(3)]
        lanes = min(asked[0], max(room // 2, 1))
        workers = min(asked[2], max(room // (2 if self.focus == 2 else 4), 1))
        # Room that the jobs do not need goes to the lanes.
        lanes = max(lanes, min(asked[0], room - workers - asked[1] - 1))
        lanes = min(lanes, max(room - workers - 1, 1))
        rooms = (lanes, max(room - lanes - workers, 1), workers)
        tables = (self.lane_table, self.job_table, see.workers_table)
        drawn: list[RenderableType] = [self.head(width)]
        drawn += [self.troubles(width)] if self.wrong else []
        for at, panel in enumerate(self.panels):
            drawn += [self.title(at, panel), self.panel(at, rooms[at], tables[at])]
        line = self.line.copy() if self.line else Text(KEYS, style="dim")
        line.truncate(width, overflow="ellipsis")
        return Group(*drawn, line) if self.hint else Group(*drawn)

    def head(self, width: int) -> Text:
        many = any(row["depth_estimated"] for row in self.lanes)
        later = any(row["delayed_estimated"] for row in self.lanes)
        ready = sum(row["depth"] for row in self.lanes)
        delayed = sum(row["delayed"] for row in self.lanes)
        running = sum(row["used"] for row in self.lanes)
        several = len(self.session.nodes)
        where = f"{several} databases" if several else self.session.target.database
        text = Text.assemble(
            ("pulse ", "bold"),
            (where, "bold cyan"),
            f"  {show.about(ready, many)} ready  {running} running",
            f"  {show.about(delayed, later)} delayed",
            f"  {sum(row['throughput'] for row in self.lanes):,.0f}/min",
        )
        if self.lost and self.numbered:
            text = Text(self.lost, style="bold red").append("  ").append_text(text)
        elif self.lost:
            text = Text(f"connection lost: {self.lost}", style="bold red")
        clock = datetime.now().strftime("%H:%M:%S") + self.hint
        text.truncate(max(width - len(clock) - 2, 10), overflow="ellipsis", pad=True)
        return text.append(f"  {clock}", style="dim")

    def troubles(self, width: int) -> Text:
        line = Text("wrong: ", style="bold")
        for at, row in enumerate(self.wrong):
            word = row["check_name"]
            if word == "dead_jobs":
                word = f"{row['figure'].split(',')[0]} dead"
            # The number of checks that do not fit is shown instead of them.
            left = len(self.wrong) - at
            if at and len(line) + len(f", {word}") + 8 * (left > 1) > width:
                line.append(f", +{left}")
                break
            line.append(", " if at else "")
            line.append(word, style=show.COLOURS[row["status"]])
        if len(line) + 16 <= width:
            line.append("  (pulse health)", style="dim")
        line.truncate(width, overflow="ellipsis")
        return line

    def title(self, at: int, panel: Panel) -> Text:
        if not self.hint:
            return Text("")
        name = panel.title if at != 1 else f"Jobs: {self.state}"
        by = panel.sorts[panel.sort]
        arrow = "↓" if by.falls != panel.turned else "↑"
        counted = f" {len(self.rows(at))}, by {by.name} {arrow}"
        if self.wanted:
            counted += f", only {show.safe(self.wanted)!r}"
        focused = at == self.focus
        return Text.assemble(
            (f"{'▶' if focused else ' '}{name}", "bold" if focused else "dim"),
            (counted, "dim"),
        )

    def panel(
        self, at: int, room: int, table: Callable[[list[Row]], show.Grid]
    ) -> RenderableType:
        rows = self.rows(at)
        place = self.panels[at].place(rows)
        first = max(0, place - max(room - 2, 0)) if len(rows) > room else 0
        shown = rows if len(rows) <= room else rows[first : first + max(room - 1, 0)]
        drawn = table(shown).by_node(shown)
        if at == self.focus and shown and self.hint:
            drawn.chosen = place - first
        empty = ("no lane", f"nothing is {self.state}", "none: pulse work app:worker")
        nothing = "nothing runs" if (at, self.state) == (1, "running") else empty[at]
        hidden = len(rows) - len(shown)
        line = "" if shown else "none with these letters" if self.wanted else nothing
        line = f"+{hidden} more" if hidden else line
        return Group(drawn, Text(line, style="dim")) if line else drawn

    def lane_table(self, rows: list[Row]) -> show.Grid:
        columns = ("LANE", "SLOTS", "READY", "OLDEST", "DELAYED", "/MIN")
        table = show.Grid(
            *(*columns, "TREND", "STATUS"), right=columns[1:], cut=("LANE", "STATUS")
        )
        for row in rows:
            table.add(
                *(row["lane"], show.slots(row), show.depth(row)),
                show.duration(row["oldest_ready_age"]),
                *(show.delayed(row), f"{row['throughput']:,.0f}"),
                *(self.spark(row), show.lane_status(row)),
            )
        return table

    def spark(self, row: Row) -> Text:
        """How many jobs the lane had ready in the last refreshes."""
        seen = self.depths.get((row.get("node"), row["lane"]), ())
        highest = max(seen, default=0) or 1
        drawn = "".join(SPARKS[min(7, depth * 7 // highest)] for depth in seen)
        return Text(drawn.rjust(LOOKS), style="cyan")

    def job_table(self, rows: list[Row]) -> show.Grid:
        if self.state == "running":
            return see.running_table(rows)
        table = show.Grid(
            *("JOB", "KIND", "LANE", "TRY", "AGE", "NOTE"),
            right=("JOB", "TRY", "AGE"),
            cut=("KIND", "LANE", "NOTE"),
        )
        for row in rows:
            table.add(
                *(row["job_id"], row["kind"], row["lane"]),
                f"{row['attempts']}/{row['max_attempts']}",
                show.duration(row["seen_at"] - row["enqueued_at"]),
                show.job_note(row),
            )
        return table
