"""The answers about schedules and their runs (routes/schedules.py).

responses.py has the other answers.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pulse.web.schemas.responses import Moment


class Schedule(BaseModel):
    name: str
    kind: str
    payload: Any
    cron: str | None
    every: float | None
    at: Moment | None
    timezone: str | None
    options: Any
    catch_up: str | None
    catch_up_window: float | None
    next_at: Moment | None
    last_occurrence: Moment | None
    paused_at: Moment | None
    paused_by: str | None
    pause_reason: str | None
    last_error: str | None
    created_by: str | None
    created_at: Moment | None
    late: bool


class Schedules(BaseModel):
    schedules: list[Schedule]


class ScheduleRun(BaseModel):
    name: str
    occurrence: Moment | None
    job_id: str | None
    skipped: str | None
    handled_at: Moment | None


class ScheduleRuns(BaseModel):
    runs: list[ScheduleRun]
