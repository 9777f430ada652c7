"""Everything pulse raises, in one tree, mapped from the SQLSTATE of the server.

    PulseError
    ├── NotInstalled            there is no pulse in this database
    │   └── VersionTooOld       there is, but older than this package
    ├── PermissionDenied        the role was not given the access it needs
    │   └── OperatorOnly        PU011
    ├── InvalidRequest          PU0xx: repeated, it fails again
    │   ├── WrongIsolation      PU001
    │   ├── InvalidArgument     PU002, PU012 and what this package refuses itself
    │   │   ├── BadFilter       PU006
    │   │   ├── BadCron         PU007
    │   │   ├── UnknownTimeZone PU008
    │   │   └── UnknownAccess   PU009
    │   ├── TooLarge            PU003
    │   ├── NoSuchJob           PU004
    │   ├── NoSuchName          PU005
    │   └── NoWatchdog          PU010
    ├── Conflict                PU1xx: the world changed; look again, then decide
    │   ├── LeaseLost           PU101
    │   ├── UniqueKeyTaken      PU102
    │   ├── JobIsRunning        PU103
    │   ├── WrongState          PU105
    │   ├── HeldUp              PU106, PU109, PU110
    │   └── KeptMoving          PU107
    ├── InternalError           PU9xx: a bug in pulse
    └── NoResult                what result() has to say instead of a result
        ├── JobDead
        ├── JobCancelled
        └── ResultTimeout       also a TimeoutError

Errors of other classes (connections, deadlocks, constraints) stay what the driver made
of them. A handler says how its run ends by raising an Ending:

    Ending
    ├── Snooze(delay)           later, not charged
    ├── RetryIn(delay)          failed; try again after this pause
    ├── Fatal(message)          failed for good
    └── Cancelled               stopped because a cancel was asked for
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

INSTALL = "CREATE EXTENSION pulse; or, without extension files, run `pulse install`."
UPDATE = "ALTER EXTENSION pulse UPDATE; or, for the plain script, run `pulse install`."
GRANT = "SELECT pulse.grant_access('the_role', 'producer'); or 'worker', 'operator', …"


class PulseError(Exception):
    """message, detail and hint as the server said them; sqlstate where there is one."""

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


class NotInstalled(PulseError): ...


class VersionTooOld(NotInstalled): ...


class PermissionDenied(PulseError): ...


class OperatorOnly(PermissionDenied): ...


class InvalidRequest(PulseError): ...


class WrongIsolation(InvalidRequest): ...


class InvalidArgument(InvalidRequest): ...


class BadFilter(InvalidArgument): ...


class BadCron(InvalidArgument): ...


class UnknownTimeZone(InvalidArgument): ...


class UnknownAccess(InvalidArgument): ...


class TooLarge(InvalidRequest): ...


class NoSuchJob(InvalidRequest): ...


class NoSuchName(InvalidRequest): ...


class NoWatchdog(InvalidRequest): ...


class Conflict(PulseError): ...


class LeaseLost(Conflict): ...


class UniqueKeyTaken(Conflict): ...


class JobIsRunning(Conflict): ...


class WrongState(Conflict): ...


class HeldUp(Conflict): ...


class KeptMoving(Conflict): ...


class InternalError(PulseError): ...


class NoResult(PulseError): ...


class JobDead(NoResult): ...


class JobCancelled(NoResult): ...


class ResultTimeout(NoResult, TimeoutError): ...


class Ending(Exception):
    """Raised by a handler to say how its run ends."""


class Snooze(Ending):
    """Give the job back until delay has passed, without charging the attempt."""

    def __init__(self, delay: str | float | timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = delay


class RetryIn(Ending):
    """The run failed; try again after delay instead of the backoff of the kind."""

    def __init__(self, delay: str | float | timedelta, message: str = "") -> None:
        super().__init__(message or f"to be retried in {delay}")
        self.delay = delay


class Fatal(Ending):
    """The run failed and no other one can do better: the job is dead."""


class Cancelled(Ending):
    """The run stopped because a cancel was asked for."""


BY_SQLSTATE: dict[str, type[PulseError]] = {
    "3F000": NotInstalled,
    "42883": VersionTooOld,
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
    "PU101": LeaseLost,
    "PU102": UniqueKeyTaken,
    "PU103": JobIsRunning,
    "PU105": WrongState,
    "PU106": HeldUp,
    "PU107": KeptMoving,
    "PU109": HeldUp,
    "PU110": HeldUp,
}

BY_CLASS: dict[str, type[PulseError]] = {
    "PU0": InvalidRequest,
    "PU1": Conflict,
    "PU9": InternalError,
}

ABOUT_PULSE = re.compile(r"\bpulse\b|permission denied for (function|view)")

HINTS: dict[type[PulseError], str] = {
    NotInstalled: INSTALL,
    VersionTooOld: UPDATE,
    PermissionDenied: GRANT,
}


def sqlstate_of(error: BaseException) -> str | None:
    """psycopg says sqlstate, psycopg2 pgcode, SQLAlchemy hides both in orig."""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return code if isinstance(code, str) else None


def origin(error: BaseException) -> BaseException | None:
    """The driver's own error below SQLAlchemy's and Django's."""
    below: BaseException | None = error
    for _ in range(5):
        if below is None or sqlstate_of(below):
            return below
        below = getattr(below, "orig", None) or below.__cause__
    return None


def translate(error: BaseException) -> PulseError | None:
    """What the error is in this tree; None when it is none of ours."""
    source = origin(error)
    code = sqlstate_of(source) if source is not None else None
    if source is None or code is None:
        return None
    diagnosis: Any = getattr(source, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or str(source)
    known = BY_SQLSTATE.get(code) or BY_CLASS.get(code[:3])
    # Other classes count only when they are about pulse: a session may have flushed
    # statements of the caller's own before ours.
    if known is None or not (code.startswith("PU") or ABOUT_PULSE.search(message)):
        return None
    return known(
        message,
        detail=getattr(diagnosis, "message_detail", None),
        hint=getattr(diagnosis, "message_hint", None)
        if code.startswith("PU")
        else HINTS.get(known),
        sqlstate=code,
    )


@contextmanager
def mapped() -> Iterator[None]:
    """Raise the errors of pulse as what they are in this tree."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
