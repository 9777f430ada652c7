"""Everything pulse raises, in one tree, and what a SQLSTATE means to a person.

    PulseError
    ├── Unavailable             the server does not answer, or cannot write
    ├── NotInstalled            there is no pulse in this database
    │   └── VersionTooOld       there is, but older than this package
    ├── PermissionDenied        the role was not given the access it needs
    │   └── OperatorOnly        PU011
    ├── InvalidRequest          PU0xx: repeated, it fails again
    │   ├── WrongIsolation      PU001
    │   ├── CalledByReplica     PU014: session_replication_role is replica
    │   ├── InvalidArgument     PU002, PU012 and what this package refuses itself
    │   │   ├── BadFilter       PU006
    │   │   ├── BadCron         PU007
    │   │   ├── UnknownTimeZone PU008
    │   │   └── UnknownAccess   PU009
    │   ├── TooLarge            PU003
    │   ├── NoSuchJob           PU004
    │   ├── NoSuchName          PU005, PU013
    │   ├── NoWatchdog          PU010
    │   └── NodeRefused         one of several databases without a number of its own
    ├── Conflict                PU1xx: the state changed; look again, then decide
    │   ├── LeaseLost           PU101
    │   ├── UniqueKeyTaken      PU102
    │   ├── JobIsRunning        PU103
    │   ├── WrongState          PU105
    │   ├── LockTimeout         PU106, PU109, PU110, PU111
    │   └── Contention          PU107
    ├── InternalError           PU9xx: a bug in pulse
    ├── TimedOut                also a TimeoutError: no signal came in time
    └── NoResult                result() has no result to return
        ├── JobDead
        ├── JobCancelled
        └── ResultTimeout       also a TimeoutError

Two functions read this tree from an error of the driver:

    translate(error)    what enqueue and the clients raise: the error of pulse, or None.
                        Connections, deadlocks and constraints stay the driver's.
    describe(error)     what a front end shows, for every error: message is the title,
                        detail the facts, hint the fix, http_status the answer of HTTP.
                        The class decides the rest (an exit code, a log level).

A handler chooses how its run ends by raising a HandlerExit:

    HandlerExit
    ├── Snooze(delay)           later, not a failed attempt
    ├── RetryIn(delay)          failed; try again after this pause
    ├── Fatal(message)          failed for good
    └── Cancelled               stopped because a cancel was requested

and job.wait_for with TimedOut, or with

    Suspended                   a BaseException: the job was released and will run again
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import psycopg

INSTALL = (
    "CREATE EXTENSION pulse; or, without extension files, run `pulse install`, in a "
    "Django project manage.py migrate."
)
UPDATE = (
    "ALTER EXTENSION pulse UPDATE; or, where pulse is the plain script or is missing, "
    "run `pulse install`."
)
GRANT = "SELECT pulse.grant_access('the_role', 'producer'); or 'worker', 'operator', …"


class PulseError(Exception):
    """The base of the tree: message, detail and hint of the server.

    sqlstate is the code of the error, if it has one; http_status is the answer of HTTP.

    Example:
        >>> with pulse.Client(dsn) as client:
        ...     try:
        ...         client.cancel(7)
        ...     except pulse.PulseError as error:
        ...         print(type(error).__name__, error.sqlstate, error.message)
        NoSuchJob PU004 job 7 does not exist
    """

    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)


class Unavailable(PulseError):
    http_status = 503


class NotInstalled(PulseError):
    http_status = 503


class VersionTooOld(NotInstalled): ...


class PermissionDenied(PulseError):
    http_status = 403


class OperatorOnly(PermissionDenied): ...


class InvalidRequest(PulseError):
    http_status = 422


class WrongIsolation(InvalidRequest): ...


class CalledByReplica(InvalidRequest):
    """The session applies changes of a subscription: the caller is unknown."""


class InvalidArgument(InvalidRequest): ...


class BadFilter(InvalidArgument): ...


class BadCron(InvalidArgument): ...


class UnknownTimeZone(InvalidArgument): ...


class UnknownAccess(InvalidArgument): ...


class TooLarge(InvalidRequest):
    http_status = 413


class NoSuchJob(InvalidRequest):
    http_status = 404


class NoSuchName(InvalidRequest):
    http_status = 404


class NoWatchdog(InvalidRequest): ...


class NodeRefused(InvalidRequest): ...


class Conflict(PulseError):
    http_status = 409


class LeaseLost(Conflict): ...


class UniqueKeyTaken(Conflict): ...


class JobIsRunning(Conflict): ...


class WrongState(Conflict): ...


class LockTimeout(Conflict): ...


class Contention(Conflict): ...


class InternalError(PulseError): ...


class NoResult(PulseError): ...


class JobDead(NoResult): ...


class JobCancelled(NoResult): ...


class ResultTimeout(NoResult, TimeoutError): ...


class HandlerExit(Exception):
    """Raised by a handler to choose how its run ends."""

    # Its traceback, when it was raised in another process.
    described: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Past __init__, which may ask for other arguments than those that are kept.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class Snooze(HandlerExit):
    """Release the job until delay has passed; this does not count as a failed attempt.

    Args:
        delay: Seconds, a timedelta, or an interval of PostgreSQL: '5 minutes'.

    Example:
        >>> @worker.handle("import")
        ... def import_file():
        ...     raise pulse.Snooze("5 minutes")
        >>> handle = import_file.enqueue(connection)
        >>> [done] = work_off(connection, worker)
        >>> done.outcome
        'snooze'
    """

    def __init__(self, delay: str | float | timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = delay


class RetryIn(HandlerExit):
    """The run failed; try again after delay instead of the backoff of the kind.

    Args:
        delay: Seconds, a timedelta, or an interval of PostgreSQL: '5 minutes'.
        message: Why, for operators who look at the job.

    Example:
        >>> @worker.handle("import")
        ... def import_file():
        ...     raise pulse.RetryIn(60, "the server asks to wait a minute")
        >>> handle = import_file.enqueue(connection)
        >>> [done] = work_off(connection, worker)
        >>> done.outcome
        'fail'
    """

    def __init__(self, delay: str | float | timedelta, message: str = "") -> None:
        super().__init__(message or f"to be retried in {delay}")
        self.delay = delay


class Fatal(HandlerExit):
    """The run failed, and another attempt would fail too: the job is dead.

    Example:
        >>> @worker.handle("import")
        ... def import_file():
        ...     raise pulse.Fatal("there is no such file")
        >>> handle = import_file.enqueue(connection)
        >>> [done] = work_off(connection, worker)
        >>> handle.result()
        Traceback (most recent call last):
        pulse.errors.JobDead: ...
    """


class Cancelled(HandlerExit):
    """The run stopped because a cancel was requested.

    A handler raises it when job.cancelled is true; to return None then does the same.

    Example:
        >>> @worker.handle("export")
        ... def export(job):
        ...     if job.cancelled:
        ...         raise pulse.Cancelled
        ...     return "all pages"
        >>> handle = export.enqueue(connection)
        >>> [done] = work_off(connection, worker)
        >>> done.result
        'all pages'
    """


class TimedOut(PulseError, TimeoutError):
    """No signal came in time."""


class Suspended(BaseException):
    """The job waits, and the server has released it: this run ends here.

    A BaseException, so that a handler's `except Exception` does not go on without it.
    job.sleep and job.wait_for raise it.
    """


BY_SQLSTATE: dict[str, type[PulseError]] = {
    "3F000": NotInstalled,
    "42883": VersionTooOld,
    "42P01": VersionTooOld,
    "42501": PermissionDenied,
    "PU001": WrongIsolation,
    "PU002": InvalidArgument,
    "PU003": TooLarge,
    "PU004": NoSuchJob,
    "PU005": NoSuchName,
    "PU006": BadFilter,
    "PU007": BadCron,
    "PU008": UnknownTimeZone,
    "PU009": UnknownAccess,
    "PU010": NoWatchdog,
    "PU011": OperatorOnly,
    "PU012": InvalidArgument,
    "PU013": NoSuchName,
    "PU014": CalledByReplica,
    "PU101": LeaseLost,
    "PU102": UniqueKeyTaken,
    "PU103": JobIsRunning,
    "PU105": WrongState,
    "PU106": LockTimeout,
    "PU107": Contention,
    "PU109": LockTimeout,
    "PU110": LockTimeout,
    "PU111": LockTimeout,
}

BY_CLASS: dict[str, type[PulseError]] = {
    "PU0": InvalidRequest,
    "PU1": Conflict,
    "PU9": InternalError,
    # PostgreSQL's own, for describe: data that no type can hold, limits of the server.
    "22": InvalidArgument,
    "54": InvalidRequest,
}

# Connection, shutdown, resources, rollback, locks, a standby, the system below.
TRANSIENT = ("08", "57", "53", "40", "55", "25", "58")

ABOUT_PULSE = re.compile(r"\bpulse\b|permission denied for (function|view)")

HINTS: dict[type[PulseError], str] = {
    NotInstalled: INSTALL,
    VersionTooOld: UPDATE,
    PermissionDenied: GRANT,
}


def sqlstate_of(error: BaseException) -> str | None:
    """Read the SQLSTATE: psycopg calls it sqlstate, psycopg2 pgcode."""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return code if isinstance(code, str) else None


def is_transient(error: BaseException) -> bool:
    """Whether the same statement on a new connection may succeed."""
    code = sqlstate_of(error)
    if code is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return code[:2] in TRANSIENT


def is_held(error: BaseException) -> bool:
    """Whether another session kept a lock for longer than lock_timeout."""
    return sqlstate_of(error) == "55P03"


def origin(error: BaseException) -> BaseException | None:
    """The driver's own error below SQLAlchemy's and Django's."""
    below: BaseException | None = error
    for _ in range(5):
        if below is None or sqlstate_of(below):
            return below
        below = getattr(below, "orig", None) or below.__cause__
    return None


