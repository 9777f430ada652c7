"""schedule: list, add, pause, resume, run now, remove, past runs.

Each subcommand reads the schedules or calls the verb of pulse with its name.
"""

from typing import Any

import click
from rich.text import Text

from pulse import verbs
from pulse.cli import queries, show
from pulse.cli.problems import Problem
from pulse.cli.produce import payload_of
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator


@click.group(invoke_without_command=True)
@click.pass_context
def schedule(context: click.Context) -> None:
    """Schedules: list them, add, pause, resume, remove."""
    if context.invoked_subcommand is None:
        context.invoke(list_them)


@schedule.command("list")
@with_session
def list_them(session: Session) -> None:
    """Every schedule and when it fires next."""
    rows = session.rows(queries.SCHEDULES)
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say(
            "No schedules. Make one: pulse schedule add NAME KIND --every '1 hour'"
        )
    table = show.Grid(
        *("NAME", "KIND", "INTERVAL", "NEXT", "STATUS"),
        cut=("NAME", "KIND", "INTERVAL", "STATUS"),
    )
    for row in rows:
        table.add(row["name"], row["kind"], interval(row), due(row), status(row))
    session.out.print(table)
    return None


def interval(row: Row) -> str:
    if row["cron"]:
        zone = "" if row["timezone"] == "UTC" else f" {row['timezone']}"
        return f"{row['cron']}{zone}"
    return (
        f"every {show.duration(row['every'])}"
        if row["every"]
        else f"at {show.moment(row['at'])}"
    )


def due(row: Row) -> str:
    if row["next_at"] is None:
        return "never"
    ahead = row["next_at"] - row["seen_at"]
    return f"in {show.duration(ahead)}" if ahead.total_seconds() > 0 else "due"


def status(row: Row) -> Text:
    if row["last_error"]:
        return Text(show.first_line(row["last_error"]), style="red")
    if row["paused_at"]:
        reason = f": {row['pause_reason']}" if row["pause_reason"] else ""
        return Text(f"paused by {row['paused_by']}{reason}", style="yellow")
    return Text("on", style="green")


@schedule.command()
@click.argument("name")
@click.argument("kind")
@click.argument("payload", nargs=-1, metavar="[PAYLOAD | KEY=VALUE...]")
@click.option("--cron", metavar="EXPRESSION", help="e.g. '30 3 * * mon-fri'")
@click.option("--every", metavar="INTERVAL", help="e.g. '15 minutes'")
@click.option("--at", metavar="TIME", help="Once.")
@click.option("--timezone", default="UTC", show_default=True)
@click.option("--lane")
@click.option("-p", "--priority", type=int)
@click.option("--unique-key", help="Keeps runs from overlapping.")
@click.option("--tag", "tags", multiple=True)
@click.option("--max-attempts", type=int)
@click.option("--max-runtime", metavar="INTERVAL")
@click.option(
    "--expires-in", metavar="INTERVAL", help="Cancel a job that has not begun by then."
)
@click.option(
    "--catch-up",
    type=click.Choice(verbs.choices("schedule", "catch_up")),
    default="skip",
    show_default=True,
    help="Occurrences that were missed: fire none, the last or all.",
)
@with_session
def add(
    session: Session, payload: tuple[str, ...], tags: tuple[str, ...], **options: Any
) -> None:
    """Add a schedule, or replace the one with this name."""
    from psycopg.types.json import Jsonb

    if sum(bool(options[name]) for name in ("cron", "every", "at")) != 1:
        raise click.UsageError("Give exactly one of --cron, --every and --at.")
    values = {**options, "tags": list(tags) or None}
    row = session.one(
        queries.SCHEDULE, {**values, "payload": Jsonb(payload_of(payload))}
    )
    if session.as_json:
        return session.print_json({"name": options["name"], **row})
    return session.say(f"{options['name']}  next at {show.moment(row['next_at'])}")


@schedule.command()
@click.argument("name")
@click.option("--reason")
@with_session
def pause(session: Session, name: str, reason: str | None) -> None:
    """Keep a schedule from firing."""
    row = session.one(operator.PAUSE_SCHEDULE, {"name": name, "reason": reason})
    if session.as_json:
        return session.print_json({"name": name, **row})
    return session.say(
        f"{name}  {'paused' if row['changed'] else 'was paused already'}"
    )


@schedule.command()
@click.argument("name")
@with_session
def resume(session: Session, name: str) -> None:
    """Let a paused schedule fire again."""
    row = session.one(operator.RESUME_SCHEDULE, {"name": name})
    if session.as_json:
        return session.print_json({"name": name, **row})
    return session.say(f"{name}  next at {show.moment(row['next_at'])}")


@schedule.command()
@click.argument("name")
@click.option("--reason", help="Written into the audit.")
@with_session
def run(session: Session, name: str, reason: str | None) -> None:
    """Enqueue the job of a schedule now; its next occurrence stays."""
    row = session.one(operator.RUN_SCHEDULE_NOW, {"name": name, "reason": reason})
    if session.as_json:
        return session.print_json({"name": name, **row})
    return session.say(f"{name}  job {row['job_id']}")


# The names that other tools lead people to.
schedule.add_command(add, "create")
schedule.add_command(run, "run-now")


@schedule.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_session
def remove(session: Session, names: tuple[str, ...]) -> None:
    """Remove schedules; jobs they have enqueued stay."""
    for name in names:
        session.one(operator.UNSCHEDULE, {"name": name})
        if not session.as_json:
            session.say(f"{name}  removed")
    if session.as_json:
        session.print_json([{"name": name, "removed": True} for name in names])


@schedule.command()
@click.argument("name", required=False)
@click.option("-n", "--limit", default=20, show_default=True)
@with_session
def runs(session: Session, name: str | None, limit: int) -> None:
    """Past occurrences, newest first: the job, or why skipped."""
    asked = {"name": name, "limit": limit}
    rows = session.rows(operator.SCHEDULE_RUNS, asked)
    if (
        not rows
        and name
        and not session.one(operator.SCHEDULE_IS_KNOWN, asked)["known"]
    ):
        raise Problem(f"there is no schedule {name}", remedy="pulse schedule list")
    if session.as_json:
        return session.print_json(rows)
    table = show.Grid("NAME", "DUE", "JOB", "SKIPPED", cut=("NAME", "SKIPPED"))
    for row in rows:
        cells = (row["name"], show.moment(row["occurrence"]))
        table.add(*cells, row["job_id"] or "-", row["skipped"] or "")
    session.out.print(table)
    return None
