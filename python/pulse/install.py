"""Put pulse into a database: as an extension where its files are, else as one script.

A managed PostgreSQL rarely takes extension files; the plain script needs nothing but
CREATE on the database, and gives the same functions and views. What is there says its
version by pulse.version(), and is upgraded by the same source, whichever product it is.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.rows import tuple_row

from pulse.sql.idle import LIMIT_IDLE
from pulse.sql.install import HOLDERS, INSPECT, KEEP_OUT, LET_END, VERSION, kept

Connection = psycopg.Connection[Any]
Method = Literal["auto", "extension", "plain"]
Product = Literal["extension", "plain", "pg_tle"]

BACKEND = "SELECT pg_catalog.pg_backend_pid()"

LET_IN = KEEP_OUT.replace("pg_advisory_lock", "pg_advisory_unlock")


class InstallError(Exception):
    """pulse could not be installed: the first line is the reason, the rest the fix."""


@dataclass(frozen=True)
class Installed:
    """The pulse of a database; version is None if this role may not ask for it."""

    how: Product | None
    version: str | None
    owner: str | None
    available: str | None
    functions: frozenset[str]
    build: str | None = None
    targets: frozenset[str] = frozenset()

    @property
    def missing(self) -> list[str]:
        """Functions of this package's version that the database lacks."""
        return sorted(public_functions() - self.functions)

    @property
    def is_older(self) -> bool:
        """Whether the database has an older pulse than this package expects."""
        if self.version is None:
            return False
        return release(self.version) < release(version())

    @property
    def is_other_code(self) -> bool:
        """Whether it has the version of this package, built from another source."""
        return self.version == version() and self.build not in (None, build())

    def __str__(self) -> str:
        if self.how is None:
            return "nothing"
        name = "plain script" if self.how == "plain" else self.how
        return f"pulse {self.version or 'of unknown version'} ({name})"


# -- the SQL of this package ------------------------------------------------------


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


def product(name: str) -> Path:
    """The other products: pulse.sql, and what upgrades plain and pg_tle installs."""
    base = source()
    return base / name if base.name == "share" else base / "build" / name


def plain_script() -> str:
    return product("pulse.sql").read_text()


def sql() -> str:
    """Return the plain script, for a transaction of yours.

    Returns:
        SQL that installs pulse, without BEGIN and COMMIT.

    Example:
        >>> from pulse import install
        >>> "CREATE SCHEMA pulse" in install.sql()
        True
    """
    script = re.sub(r"^(BEGIN|COMMIT);$", "", plain_script(), flags=re.MULTILINE)
    return kept(script)


def version() -> str:
    """Return the version of pulse that belongs to this package.

    Example:
        >>> from pulse import install
        >>> install.inspect(connection).version == install.version()
        True
    """
    return carried()[0]


def build() -> str:
    """Return the checksums of the tables and of the code of this package."""
    return carried()[1]


def carried() -> tuple[str, str]:
    with product("pulse.sql").open() as script:
        found = re.match(r"-- pulse (\S+) \(build (\S+)\)", script.readline())
    assert found is not None
    return found[1], found[2]


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def public_functions() -> frozenset[str]:
    return frozenset(
        re.findall(r"^CREATE FUNCTION pulse\.([a-z]\w*)", plain_script(), re.MULTILINE)
    )


# -- the pulse of a database ------------------------------------------------------


def inspect(connection: Connection) -> Installed:
    """Find out which pulse a database has.

    Args:
        connection: A connection of psycopg to the database.

    Returns:
        The product, version, owner and build; empty where there is no pulse.

    Example:
        >>> from pulse import install
        >>> install.inspect(connection).how
        'extension'
    """
    cursor = connection.cursor(row_factory=tuple_row)
    row = cursor.execute(INSPECT).fetchone()
    assert row is not None
    found, owner, available, functions, may_ask, is_tle, targets = row
    how: Product | None = None
    if found is not None:
        how = "pg_tle" if is_tle else "extension"
    elif may_ask is not None:
        # The schema has a function version(), so it is a plain install of pulse.
        how = "plain"
    built = None
    if how is not None and may_ask:
        own, built = cursor.execute(VERSION).fetchone() or (None, None)
        found = found or own
    return Installed(
        *(how, found, owner, available, frozenset(functions or ())),
        *(built, frozenset(targets or ())),
    )