def translate(error: BaseException) -> PulseError | None:
    """Return the error of pulse that an error of a driver is.

    Args:
        error: An error of psycopg, psycopg2, SQLAlchemy or Django.

    Returns:
        The error of pulse; None if the error is not about pulse.
    """
    source = origin(error)
    code = sqlstate_of(source) if source is not None else None
    if source is None or code is None:
        return None
    known = BY_SQLSTATE.get(code) or BY_CLASS.get(code[:3])
    if known is None:
        return None
    ours = _made(known, source)
    if code.startswith("PU"):
        return ours
    # Other classes count only when they are about pulse: a session may have flushed
    # statements of the caller's own before ours.
    if not ABOUT_PULSE.search(ours.message):
        return None
    ours.hint = HINTS[known]
    return ours


def describe(error: BaseException) -> PulseError:
    """Describe any error of the server or the driver in the terms of this tree.

    Args:
        error: Any exception.

    Returns:
        An error of pulse: message is the title, detail the facts, hint the fix.

    Example:
        >>> import psycopg
        >>> from pulse import errors
        >>> found = errors.describe(psycopg.OperationalError("connection refused"))
        >>> type(found).__name__, found.http_status
        ('Unavailable', 503)
    """
    if isinstance(error, PulseError):
        return error
    ours = translate(error)
    if ours is not None:
        return ours
    source = origin(error) or error
    code = sqlstate_of(source)
    if is_transient(source):
        known: type[PulseError] | None = Unavailable
    elif code is not None:
        known = BY_SQLSTATE.get(code) or BY_CLASS.get(code[:2])
    else:
        # Refused before it was sent: a text with a NUL, a number out of range.
        known = InvalidArgument if isinstance(source, psycopg.DataError) else None
    return _made(known or PulseError, source)


def _made(known: type[PulseError], source: BaseException) -> PulseError:
    diagnosis: Any = getattr(source, "diag", None)
    return known(
        getattr(diagnosis, "message_primary", None)
        or str(source).strip()
        or type(source).__name__,
        detail=getattr(diagnosis, "message_detail", None),
        hint=getattr(diagnosis, "message_hint", None),
        sqlstate=sqlstate_of(source),
    )


@contextmanager
def mapped() -> Iterator[None]:
    """Raise an error of pulse as its class in this tree."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
