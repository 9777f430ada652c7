"""work: import a worker and run it."""

import importlib
import os
import sys
from typing import Any

import click
from rich.text import Text

from pulse.cli.problems import USAGE, Problem, Target
from pulse.cli.session import Session, with_session


@click.command()
@click.argument("where", metavar="MODULE:WORKER")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="debug logs completed jobs too.",
)
@with_session
def work(session: Session, where: str, log_level: str) -> None:
    """Run a worker: pulse work app:worker. SIGTERM and Ctrl-C stop it."""
    session.log(log_level)
    lead_there(session.dsn)
    worker = find(where)
    if worker.dsn and session.given:
        check_same(session, worker.dsn, where)
    worker.run()


def check_same(session: Session, dsn: str, where: str) -> None:
    """A worker that names a database itself goes there, whatever else was named."""
    own = Target.of(dsn)
    if own == session.target:
        return
    if session.by_option:
        raise Problem(
            f"{where} has a DSN of its own, and --dsn names another database",
            f"Its own leads to {own}, --dsn to {session.target}.",
            "leave out --dsn, or the DSN in pulse.Worker(…)",
            USAGE,
        )
    session.err.print(
        Text(f"{where} has a DSN of its own, which is used: {own}"), soft_wrap=True
    )


def lead_there(dsn: str) -> None:
    """For a worker that names no database itself: libpq reads the environment."""
    from psycopg import pq

    for option in pq.Conninfo.parse(dsn.encode()):
        if option.val is not None and option.envvar is not None:
            os.environ[option.envvar.decode()] = option.val.decode()


def find(where: str) -> Any:
    """The worker a name leads to; a function without arguments may make it."""
    from pulse import Worker

    module, _, name = where.partition(":")
    found = load(module, where)
    for part in (name or "worker").split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            workers = [k for k, v in vars(found).items() if isinstance(v, Worker)]
            raise Problem(
                f"{module} has no {part}",
                remedy=f"pulse work {module}:{workers[0]}"
                if workers
                else f"define it in {module}: {part} = pulse.Worker(…)",
                code=USAGE,
            ) from error
    if callable(found) and not isinstance(found, Worker):
        found = found()
    if not isinstance(found, Worker):
        raise Problem(
            f"{where} is a {type(found).__name__}, not a pulse.Worker",
            remedy="pulse work MODULE:WORKER, e.g. pulse work app:worker",
            code=USAGE,
        )
    return found


def load(module: str, where: str) -> Any:
    # As `python -m` does: the directory we are in comes first.
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # What the app itself fails to import is the app's own traceback.
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise Problem(
            f"there is no module {module} here ({os.getcwd()})",
            remedy="run it where the module is, or set PYTHONPATH",
            code=USAGE,
        ) from error
