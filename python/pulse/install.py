"""Put pulse into a database: as an extension where its files are, else as one script.

A managed PostgreSQL rarely takes extension files; the plain script needs nothing but
CREATE on the database, and gives the same functions and views.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.rows import tuple_row

Connection = psycopg.Connection[Any]
Method = Literal["auto", "extension", "plain"]

INSPECT = """
    SELECT
        (
            SELECT e.extversion
            FROM pg_catalog.pg_extension AS e
            WHERE e.extname = 'pulse'
        ),
        (
            SELECT pg_catalog.pg_get_userbyid(n.nspowner)
            FROM pg_catalog.pg_namespace AS n
            WHERE n.nspname = 'pulse'
        ),
        (
            SELECT a.default_version
            FROM pg_catalog.pg_available_extensions AS a
            WHERE a.name = 'pulse'
        ),
        (
            SELECT pg_catalog.array_agg(DISTINCT p.proname::text)
            FROM pg_catalog.pg_proc AS p
            INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
            WHERE n.nspname = 'pulse'
        )
"""


class InstallError(Exception):
    """pulse could not be installed; the first line is the reason, the rest the fix."""


@dataclass(frozen=True)
class Installed:
    """What a database has of pulse. A plain script records no version."""

    how: Literal["extension", "plain"] | None
    version: str | None
    owner: str | None
    available: str | None
    functions: frozenset[str]

    @property
    def missing(self) -> list[str]:
        """Functions of this package's version that the database lacks."""
        return sorted(public_functions() - self.functions)

    @property
    def is_older(self) -> bool:
        """Whether the database has an older pulse than this package expects."""
        if self.how is None:
            return False
        if self.version is None:
            return bool(self.missing)
        return release(self.version) < release(version())

    def __str__(self) -> str:
        if self.how is None:
            return "nothing"
        if self.how == "extension":
            return f"pulse {self.version} (extension)"
        return f"pulse{'' if self.missing else ' ' + version()} (plain script)"


# -- what this package carries ----------------------------------------------------


def source() -> Path:
    """The directory with the products: of the package, or of the checkout it is in."""
    here = Path(__file__).resolve().parent
    checkout = here.parent.parent / "extension"
    if (checkout / "pulse.control").exists():
        if not (checkout / "build" / "pulse.sql").exists():
            raise InstallError("the SQL is not built yet: make build")
        return checkout
    if (here / "share" / "pulse.sql").exists():
        return here / "share"
    raise InstallError("this installation of pgpulse lacks its SQL: reinstall it")


def extension_files() -> list[Path]:
    """Control file and scripts, as CREATE EXTENSION needs them."""
    base = source()
    if base.name == "share":
        return sorted((base / "extension").iterdir())
    found = [base / "pulse.control"]
    for directory in ("released", "build"):
        found += sorted((base / directory).glob("pulse--*.sql"))
    return found


def plain_script() -> str:
    base = source()
    path = base / "pulse.sql" if base.name == "share" else base / "build" / "pulse.sql"
    return path.read_text()


def version() -> str:
    """The version of pulse that belongs to this package."""
    control = next(path for path in extension_files() if path.name == "pulse.control")
    found = re.search(r"^default_version = '(.*)'", control.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def public_functions() -> frozenset[str]:
    return frozenset(
        re.findall(r"^CREATE FUNCTION pulse\.([a-z]\w*)", plain_script(), re.MULTILINE)
    )


# -- what a database has ----------------------------------------------------------


def inspect(connection: Connection) -> Installed:
    row = connection.cursor(row_factory=tuple_row).execute(INSPECT).fetchone()
    assert row is not None
    installed, owner, available, functions = row
    how: Literal["extension", "plain"] | None = None
    if installed is not None:
        how = "extension"
    elif functions:
        how = "plain"
    return Installed(how, installed, owner, available, frozenset(functions or ()))


# -- installing -------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What install would do, in words and in SQL; no statement where all is done."""

    summary: str
    statements: tuple[str, ...] = ()


def plan(state: Installed, method: Method = "auto") -> Plan:
    """Decide without touching the database."""
    wanted = version()
    if state.how == "extension" and state.version is not None:
        if release(state.version) > release(wanted):
            return Plan(
                f"{state} is newer than this package ({wanted}); nothing to do.\n"
                "Update the package: pip install --upgrade pgpulse"
            )
        if state.version == wanted:
            return Plan(f"{state} is installed; nothing to do")
        return Plan(
            f"upgrade {state} to {wanted}",
            (f"ALTER EXTENSION pulse UPDATE TO '{wanted}'",),
        )
    if state.how == "plain":
        if not state.missing:
            return Plan(f"{state} is installed; nothing to do")
        raise InstallError(
            "an older plain script of pulse is installed; it lacks "
            f"{', '.join(state.missing[:5])}{' …' if state.missing[5:] else ''}.\n"
            "A plain script is not upgraded in place: see docs/installation.md."
        )
    if state.owner is not None:
        raise InstallError(
            f"the schema pulse exists, belongs to {state.owner} and has no functions.\n"
            "If it is not needed: DROP SCHEMA pulse CASCADE, then pulse install."
        )
    if method == "extension" or (method == "auto" and state.available == wanted):
        if state.available is None:
            raise InstallError(
                "the server has no extension files of pulse.\n"
                "Install them there (make install), or take the script: "
                "pulse install --plain"
            )
        return Plan(
            f"install pulse {state.available} as an extension",
            ("CREATE EXTENSION pulse",),
        )
    return Plan(
        f"install pulse {wanted} as a plain script", tuple(parts(plain_script()))
    )


def parts(script: str) -> Iterator[str]:
    """The script in its parts, to be run one after the other: BEGIN … COMMIT."""
    for part in re.split(r"^(?=-- part: )", script, flags=re.MULTILINE):
        if part.strip():
            yield part


def apply(
    connection: Connection, todo: Plan, step: Callable[[], object] = lambda: None
) -> None:
    """Run a plan on an autocommit connection; all of it or nothing."""
    try:
        for statement in todo.statements:
            connection.execute(statement.encode())
            step()
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise
