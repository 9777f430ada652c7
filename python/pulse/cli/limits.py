"""limits: what keeps jobs from running all at once, by lane and by group."""

from typing import Any

import click
from rich.text import Text

from pulse.cli import queries, show
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

# Settings of a lane that limit what runs.
LIMITS = ("max_slots", "fair", "group_slots", "in_order")
COLOURS = {"held": "red", "full": "yellow", "waiting": "cyan", "running": "green"}


@click.command()
@click.argument("lane", required=False)
@click.option("-g", "--group", "keys", multiple=True, help="Only this group.")
@click.option("-n", "--limit", default=100, show_default=True, help="Groups at most.")
@with_session
def limits(
    session: Session, lane: str | None, keys: tuple[str, ...], limit: int
) -> None:
    """Lanes that limit what runs; of one LANE, its groups, held ones first."""
    if lane is None:
        if keys:
            raise click.UsageError("Name the lane of the group.")
        return of_lanes(session)
    wanted = {"lane": lane, "keys": list(keys) or None, "max_groups": limit}
    rows = session.rows(operator.GROUPS, wanted)
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say(f"Lane {show.safe(lane)} has no jobs in groups.")
    session.out.print(groups_table(rows))
    return None


def of_lanes(session: Session) -> None:
    rows = [
        {name: row["settings"].get(name) for name in LIMITS}
        | {name: row[name] for name in ("lane", "used", "depth", "depth_estimated")}
        for row in session.rows(queries.LANES)
        if any(row["settings"].get(name) for name in LIMITS)
    ]
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("No lane has a limit. Set one: pulse set-lane --help")
    table = show.Grid(
        *("LANE", "SLOTS", "FAIR", "GROUP SLOTS", "IN ORDER", "READY"),
        right=("SLOTS", "GROUP SLOTS", "READY"),
        cut=("LANE",),
    )
    for row in rows:
        table.add(
            *(row["lane"], show.slots(row), yes(row["fair"])),
            *(row["group_slots"] or "-", yes(row["in_order"]), show.depth(row)),
        )
    session.out.print(table)
    return None


def yes(value: Any) -> str:
    return "yes" if value else "-"


def groups_table(rows: list[Row]) -> show.Grid:
    table = show.Grid(
        *("GROUP", "WAITING", "RUNNING", "SLOTS", "WEIGHT", "STATUS"),
        right=("WAITING", "RUNNING", "SLOTS", "WEIGHT"),
        cut=("GROUP", "STATUS"),
    )
    for row in rows:
        waiting = "1000+" if row["waiting"] > 1000 else row["waiting"]
        status = Text(row["state"], style=COLOURS.get(row["state"], "dim"))
        if row["held_by"]:
            why = f": {show.safe(row['reason'])}" if row["reason"] else ""
            status.append(f" by {show.safe(row['held_by'])}{why}")
        table.add(
            *(row["group_key"] or "(none)", waiting, row["running"]),
            *(row["max_slots"] or "-", row["weight"], status),
        )
    return table
