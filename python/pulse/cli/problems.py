"""What a person sees when something is wrong: what it is, and what mends it.

Exit codes: 1 refused or failed · 2 wrong usage · 3 pulse is missing or too old ·
4 no server · 5 not allowed · 6 waited too long · 130 interrupted.
"""

import os
import re
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

REFUSED, USAGE, NO_PULSE, NO_SERVER, NOT_ALLOWED, TOO_LONG = 1, 2, 3, 4, 5, 6

# What a role needs for a verb, as pulse.grant_access names it.
LEVELS = {
    "enqueue": "producer",
    "work": "worker",
    "approve": "approver",
    "reject": "approver",
    **dict.fromkeys(("ps", "lanes", "top", "jobs", "why", "health"), "viewer"),
    **dict.fromkeys(("install", "dev"), "admin"),
}


@dataclass
class Problem(Exception):
    """One sentence that says what is wrong, details, and a command that mends it."""

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
    """A connection that failed: why, and what to look at."""
    text = str(error).strip()
    said = re.sub(
        r"^.*?(?:FATAL: +|error: )", "", text.splitlines()[-1] if text else ""
    )
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
            said,
            "put user and password into --dsn, PULSE_DSN or ~/.pgpass",
            NOT_ALLOWED,
        )
    if re.search(r'role ".*" does not exist', text):
        return Problem(
            f"the server knows no role {target.user}",
            said,
            "name another one: --dsn postgresql://ROLE@HOST/DATABASE",
            NOT_ALLOWED,
        )
    return Problem(
        f"cannot reach the server: {target}",
        said,
        "is it running there? check --dsn, PULSE_DSN or DATABASE_URL"
        if given
        else "pulse dev   (starts one here; name yours with --dsn or PULSE_DSN)",
        NO_SERVER,
    )


def denied(error: psycopg.Error, target: Target, verb: str) -> Problem:
    level = LEVELS.get(verb, "operator")
    return Problem(
        f"{target.user} may not do this: {error.diag.message_primary or error}",
        f"`pulse {verb}` needs the access level {level}.",
        f"SELECT pulse.grant_access('{target.user}', '{level}')   (as its admin)",
        NOT_ALLOWED,
    )


def refused(error: psycopg.Error) -> Problem:
    """Whatever else the server said, in its own words."""
    diag = error.diag
    if diag.message_primary is None:
        return Problem(f"the connection was lost: {str(error).strip()}", code=NO_SERVER)
    code = f" [{error.sqlstate}]" if error.sqlstate else ""
    return Problem(
        f"{diag.message_primary}{code}",
        diag.message_detail or "",
        diag.message_hint or "",
    )
