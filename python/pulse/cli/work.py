"""work: import a worker and run it.

The verb finds the worker in a module, sets slots and databases from its options, and
calls Worker.run. With --reload a child process does this (reload.py).
"""

import importlib
import inspect
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from pulse.cli.problems import USAGE, Problem, Target
from pulse.cli.session import Session, with_session
from pulse.logs import log_event
from pulse.sql import operator
from pulse.sql import worker as sql


@click.command()
@click.argument("where", metavar="MODULE:WORKER")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="info logs each start and end.",
)
@click.option(
    "--lanes",
    metavar="LANE=SLOTS,…",
    help="Instead of the worker's: mail=4,default=10.",
)
@click.option("--concurrency", type=click.IntRange(1), help="Slots in lane default.")
@click.option("--reload", is_flag=True, help="Start again when a Python file changes.")
@click.option(
    "--max-jobs", type=click.IntRange(1), help="Restart the process after so many jobs."
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="Restart the process when it uses more memory: 512MB.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    help="Answer GET /livez and /readyz there.",
)
@with_session
def work(
    session: Session,
    where: str,
    log_level: str,
    lanes: str | None,
    concurrency: int | None,
    reload: bool,
    max_jobs: int | None,
    max_memory: str | None,
    health_port: int | None,
) -> None:
    """Run a worker: pulse work app:worker. SIGTERM and Ctrl-C stop it."""
    if reload:
        from pulse.cli.reload import supervise

        sys.exit(supervise(Path.cwd()))
    session.log(log_level)
    export_dsn_to_environment(session)
    worker = find(where)
    if session.nodes and (session.by_option or not worker.dsn):
        use_all_databases(worker, session, where)
    elif worker.dsn and session.given:
        check_same(session, worker.dsn, where)
    if lanes is not None and concurrency is not None:
        raise click.UsageError("--lanes and --concurrency exclude each other")
    if lanes is not None:
        worker.lanes = slots_of(lanes)
    elif concurrency is not None:
        worker.lanes = {"default": concurrency}
    worker.max_jobs = max_jobs or worker.max_jobs
    worker.max_memory = bytes_of(max_memory) if max_memory else worker.max_memory
    worker.health_port = worker.health_port if health_port is None else health_port
    session.asked = sql.EXCHANGE
    worker.run()
    if worker.recycled is not None:
        from pulse.worker.health import restart_process

        restart_process(worker.recycled)


def slots_of(text: str) -> dict[str, int]:
    slots: dict[str, int] = {}
    for part in text.split(","):
        lane, _, n = part.strip().rpartition("=")
        if not lane or not n.isdigit() or int(n) < 1 or lane in slots:
            raise click.BadParameter(
                f"{part!r} is not LANE=SLOTS", param_hint="--lanes"
            )
        slots[lane] = int(n)
    return slots


def bytes_of(text: str) -> int:
    from pulse.worker import health

    try:
        return health.bytes_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--max-memory") from error


@click.command()
@click.argument("where", metavar="MODULE:WORKER")
@click.option(
    "--overwrite", is_flag=True, help="Also what operators have changed meanwhile."
)
@with_session
def reconcile(session: Session, where: str, overwrite: bool) -> None:
    """Write the settings and schedules that a worker declares.

    A worker does the same when it starts.
    """
    declared = find(where).declarations
    if declared is None:
        raise Problem(
            f"{where} declares nothing",
            remedy="give it an application: pulse.Worker(application='shop')",
            code=USAGE,
        )
    rows = session.rows(operator.RECONCILE, declared.arguments(overwrite))
    if session.as_json:
        session.print_json(rows)
        return
    for row in rows:
        words = f"{row['item']} {row['name']}: {row['verdict']}"
        session.say(f"{words}, {row['detail']}" if row["detail"] else words)


def use_all_databases(worker: Any, session: Session, where: str) -> None:
    """To several databases, unless it names its own."""
    if worker.dsn:
        raise Problem(
            f"{where} has a DSN of its own",
            remedy="leave out --dsn, or the DSN in pulse.Worker(…)",
            code=USAGE,
        )
    worker.dsns = [node.dsn for node in session.nodes]


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
    words = f"{where} has a DSN of its own, which is used: {own}"
    log_event(logging.WARNING, words)


def export_dsn_to_environment(session: Session) -> None:
    """For a worker that names no database itself: libpq reads the environment."""
    from psycopg import pq

    # Raises a Problem if the text is no DSN.
    assert session.target is not None
    for option in pq.Conninfo.parse(session.dsn.encode()):
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
    # Not whatever can be called: a FastAPI and a pulse.Task can.
    if inspect.isroutine(found):
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
        # If an import inside the app fails, the traceback is the app's own.
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise Problem(
            f"there is no module {module} here ({os.getcwd()})",
            remedy="run it where the module is, or set PYTHONPATH",
            code=USAGE,
        ) from error
