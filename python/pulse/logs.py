"""Structured logs: plain sentences for people, fields on the record for machines.

Every record of the loggers below "pulse" carries its facts as attributes (worker,
lane, kind, job_id, attempt, seconds, …) and all of them in record.fields.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulse.job import Job

log = logging.getLogger("pulse.worker")

# Producers choose names, notes and errors. A terminal obeys the controls in them, some
# turn the order of what follows, and a line break would begin a line of its own.
CONTROLS = dict.fromkeys(
    (
        *(*range(32), *range(127, 160), 0x061C, 0x200E, 0x200F),
        *(*range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    ),
    "\ufffd",
)


def log_event(level: int, message: str, **fields: Any) -> None:
    if log.isEnabledFor(level):
        log.log(level, message, extra={**fields, "fields": fields}, stacklevel=2)


def log_job(level: int, job: Job, words: str, **fields: Any) -> None:
    """Log how one run ended, with the job as fields."""
    if log.isEnabledFor(level):
        facts = {
            "job_id": job.id,
            "kind": job.kind,
            "lane": job.lane,
            "attempt": job.attempt,
        }
        kind = job.kind.translate(CONTROLS)
        message = f"job {job.id} ({kind}, attempt {job.attempt}) {words}"
        log_event(level, message, **facts, **fields)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object a line; ids are strings.

    Example:
        >>> import logging
        >>> from pulse.logs import JsonFormatter
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(JsonFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record: at, level, logger, message, its fields and the exception."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        entry: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in fields.items():
            entry[name] = str(value) if name in ("job_id", "lease") else value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
