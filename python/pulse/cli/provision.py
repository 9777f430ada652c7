"""install, dev, demo: from nothing to a database with pulse in it.

install calls pulse.install; dev and demo start a server of pulse.embedded.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from pulse.cli import queries
from pulse.cli.session import Session, with_session


@click.command()
@click.option(
    "--plain", "method", flag_value="plain", help="Always the script, no extension."
)
@click.option(
    "--extension", "method", flag_value="extension", help="Only CREATE EXTENSION."
)
@click.option("--dry-run", is_flag=True, help="Print the SQL; change nothing.")
@click.option(
    "--watchdog/--no-watchdog",
    default=True,
    show_default=True,
    help="Let pg_cron do the maintenance, where it is installed.",
)
@with_session
def install(
    session: Session, method: str | None, dry_run: bool, watchdog: bool
) -> None:
    """Install pulse into a database, or upgrade it.

    CREATE EXTENSION where the server has the files, else one script that needs nothing
    but CREATE on the database: for managed PostgreSQL. An older pulse is upgraded, by
    whichever of them it came; jobs, workers and rights stay. Run again, it changes
    nothing.
    """
    from pulse import install as installer

    with session.open() as connection:
        state = installer.inspect(connection)
        todo = installer.plan(state, method or "auto")  # type: ignore[arg-type]
        if dry_run:
            session.err.print(Text(f"-- {todo.summary}", style="dim"), soft_wrap=True)
            print("\n".join(f"{s.rstrip().rstrip(';')};" for s in todo.statements))
            return None
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            console=session.err,
            transient=True,
            disable=not session.err.is_terminal,
        ) as bar:
            task = bar.add_task("installing", total=len(todo.statements))

            def wait(reason: str, pause: float) -> None:
                bar.reset(task)
                retry = f"a lock is not free, trying again in {pause:.0f} s. {reason}"
                session.err.print(Text(retry, style="yellow"), soft_wrap=True)
                time.sleep(pause)

            installer.apply(connection, todo, lambda: bar.advance(task), wait)
        watched = start_watchdog(session) if watchdog else "not requested"
    done = bool(todo.statements)
    if session.as_json:
        return session.print_json(
            {"did": todo.summary, "changed": done, "watchdog": watched}
        )
    session.say(f"{'done: ' if done else ''}{todo.summary}")
    session.say(f"watchdog: {watched}")
    if done:
        session.say(
            "Next: SELECT pulse.grant_access('your_role', 'producer'); and others "
            "(docs/access.md)"
        )
    return None


def start_watchdog(session: Session) -> str:
    """Never a reason to fail: without it the workers do the maintenance."""
    import psycopg

    try:
        return str(session.one(queries.START_WATCHDOG)["how"])
    except psycopg.Error as error:
        if error.sqlstate == "PU010":
            return f"none; {error.diag.message_detail} {error.diag.message_hint}"
        if error.sqlstate == "42501":
            return "left as it is; only an admin of pulse may start it"
        raise


@contextlib.contextmanager
def spinner(session: Session) -> "Iterator[Callable[[str], None]]":
    """Each step of a first start, with a spinner on a terminal."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        console=session.err,
        transient=True,
        disable=not session.err.is_terminal,
    ) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(task, description=escape(step))


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Directory of the data; default: PULSE_HOME, ~/.local/share/pulse.",
)
@click.option("--database", default="pulse", show_default=True)
@click.option(
    "--port",
    type=int,
    help="Also listen on 127.0.0.1, with a password; 0 takes any port.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@with_session
def dev(
    session: Session,
    data_dir: Path | None,
    database: str,
    port: int | None,
    command: tuple[str, ...],
) -> None:
    """Run a PostgreSQL with pulse until Ctrl-C; the data stays.

    With a COMMAND it runs that, with PULSE_DSN and DATABASE_URL set, and stops when
    the command ends: pulse dev pulse work app:worker.
    """
    from pulse import install as installer
    from pulse.embedded import EmbeddedServer

    with spinner(session) as report:
        server = EmbeddedServer(data_dir, database=database, port=port, report=report)
        server.start()
    with server:
        session.dsn = server.dsn
        if command:
            raise click.exceptions.Exit(run_command(command, server.dsn))
        if session.as_json:
            session.print_json(
                {
                    "dsn": server.dsn,
                    "tcp_dsn": server.tcp_dsn,
                    "data_dir": str(server.directory),
                    "log": str(server.log),
                }
            )
        else:
            session.say(
                f"PostgreSQL 18 with pulse {installer.version()}\n"
                f"  data  {server.directory!s}\n"
                f"  log   {server.log!s}\n"
                + (f"  TCP   {server.tcp_dsn}\n" if server.tcp_dsn else "")
                + "\nIn another terminal:\n"
                f"  export PULSE_DSN='{server.dsn}'\n"
                "  pulse enqueue hello name=world\n"
                "  pulse jobs\n"
                "\nCtrl-C stops it; the data stays."
            )
        tick_until_stopped(session)
    session.say("stopped")


def run_command(command: tuple[str, ...], dsn: str) -> int:
    environment = {**os.environ, "PULSE_DSN": dsn, "DATABASE_URL": dsn}
    child = subprocess.Popen(command, env=environment)
    # Ctrl-C reaches the child as well; we wait for it to end its own way.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def tick_until_stopped(session: Session) -> None:
    """The watchdog of a server that has no pg_cron."""
    import psycopg

    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: stopped.set())
    while not stopped.is_set():
        with contextlib.suppress(psycopg.Error), session.open() as connection:
            while not stopped.wait(5):
                connection.execute(queries.TICK)
        stopped.wait(1)


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="About how long.")
@with_session
def demo(session: Session, seconds: float) -> None:
    """Show pulse at work: a mixed load on a temporary server."""
    from pulse.cli.demo import run

    raise click.exceptions.Exit(run(session, seconds))
