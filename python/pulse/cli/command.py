"""The command `pulse`: its verbs, and the one place where errors become messages.

The console script `pulse` starts here.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from pulse.cli import (
    completion,
    encoding,
    flows,
    holds,
    jobs,
    limits,
    problems,
    produce,
    provision,
    schedules,
    see,
    settings,
    stats,
    steer,
    top,
    web,
    work,
)
from pulse.cli.problems import Problem
from pulse.cli.session import Session
from pulse.cli.show import SafeConsole, safe
from pulse.sql import operator

if TYPE_CHECKING:
    import psycopg

    from pulse.cli.session import Row
    from pulse.errors import PulseError

SECTIONS: dict[str, list[click.Command]] = {
    "Work": [work.work, produce.enqueue, schedules.schedule, work.reconcile],
    "See": [
        *(see.ps, see.lanes, see.kinds, top.top, jobs.jobs, see.why, see.workers),
        *(see.health, stats.stats, limits.limits, flows.flow, settings.audit, web.web),
    ],
    "Operate": [
        *(steer.cancel, steer.reprioritize, steer.retry, steer.approve, steer.reject),
        *(steer.run_now, steer.reschedule, steer.rerun, steer.discard, steer.move),
        *(flows.signal, holds.drain, holds.pause, holds.resume),
        *(settings.set_lane, settings.set_kind, settings.set_group, settings.prune),
    ],
    "Set up": [
        *(provision.install, settings.grant, settings.revoke),
        *(provision.dev, provision.demo, completion.completion),
    ],
}


class Verbs(click.Group):
    """The verbs in the order and the sections people look for them in."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [str(each.name) for section in SECTIONS.values() for each in section]

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(each.name), each.get_short_help_str(60)) for each in commands]
                )


@click.group(
    cls=Verbs,
    commands={
        **{str(each.name): each for section in SECTIONS.values() for each in section},
        # Not listed: the name that ps(1) and top(1) lead people to.
        "nice": steer.reprioritize,
        "delete": steer.discard,
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 pulse is missing "
    "or too old, 4 no server, 5 not allowed, 6 waited too long, 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: show_version(context, wanted),
    help="Show the version of the package and of the SQL it carries.",
)
@click.option(
    "--dsn",
    metavar="DSN",
    multiple=True,
    help="Database to use, repeatable; default: PULSE_DSN, DATABASE_URL, PG*.",
)
def pulse(dsn: tuple[str, ...]) -> None:
    """A job queue inside PostgreSQL.

    Try it without a database of your own: pulse demo. For development: pulse dev.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    context: dict[str, Any] = {}
    encoding.accept_any_locale()
    try:
        given = sys.argv[1:] if arguments is None else arguments
        if completion.answers(pulse):
            return 0
        with pulse.make_context("pulse", encoding.decoded(given)) as made:
            context["context"] = made
            pulse.invoke(made)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # `pulse jobs | head`: the reader has gone, and that is fine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        made_context = context.get("context")
        session = made_context.obj if made_context is not None else None
        problem = explain(error, session)
        if problem is None:
            raise
        show(problem, session)
        return problem.code
    return 0


def explain(error: Exception, session: Session | None) -> Problem | None:
    """Return the message instead of a traceback; None for a bug of pulse."""
    from pulse.embedded import EmbeddedError
    from pulse.install import InstallError

    if isinstance(error, Problem):
        return error
    if isinstance(error, (EmbeddedError, InstallError)):
        what, _, remedy = str(error).partition("\n")
        return Problem(what, remedy=remedy)
    if isinstance(error, ImportError) and "pq wrapper" in str(error):
        return problems.no_driver(error)
    return explain_server(error, session)


def explain_server(error: Exception, session: Session | None) -> Problem | None:
    """An error of the server, the driver or the worker, as errors.describe has it."""
    import psycopg

    from pulse import errors

    ours = (psycopg.Error, errors.PulseError)
    cause = error if isinstance(error, ours) else error.__cause__
    if not isinstance(cause, ours):
        return None
    found = errors.describe(cause)
    if session is None or cause is found:
        return problems.refused(found)
    if isinstance(found, errors.NotInstalled):
        return explain_missing(session, found)
    if isinstance(found, errors.PermissionDenied):
        return explain_denied(session, found)
    return problems.refused(found)


def explain_missing(session: Session, found: "PulseError") -> Problem:
    """A function we call is not there: no pulse at all, or an older one."""
    from pulse import install

    with session.open() as connection:
        state = install.inspect(connection)
    if state.how is None:
        return problems.not_installed(session.target)
    if state.is_older or state.missing:
        old = problems.too_old(
            state.version or "of unknown version", install.version(), session.target
        )
        if state.missing:
            old.detail = f"It lacks {', '.join(state.missing)}. {old.detail}"
        return old
    return problems.refused(found)


def explain_denied(session: Session, found: "PulseError") -> Problem:
    from pulse import install

    with session.open() as connection:
        state = install.inspect(connection)
        rights = rights_of(connection)
    if session.verb == "install":
        return problems.may_not_install(found, session.target, state.owner)
    asked = [each.asked for each in (session, *session.nodes) if each.asked]
    return problems.denied(
        found, session.target, session.verb, "".join(asked[:1]), rights
    )


def rights_of(connection: "psycopg.Connection[Row]") -> list[str]:
    """A role that was given nothing may not even ask; an older pulse has no answer."""
    from psycopg import errors

    try:
        return [row["access"] for row in connection.execute(operator.MY_ACCESS)]
    except (
        errors.InsufficientPrivilege,
        errors.InvalidSchemaName,
        errors.UndefinedFunction,
    ):
        return []


def show_version(context: click.Context, wanted: bool) -> None:
    if not wanted:
        return

    from importlib.metadata import version

    from pulse import install

    print(f"pulse, version {version('pgpulse')}")
    print(f"SQL {install.version()}, build {install.build()}")
    context.exit()


def show(problem: Problem, session: Session | None) -> None:
    if session is not None and session.as_json:
        found = {
            "error": problem.what,
            "detail": problem.detail,
            "remedy": problem.remedy,
            "code": problem.code,
        }
        print(json.dumps(found), file=sys.stderr)
        return
    console = SafeConsole(stderr=True, highlight=False, emoji=False)
    console.print(f"[bold red]pulse:[/] {escape(safe(problem.what))}", soft_wrap=True)
    if problem.detail:
        console.print(f"  {escape(safe(problem.detail))}", soft_wrap=True)
    if problem.remedy:
        console.print(f"  Fix: [bold]{escape(safe(problem.remedy))}[/]", soft_wrap=True)
