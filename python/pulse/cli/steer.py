"""Verbs for jobs, by id or by filter: cancel, retry, run-now, reschedule and others.

Ids call the verb of one job each. A filter calls the bulk verb: first as a dry run
that counts the jobs, then in chunks.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from pulse.cli import queries, show
from pulse.cli.jobs import filter_of, filters
from pulse.cli.problems import USAGE, Problem
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator

if TYPE_CHECKING:
    from typing_extensions import LiteralString

CHUNK = 5000


def choosing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Jobs by their ids, or by a filter: the arguments that all bulk verbs share."""
    options = (
        click.option("--all", "everything", is_flag=True, help="Every job."),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print how many would match; change nothing.",
        ),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--reason", help="Written into the audit."),
    )
    for option in reversed(options):
        function = option(function)
    return filters(function)


@click.command()
@choosing
@click.option(
    "--force", is_flag=True, help="End a running job now: its worker loses the lease."
)
@with_session
def cancel(session: Session, force: bool, **chosen: Any) -> None:
    """Cancel waiting jobs; ask running ones to stop."""
    values = {"force": force}
    act(session, "cancel", operator.CANCEL, operator.CANCEL_WHERE, chosen, values)


@click.command()
@click.option("-p", "--priority", type=int, required=True, help="Higher runs first.")
@choosing
@with_session
def reprioritize(session: Session, priority: int, **chosen: Any) -> None:
    """Give jobs another priority: pulse reprioritize -p 10 JOB_ID."""
    values = {"priority": priority}
    act(
        session,
        "reprioritize",
        operator.REPRIORITIZE,
        operator.REPRIORITIZE_WHERE,
        chosen,
        values,
    )


@click.command()
@choosing
@with_session
def retry(session: Session, **chosen: Any) -> None:
    """Make dead or cancelled jobs ready again."""
    act(session, "retry", operator.RETRY, operator.RETRY_WHERE, chosen, {})


@click.command()
@click.argument("to", metavar="LANE")
@choosing
@with_session
def move(session: Session, to: str, **chosen: Any) -> None:
    """Put waiting jobs into another lane: pulse move LANE JOB_ID."""
    values = {"lane": to}
    act(session, "move", operator.MOVE, operator.MOVE_WHERE, chosen, values)


@click.command("run-now")
@choosing
@with_session
def run_now(session: Session, **chosen: Any) -> None:
    """Put scheduled or retrying jobs in line now."""
    act(session, "run-now", operator.RUN_NOW, operator.RUN_NOW_WHERE, chosen, {})


@click.command()
@click.option("--at", metavar="TIME", help="e.g. '2030-01-01 06:00+00'")
@click.option("--in", "delay", metavar="INTERVAL", help="e.g. '2 hours'")
@choosing
@with_session
def reschedule(
    session: Session, at: str | None, delay: str | None, **chosen: Any
) -> None:
    """Let waiting jobs run at another time.

    For example: pulse reschedule --in '1 hour' JOB_ID.
    """
    if (at is None) == (delay is None):
        raise click.UsageError("Give --at or --in.")
    # One moment for all of them, by the server's clock.
    clock = session.having(chosen["job_ids"][0]) if chosen["job_ids"] else session
    moment = clock.one(queries.MOMENT, {"at": at, "delay": delay})["at"]
    values = {"run_at": moment}
    act(
        session,
        "reschedule",
        operator.RESCHEDULE,
        operator.RESCHEDULE_WHERE,
        chosen,
        values,
    )


@click.command()
@choosing
@with_session
def rerun(session: Session, **chosen: Any) -> None:
    """Enqueue finished jobs again, as new jobs."""
    act(session, "rerun", operator.RERUN, operator.RERUN_WHERE, chosen, {})


@click.command()
@choosing
@with_session
def discard(session: Session, **chosen: Any) -> None:
    """Remove finished jobs before their retention is over."""
    act(session, "discard", operator.DELETE, operator.DISCARD_WHERE, chosen, {})


@click.command()
@choosing
@with_session
def approve(session: Session, **chosen: Any) -> None:
    """Approve jobs that await approval."""
    act(session, "approve", operator.APPROVE, operator.APPROVE_WHERE, chosen, {})


