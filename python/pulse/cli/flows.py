"""flow, signal: jobs that belong together, and the signals that they wait for.

flow draws the names and dependencies that pulse.flow returns; signal calls
pulse.signal.
"""

import json
from typing import Any

import click
from rich.text import Text

from pulse.cli import produce, queries, show
from pulse.cli.problems import Problem
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

# The colour of a name in the graph: that of the first state that one of its jobs has.
FILLS = {
    "dead": "#f4b6b6",
    "cancelled": "#dddddd",
    "running": "#b9e3b9",
    "retrying": "#f3e2a9",
    "awaiting_approval": "#e5c6ea",
    "ready": "#bfe3ea",
    "scheduled": "#c5d3f0",
    "blocked": "#ffffff",
    "completed": "#d9f0d9",
}


@click.command()
@click.argument("name")
@click.option("--dot", is_flag=True, help="The graph for Graphviz: … | dot -Tsvg")
@with_session
def flow(session: Session, name: str, dot: bool) -> None:
    """A flow: its names, their jobs by state, what each waits for."""
    rows = session.rows(queries.FLOW, {"flow": name})
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        raise Problem(
            f"there is no flow {name!r} that you may see",
            remedy="pulse jobs JOB_ID shows the flow of a job",
        )
    if dot:
        return session.say("\n".join(graph(name, rows)))
    table = show.Grid(
        *("NAME", "KIND", "JOBS", "STATES", "AFTER", "SINCE", "LAST END"),
        right=("JOBS",),
        cut=("NAME", "KIND", "AFTER"),
    )
    for row in rows:
        table.add(
            *(row["name"], row["kind"], f"{row['jobs']:,}", states(row)),
            *(", ".join(row["after"]), show.moment(row["first_at"])),
            show.moment(row["last_at"]),
        )
    session.out.print(table)
    return None


def states(row: Row) -> Text:
    """1,000 ready, 3 dead"""
    words = Text()
    for state in operator.STATES:
        if row[state]:
            comma = ", " if words else ""
            words.append(f"{comma}{row[state]:,} ").append(show.coloured(state))
    return words


def graph(name: str, rows: list[Row]) -> list[str]:
    """The graph of names in the language of Graphviz."""
    lines = [f"digraph {quoted(name)} {{", "    rankdir=LR;", "    node [shape=box];"]
    for row in rows:
        first = next(state for state in FILLS if row[state])
        counts = [f"{row[state]} {state}" for state in operator.STATES if row[state]]
        label = quoted("\n".join([row["name"], *counts]))
        lines.append(
            f"    {quoted(row['name'])} "
            f'[label={label}, style=filled, fillcolor="{FILLS[first]}"];'
        )
        lines += [
            f"    {quoted(after)} -> {quoted(row['name'])};" for after in row["after"]
        ]
    return [*lines, "}"]


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@click.command()
@click.argument("name")
@click.argument("payload", nargs=-1, metavar="[JSON | KEY=VALUE...]")
@click.option(
    "--keep",
    metavar="INTERVAL",
    default="7 days",
    show_default=True,
    help="For jobs that begin to wait later.",
)
@with_session
def signal(session: Session, name: str, payload: tuple[str, ...], keep: str) -> None:
    """Send a signal: jobs that wait for it go on."""
    from psycopg.types.json import Jsonb

    row = session.one(
        queries.SIGNAL,
        {"signal": name, "payload": Jsonb(content(payload)), "keep": keep},
    )
    if session.as_json:
        return session.print_json(row)
    jobs = show.jobs(row["woke"], cap=None)
    return session.say(f"sent; {jobs} woke")


def content(words: tuple[str, ...]) -> Any:
    """Any JSON, or what enqueue takes as a payload; nothing is null."""
    if not words:
        return None
    if len(words) == 1:
        try:
            return json.loads(words[0])
        except ValueError:
            pass
    return produce.payload_of(words)
