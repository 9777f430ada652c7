"""enqueue: one job from the command line, or many from a file.

It calls pulse.enqueue_one for one job and pulse.enqueue_many for chunks of a file.
"""

import json
import sys
from typing import IO, Any, get_args

import click
from rich.progress import Progress

from pulse import verbs
from pulse.cli import queries
from pulse.cli.session import Session, with_session
from pulse.options import OnConflict
from pulse.sql.idle import LIMIT_IDLE

CHUNK = 1000


def payload_of(words: tuple[str, ...]) -> Any:
    """A JSON text, or key=value (a string) and key:=value (JSON) words."""
    if len(words) == 1 and words[0] == "-":
        words = (read(sys.stdin),)
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
        return parsed(words[0], "the payload")
    payload: dict[str, Any] = {}
    for word in words:
        name, found, value = word.partition("=")
        if not found or not name:
            raise click.UsageError(
                f"{word!r} is neither JSON nor key=value (key:=value for numbers "
                "and other JSON)."
            )
        if name.endswith(":"):
            payload[name[:-1]] = parsed(value, name[:-1])
        else:
            payload[name] = value
    return payload


def read(stream: IO[str]) -> str:
    try:
        return stream.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the input is not UTF-8 text: {error}") from error


def parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from error


@click.command()
@click.argument("kind")
@click.argument("payload", nargs=-1, metavar="[PAYLOAD | KEY=VALUE...]")
@click.option("--lane", help="Default: the lane of the kind.")
@click.option("-p", "--priority", type=int, help="Higher runs first.")
@click.option("--delay", metavar="INTERVAL", help="e.g. '5 minutes'")
@click.option("--run-at", metavar="TIME", help="e.g. '2030-01-01 12:00+00'")
@click.option("--max-attempts", type=int, help="How often it may be tried.")
@click.option("--max-runtime", metavar="INTERVAL", help="For each attempt.")
@click.option(
    "--unique-key", help="At most one waiting or running job of a lane has it."
)
@click.option(
    "--unique-for",
    metavar="INTERVAL",
    help="Keep the key taken this long after the job has finished.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(get_args(OnConflict)),
    default="skip",
    show_default=True,
    help="When the unique key is taken.",
)
@click.option(
    "--after", multiple=True, type=int, help="A job that has to end first; repeatable."
)
@click.option(
    "--after-failed",
    type=click.Choice(verbs.choices("enqueue", "after_failed")),
    help="When one of these is dead or cancelled; default: cancel.",
)
@click.option("--flow", help="A label of jobs that belong together.")
@click.option("--name", help="What it is called in its flow.")
@click.option(
    "--expires-in", metavar="INTERVAL", help="Cancel it unless it has begun by then."
)
@click.option("--headers", metavar="JSON", help="Handed to the worker: a JSON object.")
@click.option("--group-key", help="Its group: limits of the lane count by it.")
@click.option("--tag", "tags", multiple=True, help="Labels for filters.")
@click.option(
    "--requires-approval", is_flag=True, default=None, help="Run it only once approved."
)
@click.option(
    "--from",
    "lines",
    type=click.File(encoding="utf-8"),
    help="A file with a JSON payload on each line: one job each; - is stdin.",
)
@with_session
def enqueue(
    session: Session,
    payload: tuple[str, ...],
    lines: IO[str] | None,
    tags: tuple[str, ...],
    after: tuple[int, ...],
    **options: Any,
) -> None:
    """Enqueue a job: pulse enqueue send-email to=a@b.c retries:=3."""
    from psycopg.types.json import Jsonb

    options["tags"] = list(tags) or None
    options["after"] = list(after) or None
    if options["headers"] is not None:
        options["headers"] = Jsonb(parsed(options["headers"], "--headers"))
    if lines is not None:
        if payload or options["unique_key"]:
            raise click.UsageError("--from takes its payloads from the file only.")
        return enqueue_lines(session, lines, options)
    row = session.one(
        queries.ENQUEUE, {**options, "payload": Jsonb(payload_of(payload))}
    )
    if session.as_json:
        return session.print_json(row)
    if row["created"]:
        return session.say(f"{row['job_id']}  enqueued")
    return session.say(f"{row['job_id']}  has this unique key already")


def enqueue_lines(session: Session, lines: IO[str], options: dict[str, Any]) -> None:
    """In one transaction: all of the file or nothing."""
    from psycopg.types.json import Jsonb

    payloads = [
        Jsonb(parsed(line, f"line {number}"))
        for number, line in enumerate(read(lines).splitlines(), 1)
        if line.strip()
    ]
    ids: list[str] = []
    bar = Progress(
        console=session.err, transient=True, disable=not session.err.is_terminal
    )
    with bar, session.connection.transaction():
        session.connection.execute(LIMIT_IDLE)
        task = bar.add_task("enqueue", total=len(payloads))
        for start in range(0, len(payloads), CHUNK):
            chunk = payloads[start : start + CHUNK]
            rows = session.rows(queries.ENQUEUE_MANY, {**options, "payloads": chunk})
            ids += [row["job_id"] for row in rows]
            bar.advance(task, len(chunk))
    if session.as_json:
        return session.print_json([{"job_id": each} for each in ids])
    span = f"  ({ids[0]} … {ids[-1]})" if ids else ""
    return session.say(f"{len(ids):,} jobs enqueued{span}")
