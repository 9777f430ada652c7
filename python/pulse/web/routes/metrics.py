"""GET /metrics: the queue as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
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
    registry = CollectorRegistry()
    registry.register(Queue(now, checks))
    return Metrics(generate_latest(registry))


class Queue(Collector):
    """What one request saw of the queue."""

    def __init__(
        self, now: Mapping[str, Any], checks: Sequence[Mapping[str, Any]]
    ) -> None:
        self._now = now
        self._checks = checks

    def collect(self) -> Iterable[GaugeMetricFamily]:
        lanes = self._now["lanes"]
        for name, column, help_text in LANE_GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=["lane"])
            for lane in lanes:
                if lane[column] is not None:
                    gauge.add_metric([lane["name"]], float(lane[column]))
            yield gauge
        held = GaugeMetricFamily(
            "pulse_lane_held",
            "How many pauses keep the lane from being claimed.",
            labels=["lane"],
        )
        for lane in lanes:
            held.add_metric([lane["name"]], len(lane["paused_by"] or ()))
        yield held
        yield GaugeMetricFamily(
            "pulse_workers",
            "Workers seen in the last two minutes.",
            value=self._now["workers"],
        )
        yield GaugeMetricFamily(
            "pulse_holds", "Pauses and drained lanes.", value=len(self._now["paused"])
        )
        health = GaugeMetricFamily(
            "pulse_health",
            "Each check of pulse.health(): 0 ok, 1 warn, 2 fail.",
            labels=["check"],
        )
        for check in self._checks:
            health.add_metric([check["check_name"]], LEVELS.get(check["status"], 2))
        yield health
