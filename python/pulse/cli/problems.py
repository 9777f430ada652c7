"""The messages that a person reads when something is wrong, with the fix.

command.py turns exceptions into a Problem and ends with its exit code: 1 refused or
failed · 2 wrong usage · 3 pulse is missing or too old · 4 no server · 5 not allowed ·
6 waited too long · 130 interrupted.
"""

import os
import re
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pulse import errors, verbs

REFUSED, USAGE, NO_PULSE, NO_SERVER, NOT_ALLOWED, TOO_LONG = 1, 2, 3, 4, 5, 6


@dataclass
class Problem(Exception):
    """One sentence that says what is wrong, details, and a command that fixes it."""

    what: str
    detail: str = ""
    remedy: str = ""
    code: int = REFUSED

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Target:
    """Where a connection leads, without its password."""

    host: str
    port: str
    database: str
    user: str

    @classmethod
    def of(cls, conninfo: str) -> "Target":
        given = conninfo_to_dict(conninfo)
        user = str(given.get("user") or os.environ.get("PGUSER") or default_user())
        return cls(
            host=str(given.get("host") or os.environ.get("PGHOST") or "local socket"),
            port=str(given.get("port") or os.environ.get("PGPORT") or "5432"),
            database=str(given.get("dbname") or os.environ.get("PGDATABASE") or user),
            user=user,
        )

    def __str__(self) -> str:
        place = self.host
        if not place.startswith("/") and place != "local socket":
            place = f"{place}:{self.port}"
        return f"database {self.database} at {place} as {self.user}"


def default_user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or "the current user"


def not_installed(target: Target) -> Problem:
    return Problem(
        f"pulse is not installed in {target}",
        "Or this is not the database you meant: --dsn, PULSE_DSN or DATABASE_URL.",
        "pulse install",
        NO_PULSE,
    )


def too_old(found: str, wanted: str, target: Target) -> Problem:
    return Problem(
        f"pulse {found} in {target} is older than this package, which needs {wanted}",
        "Workers of the old version go on working during the upgrade.",
        "pulse install",
        NO_PULSE,
    )


def no_driver(error: ImportError) -> Problem:
    return Problem(
        "psycopg found no libpq on this machine",
        str(error).splitlines()[0],
        'pip install "pgpulse[binary]"',
        NO_SERVER,
    )


def unreachable(error: psycopg.Error, target: Target, given: bool) -> Problem:
    """Describe a connection that failed: the reason, and how to go on."""
    text = str(error).strip()
    # An indented line is advice of libpq, which the remedy repeats.
    lines = [line for line in text.splitlines() if not line[:1].isspace()]
    reason = re.sub(r"^.*?(?:FATAL: +|error: )", "", lines[-1] if lines else "")
    if re.search(r'database ".*" does not exist', text):
        return Problem(
            f"there is no database {target.database} at this server",
            f"Tried {target}.",
            f"createdb {target.database}   (or name another one with --dsn)",
            NO_SERVER,
        )
    if re.search(r"authentication failed|no password supplied|pg_hba.conf", text):
        return Problem(
            f"the server does not let {target.user} in",
            reason,
            "put user and password into --dsn, PULSE_DSN or ~/.pgpass",
            NOT_ALLOWED,
        )
    if re.search(r'role ".*" does not exist', text):
        return Problem(
            f"the server knows no role {target.user}",
            reason,
            "name another one: --dsn postgresql://ROLE@HOST/DATABASE",
            NOT_ALLOWED,
        )
    return Problem(
        f"cannot reach the server: {target}",
        reason,
        "is it running there? check --dsn, PULSE_DSN or DATABASE_URL"
        if given
        else "pulse dev   (starts one here; name yours with --dsn or PULSE_DSN)",
        NO_SERVER,
    )


def denied(
    found: errors.PulseError, target: Target, verb: str, query: str, has: list[str]
) -> Problem:
    """A statement that the role may not run: which level would let it."""
    levels = lacking(query, has)
    if not levels:
        return refused(found)
    return Problem(
        f"{target.user} may not do this: {found.message}",
        f"`pulse {verb}` needs the access level {' or '.join(levels)}; {target.user} "
        f"has {', '.join(has) or 'none'}.",
        f"SELECT pulse.grant_access('{target.user}', '{levels[0]}')   (as an admin)",
        NOT_ALLOWED,
    )


def lacking(query: str, has: list[str]) -> tuple[str, ...]:
    """The least levels for what a statement names first of what has does not allow."""
    for name in re.findall(r"\bpulse\.([a-z_]+)", query):
        levels = verbs.levels(name)
        if not set(levels) & set(has):
            return levels
    return ()


def may_not_install(
    found: errors.PulseError, target: Target, owner: str | None
) -> Problem:
    """grant_access comes with pulse: before that only CREATE can be granted."""
    if owner is not None:
        remedy = f"run pulse install as {owner}, who owns pulse in this database"
    else:
        database, user = quoted(target.database), quoted(target.user)
        remedy = (
            f"GRANT CREATE ON DATABASE {database} TO {user}   (as the database's owner)"
        )
    return Problem(
        f"{target.user} may not do this: {found.message}",
        f"`pulse install` creates a schema in the database {target.database}.",
        remedy,
        NOT_ALLOWED,
    )


def quoted(name: str) -> str:
    """An identifier as SQL takes it."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        return name
    return '"' + name.replace('"', '""') + '"'


def refused(found: errors.PulseError) -> Problem:
    """Whatever else went wrong, in the words of the server or the worker."""
    if found.sqlstate is None and isinstance(found, errors.Unavailable):
        return Problem(f"the connection was lost: {found.message}", code=NO_SERVER)
    code = REFUSED
    if isinstance(found, errors.NotInstalled):
        code = NO_PULSE
    elif isinstance(found, errors.PermissionDenied):
        code = NOT_ALLOWED
    sqlstate = f" [{found.sqlstate}]" if found.sqlstate else ""
    return Problem(
        f"{found.message}{sqlstate}", found.detail or "", found.hint or "", code
    )
