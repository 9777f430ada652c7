"""Declarations: settings of kinds, and schedules, that an application states in code.

A worker with an application collects them from its tasks and schedules, and writes them
with pulse.reconcile when it starts. The server decides what becomes of each;
log_verdicts logs that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pulse.logs import log_event
from pulse.options import Duration, as_json, to_interval, to_interval_text, to_json

if TYPE_CHECKING:
    from pulse.tasks import Task

Backoff = Literal["quadratic", "exponential", "fixed", "none"]
SETTINGS = ("lane", "priority", "max_attempts", "max_runtime", "requires_approval")
"""Options of enqueue that a kind can have as settings."""


class KindSettings(TypedDict, total=False):
    """The settings that only a kind has; with the options above, those of set_kind."""

    backoff: Backoff | None
    backoff_base: Duration | None
    backoff_cap: Duration | None
    backoff_jitter: float | None
    lease_for: Duration | None
    max_delay: Duration | None
    rate: int | None
    rate_per: Duration | None


class ScheduleOptions(TypedDict, total=False):
    """Options of pulse.schedule besides name and kind; one of cron, every and at."""

    payload: Any
    cron: str | None
    every: Duration | None
    at: datetime | None
    timezone: str | None
    lane: str | None
    priority: int | None
    catch_up: Literal["skip", "last", "all"] | None
    catch_up_window: Duration | None
    max_attempts: int | None
    unique_key: str | None
    unique_for: Duration | None
    group_key: str | None
    requires_approval: bool | None
    tags: list[str] | None
    max_runtime: Duration | None
    headers: Mapping[str, Any] | None
    expires_in: Duration | None


DURATIONS = (
    *("every", "catch_up_window", "unique_for", "max_runtime", "expires_in"),
    *("backoff_base", "backoff_cap", "lease_for", "max_delay", "rate_per"),
)


@dataclass(frozen=True)
class Declarations:
    application: str
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def arguments(self, overwrite: bool = False) -> dict[str, Any]:
        """Return the arguments of pulse.reconcile."""
        return {
            "application": self.application,
            "kinds": to_json(_plain(self.kinds), "the settings of a kind"),
            "schedules": to_json(_plain(self.schedules), "a schedule"),
            "overwrite": overwrite,
        }


def kinds_of(tasks: Iterable[Task[Any, Any]]) -> dict[str, dict[str, Any]]:
    """The settings that tasks declare, by kind."""
    return {task.kind: dict(task.settings) for task in tasks if task.settings}


def _plain(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: as_json(
            {
                key: to_interval_text(to_interval(value, key), key)
                if key in DURATIONS and not isinstance(value, (str, timedelta))
                else value
                for key, value in settings.items()
                if value is not None
            }
        )
        for name, settings in declared.items()
    }


def log_verdicts(rows: Iterable[tuple[Any, ...]], worker: str) -> None:
    """Log a line for each change, and one for each declaration that did not apply."""
    for item, name, verdict, detail in rows:
        if verdict == "unchanged":
            continue
        facts = {"worker": worker, "item": item, "declared": name}
        if verdict in ("drift", "taken"):
            words = f"the {item} {name} is not as declared: {detail}"
            log_event(logging.WARNING, words, **facts)
        else:
            words = f"the {item} {name} was {verdict} as declared"
            log_event(logging.INFO, words, **facts)
