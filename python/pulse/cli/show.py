"""Values as people read them, and the tables made of them.

Every verb that prints for people uses it: durations, moments, states and job notes.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from pulse import logs

COLOURS = {
    "blocked": "bright_black",
    "ready": "cyan",
    "running": "bold green",
    "scheduled": "blue",
    "retrying": "yellow",
    "awaiting_approval": "magenta",
    "completed": "green",
    "dead": "bold red",
    "cancelled": "dim",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}

SHORTEST = 6


def duration(value: timedelta | None) -> str:
    """3.2s · 42s · 3m 05s · 2h 10m · 4d 3h"""
    if value is None:
        return "-"
    seconds = max(value.total_seconds(), 0)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for unit, name, below, part in (
        (60, "m", 1, "s"),
        (3600, "h", 60, "m"),
        (86400, "d", 3600, "h"),
    ):
        if whole < unit * (24 if name == "h" else 60) or name == "d":
            rest = whole % unit // below
            return f"{whole // unit}{name}" + (f" {rest:02}{part}" if rest else "")
    raise AssertionError(whole)


def moment(value: datetime | None) -> str:
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S") if value else "-"


def count(value: int | None, cap: int | None = 100_000) -> str:
    if value is None:
        return "-"
    return f"{value:,}" + ("+" if cap is not None and value >= cap else "")


def jobs(value: int, cap: int | None = 100_000) -> str:
    return "1 job" if value == 1 else f"{count(value, cap)} jobs"


def depth(row: dict[str, Any]) -> str:
    return about(row["depth"], row["depth_estimated"])


def delayed(row: dict[str, Any]) -> str:
    return about(row["delayed"], row["delayed_estimated"])


def about(value: int, estimated: bool) -> str:
    """An estimate is shown as one: three figures are more than it knows."""
    if not estimated:
        return f"{value:,}"
    rounded = round(value, 3 - len(str(value)))
    return f"≈{rounded / 1_000_000:g}M" if rounded >= 1_000_000 else f"≈{rounded:,}"


def some(names: Sequence[str], most: int = 10) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def coloured(word: str) -> Text:
    return Text(word.removesuffix("_approval"), style=COLOURS.get(word, ""))


def bar(fraction: float | None, width: int = 10) -> Text:
    """██████▌░░░ 65 %"""
    if fraction is None:
        return Text("")
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    blocks = "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
    text = Text(blocks, style="green")
    text.append("·" * (width - len(blocks)), style="dim")
    return text.append(f" {fraction:4.0%}", style="default")


def first_line(text: str | None, length: int = 200) -> str:
    """The line of an error that says most: of a traceback the last one."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    if not lines:
        return ""
    traceback = lines[0].startswith("Traceback")
    line = (lines[-1] if traceback else lines[0]).strip()
    return line if len(line) <= length else line[: length - 1] + "…"


SHOWN = {n: sign for n, sign in logs.CONTROLS.items() if chr(n) not in "\n\t"}


ESCAPED = {n: f"\\u{n:04x}" for n in SHOWN}


def safe(value: Any) -> str:
    """Make text of producers safe for a terminal."""
    return str(value).translate(SHOWN)


class SafeConsole(Console):
    """Whatever it prints, no text that others have written steers the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(safe(segment.text), segment.style)


def safe_text(cell: Any) -> Text:
    """As wide as what SafeConsole prints of it, so that columns stay in line."""
    if not isinstance(cell, Text):
        return Text(safe(cell))
    cell.plain = safe(cell.plain)
    return cell


class Grid:
    """A table without lines, one line a row. What does not fit is cut with … in the
    widest of the columns that may be cut; numbers and ids never are."""

    gap = 2

    def __init__(
        self, *columns: str, right: Iterable[str] = (), cut: Iterable[str] = ()
    ) -> None:
        self.columns = columns
        self.right = set(right)
        self.cut = set(cut)
        self.rows: list[list[Text]] = []
        # The row that a cursor stands on.
        self.chosen: int | None = None

    def add(self, *cells: Any) -> None:
        self.rows.append([safe_text(c) for c in cells])

    def by_node(self, rows: Sequence[Mapping[str, Any]]) -> "Grid":
        """The same with the node of each row, where they came from several."""
        if rows and "node" in rows[0]:
            self.columns = ("NODE", *self.columns)
            self.right.add("NODE")
            for line, row in zip(self.rows, rows, strict=True):
                line.insert(0, Text(str(row["node"])))
        return self

    def widths(self, room: int) -> list[int]:
        widths = [
            max(cell_len(name), *(row[at].cell_len for row in self.rows), 0)
            for at, name in enumerate(self.columns)
        ]
        room -= self.gap * (len(widths) - 1)
        may = [at for at, name in enumerate(self.columns) if name in self.cut]
        while sum(widths) > room:
            widest = max(may, key=lambda at: widths[at], default=None)
            if widest is None or widths[widest] <= SHORTEST:
                break
            widths[widest] -= 1
        return widths

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        widths = self.widths(options.max_width)
        head = [Text(name, style="bold") for name in self.columns]
        for number, row in enumerate([head, *self.rows], -1):
            line = Text(no_wrap=True, overflow="crop")
            for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
                shown = cell.copy()
                shown.truncate(width, overflow="ellipsis")
                space = " " * (width - shown.cell_len)
                if self.columns[at] in self.right:
                    line.append(space)
                    line.append_text(shown)
                else:
                    line.append_text(shown)
                    line.append(space)
                line.append(" " * self.gap)
            line.rstrip()
            if number == self.chosen:
                line.pad_right(max(options.max_width - line.cell_len, 0))
                line.stylize("reverse")
            yield line


# -- rows -------------------------------------------------------------------------


def slots(row: dict[str, Any]) -> str:
    return f"{row['used']}/{row['max_slots'] or '∞'}"


def lane_status(row: dict[str, Any]) -> Text:
    if not row["enabled"]:
        return Text("disabled", style="red")
    if row["drained"]:
        others = [h for h in row["paused_by"] or () if not h.startswith("drain")]
        words = ["drained", *(f"paused by {h}" for h in others)]
        return Text(", ".join(words), style="yellow")
    if row["paused_by"]:
        return Text("paused by " + ", ".join(row["paused_by"]), style="yellow")
    return Text("open", style="green")


def job_note(row: dict[str, Any]) -> str:
    """Return the fact about a job that matters most in its state."""
    state, seen = row["state"], row["seen_at"]
    error = first_line(row["last_error"])
    if state == "running":
        progress = row["progress"]
        done = f"{progress:.0%} " if progress is not None else ""
        return f"{done}{row['progress_note'] or ''} on {row['worker']}".strip()
    if state in ("scheduled", "retrying"):
        due = f"in {duration(row['run_at'] - seen)}"
        return f"{due}: {error}" if error else due
    if state == "awaiting_approval":
        return f"until {moment(row['approval_until'])}"
    if state == "ready":
        return f"waiting {duration(row['waiting_for'])}"
    return error


def worker_state(row: dict[str, Any]) -> Text:
    """One that left its jobs behind is lost; one that has none has stopped."""
    if row["live"]:
        return Text("live", style="green")
    if row["running"]:
        return Text("lost", style="bold red")
    return Text("stopped", style="dim")


def worker_kinds(row: dict[str, Any]) -> str:
    return ", ".join(row["kinds"]) if row["kinds"] is not None else "every kind"
