"""GET /metrics: the queue as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from pulse.sql import operator
from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.database import first

router = APIRouter(tags=["metrics"])

LEVELS = {"ok": 0, "warn": 1, "fail": 2}

# Name, column of a lane, what it says.
LANE_GAUGES = (
    ("pulse_lane_slots", "max_slots", "Jobs that may run at once; absent: no limit."),
    ("pulse_lane_running", "used", "Jobs that run."),
    ("pulse_lane_ready", "depth", "Jobs in line; an estimate above 10000."),
    ("pulse_lane_delayed", "delayed", "Jobs that are not due yet."),
    (
        "pulse_lane_oldest_ready_seconds",
        "oldest_ready_seconds",
        "How long the oldest job has stood in line; absent: none does.",
    ),
    (
        "pulse_lane_finished_per_minute",
        "throughput",
        "Jobs that finished a minute, over the last five.",
    ),
    ("pulse_lane_enabled", "enabled", "Whether the lane is enabled."),
    ("pulse_lane_drained", "drained", "Whether the lane is drained."),
)


class Metrics(PlainTextResponse):
    media_type = "text/plain; version=0.0.4"


@router.get(
    "/metrics",
    response_class=Metrics,
    responses={
        200: {
            "description": "Prometheus text",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def metrics(caller: CurrentCaller) -> Metrics:
    """Lanes, workers, pauses and health checks as Prometheus text."""
    async with caller.reading() as db:
        now = first(await db.one(queries.OVERVIEW, lane=None))
        checks = await db.rows(operator.HEALTH)
    return Metrics("\n".join(lines(now, checks)) + "\n")


def lines(now: Mapping[str, Any], checks: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for name, column, said in LANE_GAUGES:
        yield from head(name, said)
        for lane in now["lanes"]:
            if lane[column] is not None:
                yield sample(name, lane[column], lane=lane["name"])
    yield from head(
        "pulse_lane_held", "How many holds keep the lane from being claimed."
    )
    for lane in now["lanes"]:
        holds = len(lane["paused_by"] or ())
        yield sample("pulse_lane_held", holds, lane=lane["name"])
    yield from head("pulse_workers", "Workers seen in the last 90 seconds.")
    yield sample("pulse_workers", now["workers"])
    yield from head("pulse_holds", "Pauses and drained lanes.")
    yield sample("pulse_holds", len(now["paused"]))
    yield from head(
        "pulse_health", "Each check of pulse.health(): 0 ok, 1 warn, 2 fail."
    )
    for check in checks:
        level = LEVELS.get(check["status"], 2)
        yield sample("pulse_health", level, check=check["check_name"])


def head(name: str, said: str) -> Iterable[str]:
    yield f"# HELP {name} {said}"
    yield f"# TYPE {name} gauge"


def sample(name: str, value: float, **labels: str) -> str:
    quoted = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    return f"{name}{{{quoted}}} {float(value)!r}" if quoted else f"{name} {value}"


def escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