# -- deciding ---------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The steps of an installation in words and SQL; no statement if all is done."""

    summary: str
    statements: tuple[str, ...] = ()


def plan(state: Installed, method: Method = "auto") -> Plan:
    """Decide how to install or upgrade pulse, without touching the database.

    Args:
        state: What inspect found.
        method: auto, extension or plain: how to install it where there is none.

    Returns:
        The steps; apply runs them.

    Raises:
        InstallError: There is no way from here; the message has the reason and the fix.

    Example:
        >>> from pulse import install
        >>> install.plan(install.inspect(connection)).statements
        ()
    """
    if state.how is None:
        return fresh(state, method)
    wanted = version()
    if state.version is None:
        raise InstallError(
            f"{state} belongs to {state.owner}, and this role may not ask for its "
            f"version.\nRun pulse install as {state.owner}."
        )
    if release(state.version) > release(wanted):
        return Plan(
            f"{state} is newer than this package ({wanted}); nothing to do.\n"
            "Update the package: pip install --upgrade pgpulse"
        )
    if state.is_other_code:
        return other_code(state)
    if state.version == wanted:
        return Plan(f"{state} is installed; nothing to do")
    return upgrade(state)


def fresh(state: Installed, method: Method) -> Plan:
    """Plan an installation into a database without pulse."""
    wanted = version()
    if state.owner is not None:
        raise InstallError(
            "the schema pulse or pulse_internal exists, belongs to "
            f"{state.owner} and has no functions of pulse.\n"
            "If it is not needed, drop it: DROP SCHEMA pulse, pulse_internal CASCADE, "
            "then pulse install."
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


def upgrade(state: Installed) -> Plan:
    """Plan an upgrade, by the same source for every product, in one transaction."""
    wanted, summary = version(), f"upgrade {state} to {version()}"
    alter = (
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "SET LOCAL statement_timeout = 0",
        f"ALTER EXTENSION pulse UPDATE TO '{wanted}'",
        "COMMIT",
    )
    step = f"{state.version}--{wanted}.sql"
    if state.how == "extension":
        if wanted in state.targets:
            return Plan(summary, alter)
        raise InstallError(
            f"the server has no upgrade of {state} to {wanted}.\n"
            f"Install the extension files of pulse {wanted} there (make install), then "
            f"pulse install.{ways(state, 'pulse--')}"
        )
    prefix = "pulse.tle." if state.how == "pg_tle" else "pulse."
    script = product(prefix + step)
    if not script.exists():
        raise InstallError(
            f"this package has no upgrade of {state} to {wanted}.{ways(state, prefix)}"
        )
    if state.how == "pg_tle":
        return Plan(summary, (*alter[:2], script.read_text(), *alter[2:]))
    return Plan(summary, (*parts(uncommitted(script)), "COMMIT"))


def ways(state: Installed, prefix: str) -> str:
    """Say how to go on where there is no path: another package, or a fresh database."""
    known = sorted(
        path.name.removeprefix(prefix).partition("--")[0]
        for path in product("").glob(f"{prefix}[0-9]*--{version()}.sql")
    )
    sources = f" It can upgrade {', '.join(known)}." if known else ""
    return (
        f"{sources}\nGo through a version in between that can (pip install "
        "pgpulse==VERSION; pulse install), or let the queue run empty and install "
        "into a new database: docs/upgrading.md."
    )


def other_code(state: Installed) -> Plan:
    """Plan the change to the same version from another source: a development build."""
    differs = f"{state} has the version of this package and other"
    tables = str(state.build).partition("-")[0] != build().partition("-")[0]
    if tables:
        raise InstallError(
            f"{differs} tables (build {state.build}, package {build()}).\n"
            "A development build is not upgraded: give what you build another version, "
            "with upgrades/A--B.sql; or install into a new database."
        )
    if state.how == "plain":
        return Plan(
            f"replace the code of {state}: build {state.build} by {build()}",
            (*parts(uncommitted(product("pulse.code.sql"))), "COMMIT"),
        )
    raise InstallError(
        f"{differs} code (build {state.build}, package {build()}).\n"
        "ALTER EXTENSION pulse UPDATE needs another version: raise default_version and "
        "add upgrades/A--B.sql; or, where its jobs may go, DROP EXTENSION pulse; "
        "CREATE EXTENSION pulse."
    )


def removal(state: Installed) -> Plan:
    """Plan to remove pulse, with every job, setting and grant.

    Args:
        state: What inspect found.

    Returns:
        The steps; apply runs them.

    Example:
        >>> from pulse import install
        >>> install.removal(install.inspect(connection)).statements
        ('SELECT pulse.stop_watchdog(); DROP EXTENSION pulse',)
    """
    if state.how is None:
        return Plan("there is no pulse here; nothing to do")
    drop = "DROP EXTENSION pulse"
    if state.how == "plain":
        drop = "DROP SCHEMA pulse, pulse_internal CASCADE"
    # One message, so one transaction.
    return Plan(f"remove {state}", (f"SELECT pulse.stop_watchdog(); {drop}",))


def uncommitted(script: Path) -> str:
    return script.read_text().rstrip().removesuffix("COMMIT;")


def parts(script: str) -> Iterator[str]:
    """Split the script into its parts; each is one transaction."""
    for part in re.split(r"^(?=-- part: )", script, flags=re.MULTILINE):
        if part.strip():
            yield part


# -- doing it ---------------------------------------------------------------------

TRIES = 8
LONGEST_PAUSE = 15.0


def apply(
    connection: Connection,
    todo: Plan,
    step: Callable[[], object] = lambda: None,
    wait: Callable[[str, float], object] = lambda reason, pause: time.sleep(pause),
) -> None:
    """Run a plan on an autocommit connection; all of it or nothing.

    An upgrade gives up after a few seconds rather than queue workers behind the lock it
    waits for; it is tried again, after longer and longer pauses. Of two at once the
    later one finds that all is done.
    """
    for attempt in range(TRIES):
        try:
            run(connection, todo, step)
            return
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.DeadlockDetected,
        ) as error:
            reason = holders(connection)
            if attempt == TRIES - 1:
                raise InstallError(
                    f"{todo.summary}: a lock was not free in {TRIES} tries: "
                    f"{error.diag.message_primary}.\nNothing was changed. {reason}"
                ) from error
            wait(reason, min(LONGEST_PAUSE, 2.0**attempt))
        except psycopg.Error:
            if connection.closed or not is_done(connection):
                raise
            return