@click.command()
@choosing
@with_session
def reject(session: Session, **chosen: Any) -> None:
    """Reject jobs that await approval; they are cancelled."""
    act(session, "reject", operator.REJECT, operator.REJECT_WHERE, chosen, {})


def act(
    session: Session,
    verb: str,
    one: "LiteralString",
    many: "LiteralString",
    chosen: Row,
    values: Row,
) -> None:
    """Do it to each id, or to all that a filter finds."""
    from psycopg.types.json import Jsonb

    values = {**values, "reason": chosen["reason"]}
    wanted = filter_of(chosen) | ({"all": True} if chosen["everything"] else {})
    if bool(chosen["job_ids"]) == bool(wanted):
        raise click.UsageError("Name jobs by their ids, or by a filter (or --all).")
    if chosen["job_ids"] and not chosen["dry_run"]:
        return act_on_ids(session, verb, one, chosen["job_ids"], values)
    if chosen["job_ids"]:
        wanted = {"job_ids": [str(each) for each in chosen["job_ids"]]}
    values["filter"] = Jsonb(wanted)
    asks = not chosen["yes"] and not chosen["dry_run"]
    if asks and not sys.stdin.isatty():
        raise Problem(
            f"{verb} by a filter acts on every job that matches, and there is no "
            "terminal to confirm it on",
            "Standard input is not a terminal.",
            f"pulse {session.verb} … --yes   (--dry-run counts them first)",
            USAGE,
        )
    found = session.one(many, {**values, "max_jobs": 100_000, "dry_run": True})
    total = found["done"] + found["remaining"]
    if chosen["dry_run"]:
        return report(session, verb, 0, total, dry_run=True)
    if total and asks:
        click.confirm(f"{verb} {show.jobs(total)}?", abort=True, err=True)
    act_on_all(session, verb, many, values, total)
    return None


def act_on_ids(
    session: Session, verb: str, one: "LiteralString", job_ids: Any, values: Row
) -> None:
    """One by one: an id that fails does not stop the others."""
    import psycopg

    failed: psycopg.Error | None = None
    done: list[Row] = []
    for job_id in job_ids:
        try:
            node = session.having(job_id)
            state = node.one(one, {**values, "job_id": job_id})["state"]
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("PU"):
                raise
            failed = error
            done.append({"job_id": job_id, "error": error.diag.message_primary})
            if not session.as_json and len(job_ids) > 1:
                line = f"{job_id}  {error.diag.message_primary}"
                session.err.print(Text(show.safe(line), style="red"), soft_wrap=True)
            continue
        done.append(
            {"job_id": job_id, "rerun_as" if verb == "rerun" else "state": state}
        )
        if not session.as_json:
            session.say(f"{job_id}  {became(verb, state)}")
    if session.as_json:
        session.print_json(done)
    if failed is not None:
        if len(job_ids) == 1 and not session.as_json:
            raise failed
        raise click.exceptions.Exit(1)


def became(verb: str, state: str) -> str:
    if verb == "rerun":
        return f"runs again as {state}"
    return "asked to stop" if verb == "cancel" and state == "running" else state


def act_on_all(
    session: Session, verb: str, many: "LiteralString", values: Row, total: int
) -> None:
    done = 0
    with progress_bar(session) as bar:
        task = bar.add_task(verb, total=total)
        while True:
            answer = session.one(many, {**values, "max_jobs": CHUNK, "dry_run": False})
            done += answer["done"]
            bar.update(task, completed=done, total=done + answer["remaining"])
            if not answer["done"] or not answer["remaining"]:
                break
    report(session, verb, done, answer["remaining"])


def report(
    session: Session, verb: str, done: int, remaining: int, dry_run: bool = False
) -> None:
    if session.as_json:
        answer = {"done": done, "remaining": remaining, "dry_run": dry_run}
        return session.print_json(answer)
    if dry_run:
        return session.say(f"{verb}: would act on {show.jobs(remaining)}")
    left = f", {show.count(remaining)} left" if remaining else ""
    return session.say(f"{verb}: {show.jobs(done, cap=None)}{left}")


def progress_bar(session: Session) -> Progress:
    """On stderr, removed when done; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=session.err,
        transient=True,
        disable=not session.err.is_terminal,
    )
