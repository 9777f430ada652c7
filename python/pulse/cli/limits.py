"""limits: the settings that keep jobs from running, by lane, kind and group.

The rows come from the views of lanes, groups and limits, with the slots in use.
"""

from typing import Any

import click
from rich.text import Text

from pulse.cli import queries, show
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

# Settings of a lane that limit its running jobs.
LIMITS = ("max_slots", "fair", "group_slots", "in_order", "rate", "group_rate")
SCOPES = ("lane", "each group")
COLOURS = {
    "held": "red",
    "full": "yellow",
    "rate": "yellow",
    "waiting": "cyan",
    "running": "green",
}


@click.command()
@click.argument("lane", required=False)
@click.option("-g", "--group", "keys", multiple=True, help="Only this group.")
@click.option("-n", "--limit", default=100, show_default=True, help="Groups at most.")
@with_session
def limits(
    session: Session, lane: str | None, keys: tuple[str, ...], limit: int
) -> None:
    """Limits of lanes and kinds, or of the groups of a LANE."""
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
    rates = session.rows(queries.RATES)
    of_lane = {(rate["scope"], rate["lane"]): rate for rate in rates}
    of_kinds = [rate for rate in rates if rate["kind"]]
    if session.as_json:
        return session.print_json([*rows, *of_kinds])
    if not rows and not of_kinds:
        return session.say("Nothing has a limit. Set one: pulse set-lane --help")
    table = show.Grid(
        *("LANE", "SLOTS", "FAIR", "GROUP SLOTS", "IN ORDER", "RATE", "GROUP RATE"),
        "READY",
        right=("SLOTS", "GROUP SLOTS", "READY"),
        cut=("LANE",),
    )
    for row in rows:
        table.add(
            *(row["lane"], show.slots(row), yes(row["fair"])),
            *(row["group_slots"] or "-", yes(row["in_order"])),
            *(started(of_lane.get((scope, row["lane"]))) for scope in SCOPES),
            show.depth(row),
        )
    if rows:
        session.out.print(table)
    if of_kinds:
        kinds = show.Grid("KIND", "RATE", cut=("KIND",))
        for rate in of_kinds:
            kinds.add(rate["kind"], started(rate))
        session.out.print(kinds)
    return None


def started(rate: Row | None) -> str:
    """5/100 in 1m, used up for 12s"""
    if rate is None:
        return "-"
    used = "" if rate["used"] is None else f"{rate['used']}/"
    until = f", used up for {show.duration(rate['free_in'])}" if rate["free_in"] else ""
    return f"{used}{rate['allowed']} in {show.duration(rate['per'])}{until}"


def yes(value: Any) -> str:
    return "yes" if value else "-"


def groups_table(rows: list[Row]) -> show.Grid:
    table = show.Grid(
        *("GROUP", "WAITING", "RUNNING", "SLOTS", "STATUS"),
        right=("WAITING", "RUNNING", "SLOTS"),
        cut=("GROUP", "STATUS"),
    )
    for row in rows:
        waiting = "1000+" if row["waiting"] > 1000 else row["waiting"]
        status = Text(row["state"], style=COLOURS.get(row["state"], "dim"))
        if row["held_by"]:
            why = f": {show.safe(row['reason'])}" if row["reason"] else ""
            status.append(f" by {show.safe(row['held_by'])}{why}")
        if row["state"] == "rate":
            status.append(f" used up until {show.moment(row['free_at'])}")
        table.add(
            *(row["group_key"] or "(none)", waiting, row["running"]),
            *(row["max_slots"] or "-", status),
        )
    return table
