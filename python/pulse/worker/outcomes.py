"""How a run ended, and how that is reported to the server.

Completions and failures travel with the next claim (pulse.exchange). A report may be
repeated: the same lease with the same verb succeeds again, so whatever was not
answered is sent once more.

Handlers may return and raise anything. returned and raised never raise, and what they
make holds only text that the server takes: one bad report must not hold up the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pulse
from pulse import errors
from pulse.job import Control
from pulse.options import to_interval_text, to_stored_json, to_text

if TYPE_CHECKING:
    from pulse.worker.run import Run

Verb = Literal["complete", "fail", "snooze", "release", "ack_cancel", "wait", "drop"]
LONGEST_ERROR = 100_000
# With the separator: pulse_app beside it is not ours.
PACKAGE = os.path.join(os.path.dirname(pulse.__file__), "")


class RemoteError(Exception):
    """What a handler raised in another process; its text is described() there."""


@dataclass(frozen=True)
class Outcome:
    """What to report: result is JSON, delay the interval of a snooze or retry."""

    verb: Verb
    result: str | None = None
    error: str | None = None
    delay: str | None = None
    fatal: bool = False

    @property
    def size(self) -> int:
        """About how much of a report it fills."""
        return len(self.result or "") + len(self.error or "")


COMPLETE = Outcome("complete", result="null")
RELEASE = Outcome("release")
ACK_CANCEL = Outcome("ack_cancel")
WAIT = Outcome("wait")
DROP = Outcome("drop")


def returned(control: Control, result: Any) -> Outcome:
    """The outcome of a handler that returned."""
    if control.verdict == "lost":
        return DROP
    if result is None:
        if not control.seen:
            return COMPLETE
        return stopped(control)
    # A child process has made it one already, where it would keep nobody waiting.
    return result if type(result) is Outcome else encoded(result)


def encoded(result: Any) -> Outcome:
    """A result as it is stored, or a failure that says why it cannot be."""
    try:
        return Outcome("complete", result=to_stored_json(result, "the result"))
    except errors.PulseError as error:
        return failure(str(error))
    except BaseException as error:
        # Of an object of the handler's that json asked for its members.
        return failure(f"the result cannot be written as JSON\n{described(error)}")


def failure(error: str, delay: str | None = None, fatal: bool = False) -> Outcome:
    return Outcome("fail", None, to_text(error, LONGEST_ERROR), delay, fatal)


def stopped(control: Control) -> Outcome:
    """The outcome of a handler that ended because it had to stop."""
    if control.verdict == "lost":
        return DROP
    if control.verdict == "cancel":
        return ACK_CANCEL
    if control.verdict == "deadline":
        return Outcome("fail", error="the run took longer than its max_runtime")
    return RELEASE


def raised(control: Control, error: BaseException) -> Outcome:
    """The outcome of a handler that raised."""
    try:
        return _raised(control, error)
    except BaseException as second:
        # A property or method of this exception raised: isinstance asks for __class__.
        return failure(undescribed(error, second))


def _raised(control: Control, error: BaseException) -> Outcome:
    if isinstance(error, errors.Suspended):
        return WAIT
    if control.verdict == "lost" or isinstance(error, errors.LeaseLost):
        return DROP
    if isinstance(error, (errors.Snooze, errors.RetryIn)):
        what = f"the delay of {type(error).__name__}"
        try:
            delay = to_interval_text(error.delay, what)
        except errors.InvalidArgument as bad:
            return failure(f"{described(error)}\n{bad.message}")
        if isinstance(error, errors.Snooze):
            return Outcome("snooze", delay=delay)
        return failure(described(error), delay)
    if isinstance(error, (errors.Cancelled, asyncio.CancelledError)):
        if control.must_stop:
            return stopped(control)
        fatal = isinstance(error, errors.Cancelled)
        return failure(described(error), fatal=fatal)
    return failure(described(error), fatal=isinstance(error, errors.Fatal))


def refused(outcome: Outcome, why: str) -> Outcome | None:
    """What to report instead of what the server refuses; None when nothing is left."""
    if outcome.verb != "fail":
        return failure(f"the {outcome.verb} of this run was refused: {why}")
    if outcome.delay is not None:
        text = f"{outcome.error}\nthe delay {outcome.delay} was refused: {why}"
        return failure(text, fatal=outcome.fatal)
    plain = failure("the error of this run was refused", fatal=outcome.fatal)
    return None if outcome == plain else plain


def described(error: BaseException) -> str:
    """The traceback from the handler on, without pulse's frames above it."""
    if isinstance(error, RemoteError):
        return str(error)
    if isinstance(error, errors.HandlerExit) and error.described is not None:
        return error.described
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as second:
        head = "Traceback (most recent call last):\n"
        frames = "".join(traceback.format_tb(trace))
        text = f"{head}{frames}{undescribed(error, second)}"
    return to_text(text.strip(), LONGEST_ERROR)


def undescribed(error: BaseException, second: BaseException) -> str:
    name, other = type(error).__qualname__, type(second).__qualname__
    return f"{name}: it has no text, since reading it raised {other}"


def completed(runs: Sequence[Run]) -> tuple[str, str]:
    """The arguments completed and done of pulse.exchange: without results, and with."""
    leases: list[str] = []
    reports: list[str] = []
    for run in runs:
        outcome = run.outcome
        if outcome is COMPLETE:
            leases.append(str(run.lease))
        elif outcome and outcome.verb == "complete":
            # A result is JSON already.
            reports.append(f'{{"lease":"{run.lease}","result":{outcome.result}}}')
    return f"{{{','.join(leases)}}}", f"[{','.join(reports)}]"


def failed(runs: Sequence[Run]) -> str:
    """The argument failed of pulse.exchange."""
    return json.dumps(
        [
            {
                "lease": str(run.lease),
                "error": outcome.error,
                "retry_in": outcome.delay,
                "fatal": outcome.fatal,
            }
            for run in runs
            if (outcome := run.outcome) and outcome.verb == "fail"
        ]
    )
