"""The lists of pulse top: their rows, the sort order and the chosen row.

screen.py draws a Panel, the keys in top.py change it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pulse.cli.session import Row

NEVER = timedelta(0)


@dataclass
class Sort:
    """A column to sort by: its name, what to compare, whether the largest is first."""

    name: str
    key: Callable[[Row], Any]
    falls: bool = True


@dataclass
class Panel:
    """A list of rows: what names one, how it is sorted, which is chosen."""

    title: str
    named: str
    sorts: list[Sort]
    sort: int = 0
    turned: bool = False
    chosen: tuple[Any, ...] | None = None

    def ordered(self, rows: list[Row], wanted: str) -> list[Row]:
        by = self.sorts[self.sort]
        found = [row for row in rows if matches(row, wanted)]
        found.sort(key=lambda row: str(self.name(row)))
        found.sort(key=by.key, reverse=by.falls != self.turned)
        return found

    def name(self, row: Row) -> tuple[Any, ...]:
        """Of several databases each may have a lane or a worker of this name."""
        return row.get("node"), row[self.named]

    def place(self, rows: list[Row]) -> int:
        """Where the chosen row is; the first, once it is gone."""
        names = [self.name(row) for row in rows]
        return names.index(self.chosen) if self.chosen in names else 0


def matches(row: Row, wanted: str) -> bool:
    columns = ("lane", "kind", "worker", "job_id", "last_error")
    words = [str(row.get(name) or "") for name in columns]
    words += [*(row.get("lanes") or ()), *(row.get("kinds") or ())]
    return wanted.lower() in " ".join(words).lower()


def age(row: Row) -> timedelta:
    """How long a job has run, or was there."""
    if "running_for" in row:
        return row["running_for"] or NEVER
    lived: timedelta = row["seen_at"] - row["enqueued_at"]
    return lived


def panels() -> list[Panel]:
    return [
        Panel(
            "Lanes",
            "lane",
            [
                Sort("running", lambda r: (r["used"], r["depth"])),
                Sort("ready", lambda r: r["depth"]),
                Sort("oldest", lambda r: r["oldest_ready_age"] or NEVER),
                Sort("per minute", lambda r: r["throughput"]),
                Sort("name", lambda r: r["lane"], falls=False),
            ],
        ),
        Panel(
            "Jobs",
            "job_id",
            [
                Sort("id", lambda r: int(r["job_id"]), falls=False),
                Sort("age", age),
                Sort("kind", lambda r: r["kind"], falls=False),
                Sort("lane", lambda r: r["lane"], falls=False),
                Sort("worker", lambda r: r["worker"] or "", falls=False),
            ],
            sort=1,
        ),
        Panel(
            "Workers",
            "worker",
            [
                Sort("seen", lambda r: r["seen_for"], falls=False),
                Sort("running", lambda r: r["running"]),
                Sort("name", lambda r: r["worker"], falls=False),
            ],
        ),
    ]
