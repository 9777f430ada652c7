"""jobs: a list with the newest first, and one job in full.

A list is a page of ids that the filter finds, read from the view pulse.jobs.
"""

import json
from collections.abc import Callable
from typing import Any

import click
from psycopg.types.json import Jsonb
from rich.markup import escape
from rich.table import Table

from pulse.cli import queries, show
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

LARGEST_PAGE = 1000


FILTERS = (
    *("state", "lane", "kind", "tag", "group_key", "flow", "worker"),
    *("older_than", "newer_than", "error_like"),
)


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Which jobs: the same for those that are shown and those that are acted on."""
    options = (
        click.argument("job_ids", nargs=-1, type=int, metavar="[JOB_ID]..."),
        click.option("--state", multiple=True, type=click.Choice(operator.STATES)),
        click.option("--lane", multiple=True),
        click.option("--kind", multiple=True),
        click.option("--tag", multiple=True),
        click.option("--group-key", multiple=True),
        click.option("--flow", multiple=True),
        click.option("--worker", multiple=True),
        click.option("--older-than", metavar="INTERVAL", help="e.g. '1 hour'"),
        click.option("--newer-than", metavar="INTERVAL"),
        click.option("--error-like", metavar="PATTERN", help="e.g. '%timeout%'"),
        click.option(
            "--where", metavar="JSON", help="A filter as pulse.cancel_where takes it."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def filter_of(chosen: Row) -> Row:
    wanted: Row = {}
    if chosen["where"]:
        try:
            wanted |= json.loads(chosen["where"])
        except (ValueError, TypeError) as error:
            raise click.UsageError(f"--where is not a JSON object: {error}") from error
    for name in FILTERS:
        value = chosen[name]
        if value:
            wanted[name] = list(value) if isinstance(value, tuple) else value
    return wanted


@click.command()
@filters
@click.option(
    "-n", "--limit", default=20, show_default=True, help="Show at most this many."
)
@click.option(
    "--before", type=int, metavar="JOB_ID", help="The next page: older than this job."
)
@with_session
def jobs(
    session: Session,
    job_ids: tuple[int, ...],
    limit: int,
    before: int | None,
    **chosen: Any,
) -> None:
    """Jobs, the newest first; with an id, everything about it.

    The filters are those of cancel, retry and the others: what they would act on.
    """
    if job_ids:
        return show_jobs(session, job_ids)
    wanted = filter_of(chosen)
    rows = session.gather(lambda node: newest(node, limit, wanted, before))
    if session.nodes:
        if before is not None:
            raise click.UsageError("--before is for one database")
        rows = sorted(rows, key=lambda row: row["enqueued_at"], reverse=True)[:limit]
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
    session.out.print(table.by_node(rows))
    if len(rows) == limit and not session.nodes:
        last = rows[-1]["job_id"]
        session.say(f"The newest {limit}; older ones with --before {last}.", "dim")
    return None


def newest(
    session: Session, limit: int, wanted: Row, before: int | None = None
) -> list[Row]:
    """The newest jobs that match, in as many queries as that takes."""
    job_ids: list[int] = []
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
        rows = session.having(job_id).rows(queries.JOB, {"job_id": job_id})
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
    from datetime import datetime, timedelta

    if isinstance(value, datetime):
        return show.moment(value)
    if isinstance(value, timedelta):
        return show.duration(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