def is_done(connection: Connection) -> bool:
    state = inspect(connection)
    return state.how is not None and not plan(state).statements


def run(connection: Connection, todo: Plan, step: Callable[[], object]) -> None:
    statements = list(todo.statements)
    if len(statements) > 1:
        # The first one opens the transaction, and may lock every table.
        statements[0] = f"{statements[0]}\n;\n{LIMIT_IDLE}"
    try:
        for statement in statements:
            if statement == "COMMIT":
                commit(connection)
            else:
                connection.execute(statement.encode())
            step()
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise


def commit(connection: Connection) -> None:
    """Commit, and keep claims and ticks out until all that began before are over.

    One of them has old code and would get its lock after the commit. Behind a pooler
    the lock could stay with a session that is not ours: there it may fail, once.
    """
    asked = connection.cursor(row_factory=tuple_row)
    if asked.execute(BACKEND).fetchone() != (connection.info.backend_pid,):
        connection.execute("COMMIT")
        return
    try:
        # One message: the server gives the locks back also when this client stalls.
        connection.execute(f"{KEEP_OUT}; COMMIT; {LET_END}; {LET_IN}".encode())
    finally:
        if not connection.closed:
            connection.rollback()
            connection.execute(LET_IN)


def holders(connection: Connection) -> str:
    """Name the transactions in the way, as far as this role may see them."""
    rows = connection.cursor(row_factory=tuple_row).execute(HOLDERS).fetchall()
    if not rows:
        return "The transaction that held it is over."
    return "Transactions that use pulse: " + ", ".join(
        f"pid {pid} ({who})" for pid, who in rows
    )
