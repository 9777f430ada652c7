"""jobs: the newest first, and one job in full."""

from typing import Any

import click
from psycopg.types.json import Jsonb
from rich.markup import escape
from rich.table import Table

from pulse.cli import queries, show
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

STATES = (
    *("awaiting_approval", "scheduled", "ready", "running", "retrying"),
    *("completed", "dead", "cancelled"),
)
LARGEST_PAGE = 1000


@click.command()
@click.argument("job_ids", nargs=-1, type=int, metavar="[JOB_ID]...")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only these."
)
@click.option("--lane", help="Only this lane.")
@click.option("--kind", help="Only this kind.")
@click.option("--tag", help="Only with this tag.")
@click.option(
    "-n", "--limit", default=20, show_default=True, help="Show at most this many."
)
@with_session
def jobs(
    session: Session,
    job_ids: tuple[int, ...],
    states: tuple[str, ...],
    limit: int,
    **wanted: Any,
) -> None:
    """Jobs, the newest first; with an id, everything about it."""
    if job_ids:
        return show_jobs(session, job_ids)
    options = {**wanted, "state": list(states)}
    asked = {name: value for name, value in options.items() if value}
    rows = newest(session, limit, asked)
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("No jobs. Enqueue one: pulse enqueue KIND key=value")
    table = show.Grid(
        *("JOB", "STATE", "KIND", "LANE", "PRI", "TRY", "AGE", "NOTE"),
        right=("JOB", "PRI", "TRY", "AGE"),
        cut=("KIND", "LANE", "NOTE"),
    )
    for row in rows:
        table.add(
            *(row["job_id"], show.coloured(row["state"]), row["kind"], row["lane"]),
            *(row["priority"], f"{row['attempts']}/{row['max_attempts']}"),
            show.duration(row["seen_at"] - row["enqueued_at"]),
            show.job_note(row),
        )
    session.out.print(table)
    if len(rows) == limit:
        session.say(f"The newest {limit}; more with -n.", "dim")
    return None


def newest(session: Session, limit: int, wanted: Row) -> list[Row]:
    """The newest jobs that match, in as many queries as that takes."""
    job_ids: list[int] = []
    before: int | None = None
    while len(job_ids) < limit:
        asked = min(limit - len(job_ids), LARGEST_PAGE)
        values = {"filter": Jsonb(wanted), "before": before, "limit": asked}
        found = session.rows(operator.FIND, values)
        if not found:
            break
        job_ids += [row["job_id"] for row in found if row["job_id"] is not None]
        # The last row is the end of the page, or how far the search came.
        before = found[-1]["searched_to"] or found[-1]["job_id"]
    return session.rows(queries.JOBS, {"job_ids": job_ids})


def show_jobs(session: Session, job_ids: tuple[int, ...]) -> None:
    from pulse.cli.problems import Problem

    found: list[Row] = []
    for job_id in job_ids:
        rows = session.rows(queries.JOB, {"job_id": job_id})
        if not rows:
            raise Problem(
                f"job {job_id} does not exist, was pruned, or is not yours",
                remedy="pulse jobs",
            )
        found += rows
    if session.as_json:
        return session.print_json(found)
    for row in found:
        session.out.print(job_card(row))
    return None


def job_card(row: Row) -> Table:
    card = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    card.add_column(style="dim", no_wrap=True)
    card.add_column(overflow="fold")
    for name, value in row.items():
        if value is None or name in ("seen_at", "last_error", "errors"):
            continue
        if name == "state":
            card.add_row(name, show.coloured(value))
        elif name == "progress":
            card.add_row(name, show.bar(value))
        else:
            card.add_row(name, escape(show.safe(cell(value))))
    for error in row["errors"] or ():
        card.add_row(f"run {error['attempt']}", escape(show.safe(error["error"])))
    return card


def cell(value: Any) -> str:
    import json
    from datetime import datetime, timedelta

    if isinstance(value, datetime):
        return show.moment(value)
    if isinstance(value, timedelta):
        return show.duration(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
