"""Session: the connection, the consoles and the output format of one command.

with_session gives it to the function of a verb.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.text import Text

from pulse.cli import nodes, problems, show
from pulse.cli.encoding import is_utf8
from pulse.cli.problems import Problem, Target

if TYPE_CHECKING:
    import psycopg
    from typing_extensions import LiteralString

Row = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])


class Session:
    """A connection made when it is first needed, and two consoles."""

    def __init__(self, verb: str, dsns: Sequence[str], as_json: bool) -> None:
        self.verb = verb
        self.as_json = as_json
        # By --dsn, which nothing may override; else by the environment.
        self.by_option = any(dsns)
        if not self.by_option:
            named = os.environ.get("PULSE_DSN") or os.environ.get("DATABASE_URL")
            dsns = nodes.listed(named) if named else ()
        self.given = dsns[0] if dsns else None
        self.dsn = for_libpq(self.given or "")
        self.nodes = (
            [Session(verb, [dsn], as_json) for dsn in dsns] if len(dsns) > 1 else []
        )
        """One for each of several databases."""
        self.numbered: dict[int, Session] = {}
        self.asked = ""
        """The statement of the last question, or what a worker asks."""
        # Lines that go to a file or a pipe are not cut at the width of a screen.
        piped = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 400
        self.out = show.SafeConsole(width=piped, highlight=False, emoji=False)
        self.err = show.SafeConsole(stderr=True, highlight=False, emoji=False)

    @cached_property
    def target(self) -> Target:
        import psycopg

        try:
            return Target.of(self.dsn)
        except psycopg.ProgrammingError as error:
            # libpq quotes text that it cannot parse, which may be part of the password.
            words = re.sub('".*"', "…", str(error).strip(), flags=re.DOTALL)
            raise Problem(
                f"this is not a DSN: {words}",
                remedy="postgresql://user:password@host/database",
                code=problems.USAGE,
            ) from error

    def open(self) -> "psycopg.Connection[Row]":
        """A new autocommit connection, whatever the database has."""
        import psycopg
        from psycopg.rows import dict_row

        target = self.target
        try:
            return psycopg.Connection[Row].connect(
                self.dsn,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=None,
                application_name="pulse " + self.verb,
                connect_timeout=10,
            )
        except psycopg.OperationalError as error:
            given = bool(self.given or os.environ.get("PGHOST"))
            raise problems.unreachable(error, target, given) from error

    @cached_property
    def connection(self) -> "psycopg.Connection[Row]":
        """The connection of this run, to a database that has pulse."""
        from pulse import install

        if self.nodes:
            raise Problem(
                f"pulse {self.verb} takes one database",
                remedy="pass --dsn once",
                code=problems.USAGE,
            )
        connection = self.open()
        try:
            state = install.inspect(connection)
            if state.owner is None:
                raise problems.not_installed(self.target)
        except BaseException:
            connection.close()
            raise
        if state.is_older:
            old = problems.too_old(str(state.version), install.version(), self.target)
            self.say(f"warning: {old.what}. Fix: {old.remedy}", "yellow")
        return connection

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        opened = self.__dict__.pop("connection", None)
        if opened is not None:
            opened.close()

    def rows(
        self, query: "LiteralString", values: Mapping[str, Any] | None = None
    ) -> list[Row]:
        self.asked = query
        return self.connection.execute(query, values or {}).fetchall()

    def one(
        self, query: "LiteralString", values: Mapping[str, Any] | None = None
    ) -> Row:
        return self.rows(query, values)[0]

    # -- several databases --------------------------------------------------------

    def gather(self, read: "Callable[[Session], list[Row]]") -> list[Row]:
        """Read from the database; of several, from all, with the node in each row.

        Prints a warning for each node that does not answer.
        """
        if not self.nodes:
            return read(self)
        answers = nodes.ask_all(self.nodes, read, self.warn)
        return [
            {"node": number, **row}
            for number, rows in sorted(answers.items())
            for row in rows
        ]

    def having(self, job_id: int) -> "Session":
        """The database that has this job, by its id."""
        from pulse.ids import node_of

        if not self.nodes:
            return self
        if not self.numbered:
            self.numbered = nodes.ask_all(self.nodes, lambda node: node, self.warn)
        found = self.numbered.get(node_of(job_id))
        if found is None:
            raise Problem(
                f"none of these databases is node {node_of(job_id)}",
                remedy=f"add the --dsn of the one that has job {job_id}",
            )
        return found

    # -- printing -----------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        """Words for a person; they never mix with what --json prints."""
        console = self.err if self.as_json else self.out
        console.print(Text(show.safe(text), style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """On stderr, whatever is printed."""
        words = Text(show.safe(f"warning: {text}"), style="yellow")
        self.err.print(words, soft_wrap=True)

    def log(self, level: str) -> None:
        """Logs go to stderr: sentences, or with --json an object a line."""
        from pulse.logs import JsonFormatter

        form = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if self.as_json else SafeFormatter(form))
        logging.basicConfig(level=level.upper(), handlers=[handler])

    def print_json(self, value: object) -> None:
        text = json.dumps(plain(value), ensure_ascii=not is_utf8(sys.stdout), indent=2)
        # Inside strings: those that JSON allows there and a terminal obeys.
        print(text.translate(show.ESCAPED))


def for_libpq(dsn: str) -> str:
    """SQLAlchemy's way to name the driver is not libpq's."""
    return re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", dsn)


class SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return show.safe(super().format(record))


def plain(value: object) -> object:
    """As JSON has it: ids and leases as strings, durations in seconds."""
    if isinstance(value, Mapping):
        return {
            k: str(v) if k in ("job_id", "lease") and v is not None else plain(v)
            for k, v in value.items()
            if k not in ("seen_at", "seen_for")
        }
    if isinstance(value, timedelta):
        return round(value.total_seconds(), 3)
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return value


def with_session(function: Command) -> Command:
    """Give a command --dsn, --json and a Session as its first argument."""

    @click.pass_context
    def run(
        context: click.Context, /, dsn: tuple[str, ...], as_json: bool, **options: Any
    ) -> Any:
        above = context.find_root().params.get("dsn") or ()
        verb = str(context.command_path).split()[1]
        session = Session(verb, dsn or above, as_json)
        context.find_root().obj = session
        context.call_on_close(session.close)
        return function(session, **options)

    click.option(
        "--json", "as_json", is_flag=True, help="Print JSON instead of tables."
    )(run)
    click.option(
        "--dsn",
        metavar="DSN",
        multiple=True,
        help="Database to use, repeatable; default: PULSE_DSN, DATABASE_URL, PG*.",
    )(run)
    run.__click_params__ = getattr(function, "__click_params__", []) + getattr(  # type: ignore[attr-defined]
        run, "__click_params__", []
    )
    return update_wrapper(run, function)  # type: ignore[return-value]
