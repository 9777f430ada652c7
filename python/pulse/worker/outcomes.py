"""How a run ended, and how that is reported to the server.

Completions and failures travel with the next claim (pulse.exchange). A report may be
repeated: the same lease with the same verb succeeds again, so whatever was not
answered is sent once more.
"""

from __future__ import annotations

import asyncio
import json
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pulse
from pulse import errors
from pulse.job import Control, Job
from pulse.options import Duration, to_interval, to_json

Verb = Literal["complete", "fail", "snooze", "release", "ack_cancel", "drop"]
LONGEST_ERROR = 100_000
# With the separator: pulse_app beside it is not ours.
PACKAGE = os.path.join(os.path.dirname(pulse.__file__), "")


class RemoteError(Exception):
    """What a handler raised in another process; its text is described() there."""


@dataclass(frozen=True)
class Outcome:
    """What to report: result is JSON text, delay the pause of a snooze or retry."""

    verb: Verb
    result: str | None = None
    error: str | None = None
    delay: Duration | None = None
    fatal: bool = False


COMPLETE = Outcome("complete", result="null")
RELEASE = Outcome("release")
ACK_CANCEL = Outcome("ack_cancel")
DROP = Outcome("drop")


def returned(control: Control, result: Any) -> Outcome:
    """The outcome of a handler that returned."""
    if control.verdict == "lost":
        return DROP
    if result is None:
        if not control.seen:
            return COMPLETE
        return stopped(control)
    try:
        return Outcome("complete", result=to_json(result, "the result"))
    except errors.InvalidArgument as error:
        return Outcome("fail", error=str(error))


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
    if control.verdict == "lost" or isinstance(error, errors.LeaseLost):
        return DROP
    if isinstance(error, errors.Snooze):
        return Outcome("snooze", delay=error.delay)
    if isinstance(error, (errors.Cancelled, asyncio.CancelledError)):
        if control.must_stop:
            return stopped(control)
        fatal = isinstance(error, errors.Cancelled)
        return Outcome("fail", error=described(error), fatal=fatal)
    if isinstance(error, errors.RetryIn):
        return Outcome("fail", error=described(error), delay=error.delay)
    return Outcome(
        "fail", error=described(error), fatal=isinstance(error, errors.Fatal)
    )


def described(error: BaseException) -> str:
    """The traceback from the handler on, without pulse's frames above it."""
    if isinstance(error, RemoteError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    text = "".join(lines).replace("\0", "\ufffd").strip()
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= LONGEST_ERROR:
        return text
    return f"{text[:2000]}\n…\n{text[2000 - LONGEST_ERROR :]}"


def completed(reports: Sequence[tuple[Job, Outcome]]) -> str:
    """The argument done of pulse.exchange; results are JSON already."""
    each = (
        f'{{"lease":"{job.lease}","result":{outcome.result}}}'
        for job, outcome in reports
    )
    return f"[{','.join(each)}]"


def failed(reports: Sequence[tuple[Job, Outcome]]) -> str:
    """The argument failed of pulse.exchange."""
    return json.dumps(
        [
            {
                "lease": str(job.lease),
                "error": outcome.error,
                "retry_in": as_text(outcome.delay),
                "fatal": outcome.fatal,
            }
            for job, outcome in reports
        ]
    )


def as_text(delay: Duration | None) -> str | None:
    interval = to_interval(delay)
    if interval is None or isinstance(interval, str):
        return interval
    return f"{interval.total_seconds():.6f} seconds"
