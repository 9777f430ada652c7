"""GET /metrics: the queue as Prometheus reads it.

Counters and histograms are pulse.counters; gauges have the values of now. A series that
has no value yet is zero, not absent: if it began with the first failure, it would have
no rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse

from pulse.sql import operator, producer
from pulse.web import queries
from pulse.web.access.caller import CurrentCaller
from pulse.web.database import Session, first

router = APIRouter(tags=["metrics"])

LEVELS = {"ok": 0, "warn": 1, "fail": 2}
Row = Mapping[str, Any]

# Name, column of a lane, help text.
LANE_GAUGES = (
    ("pulse_lane_slots", "max_slots", "Jobs that may run at once; absent: no limit."),
    ("pulse_lane_running", "used", "Jobs that run."),
    ("pulse_lane_ready", "depth", "Jobs in line; an estimate above 10000."),
    ("pulse_lane_delayed", "delayed", "Jobs that are not due yet."),
    (
        "pulse_lane_oldest_ready_seconds",
        "oldest_ready_seconds",
        "How long the oldest job has stood in line.",
    ),
    (
        "pulse_lane_finished_per_minute",
        "throughput",
        "Jobs that finished a minute, over the last five.",
    ),
    ("pulse_lane_enabled", "enabled", "Whether the lane is enabled."),
    ("pulse_lane_drained", "drained", "Whether the lane is drained."),
)
# Of these gauges an unknown value is not zero.
MAY_BE_ABSENT = {"max_slots"}

# Name, column of a kind, help text.
KIND_GAUGES = (
    ("pulse_kind_ready", "ready", "Jobs in line; an estimate where they are many."),
    ("pulse_kind_running", "running", "Jobs that run."),
    (
        "pulse_kind_oldest_ready_seconds",
        "oldest_ready_seconds",
        "How long the job has stood in line that is claimed next.",
    ),
    (
        "pulse_kind_workers",
        "workers",
        "Workers seen in the last two minutes that take this kind.",
    ),
)

# Name, column of pulse.counters, help text.
COUNTERS = (
    ("pulse_jobs_enqueued", "enqueued", "Jobs that were enqueued."),
    ("pulse_runs_started", "started", "Runs that began: claims."),
    ("pulse_jobs_completed", "completed", "Jobs that completed."),
    ("pulse_runs_failed", "failed", "Runs that failed, lost workers included."),
    ("pulse_jobs_dead", "dead", "Jobs that failed for good."),
    (
        "pulse_jobs_retried",
        "retried",
        "Jobs put back to run again, after a failure or by retry.",
    ),
    ("pulse_jobs_cancelled", "cancelled", "Jobs that were cancelled."),
    (
        "pulse_runs_reaped",
        "reaped",
        "Runs that ended because the lease lapsed or max_runtime was over.",
    ),
)
HISTOGRAMS = (
    ("pulse_job_wait_seconds", "wait", "From being ready to the start of the run."),
    ("pulse_run_seconds", "run", "How long completed and failed runs took."),
)

# Name, gauge of pulse.gauges(), its label, help text.
GAUGES = (
    (
        "pulse_lane_dead",
        "dead",
        "lane",
        "Dead letters; of more than 100,000 an estimate.",
    ),
    (
        "pulse_lane_workers",
        "workers",
        "lane",
        "Workers seen in the last two minutes that take this lane.",
    ),
    (
        "pulse_retention_lag_seconds",
        "retention_lag_seconds",
        None,
        "How much older than its retention the oldest finished job is.",
    ),
    (
        "pulse_schedule_lag_seconds",
        "schedule_lag_seconds",
        None,
        "How late the latest schedule is.",
    ),
    ("pulse_tick_age_seconds", "tick_age_seconds", None, "Since the last tick."),
    (
        "pulse_tick_seconds",
        "tick_seconds",
        "part",
        "How long each part of tick took when it was last done.",
    ),
    (
        "pulse_oldest_snapshot_seconds",
        "oldest_snapshot_seconds",
        None,
        "For how long an open transaction has kept vacuum from removing dead rows.",
    ),
    (
        "pulse_oldest_producer_seconds",
        "oldest_producer_seconds",
        None,
        "For how long a transaction that has put a job into a lane has been open.",
    ),
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
    """Counters, histograms, lanes, workers, maintenance and health for Prometheus."""
    async with caller.reading() as db:
        queue = await read(db)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(queue)
    # Thousands of series take a while to write down.
    return Metrics(await run_in_threadpool(generate_latest, registry))


async def read(db: Session) -> Queue:
    return Queue(
        first(await db.one(queries.OVERVIEW, lane=None)),
        await db.rows(operator.HEALTH),
        await db.rows(operator.COUNTERS),
        await db.rows(operator.GAUGES),
        await db.rows(queries.KIND_GAUGES),
        first(await db.one(operator.HISTOGRAM_BOUNDS))["bounds"],
        first(await db.one(producer.NODE)),
    )


class Queue(Collector):
    """The values of the queue at one request, as a collector of prometheus_client."""

    def __init__(
        self,
        now: Row,
        checks: Sequence[Row],
        counters: Sequence[Row],
        gauges: Sequence[Row],
        kinds: Sequence[Row],
        bounds: Sequence[float],
        node: Row,
    ) -> None:
        self._now = now
        self._all_lanes = all_lanes(now, counters)
        self._checks = checks
        self._counters = counters
        self._gauges = gauges
        self._kinds = kinds
        self._node = node
        self._bounds = [*(f"{bound:g}" for bound in bounds), "+Inf"]

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would read everything once more."""
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._counted()
        yield from self._lanes()
        yield from self._each_kind()
        yield from self._figures()
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
        node = GaugeMetricFamily(
            "pulse_node_info",
            "Which of several databases this is, and pulse.node_state().",
            labels=["node", "state"],
        )
        node.add_metric([str(self._node["node"]), self._node["node_state"]], 1)
        yield node

    def _counted(self) -> Iterable[Metric]:
        for name, column, help_text in COUNTERS:
            counter = CounterMetricFamily(name, help_text, labels=["lane", "kind"])
            for row in self._counters:
                counter.add_metric([row["lane"], row["kind"]], row[column])
            yield counter
        for name, column, help_text in HISTOGRAMS:
            histogram = HistogramMetricFamily(name, help_text, labels=["lane", "kind"])
            for row in self._counters:
                upto = map(float, accumulate(row[f"{column}_counts"]))
                histogram.add_metric(
                    [row["lane"], row["kind"]],
                    list(zip(self._bounds, upto, strict=True)),
                    row[f"{column}_seconds"],
                )
            yield histogram

    def _lanes(self) -> Iterable[Metric]:
        lanes = self._all_lanes
        for name, column, help_text in LANE_GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=["lane"])
            for lane in lanes:
                if lane[column] is not None or column not in MAY_BE_ABSENT:
                    gauge.add_metric([lane["name"]], float(lane[column] or 0))
            yield gauge
        held = GaugeMetricFamily(
            "pulse_lane_held",
            "How many pauses keep the lane from being claimed.",
            labels=["lane"],
        )
        for lane in lanes:
            held.add_metric([lane["name"]], len(lane["paused_by"] or ()))
        yield held

    def _each_kind(self) -> Iterable[Metric]:
        found: dict[str, Row] = {row["kind"]: {} for row in self._counters}
        found.update((row["kind"], row) for row in self._kinds)
        for name, column, help_text in KIND_GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=["kind"])
            for kind, row in found.items():
                gauge.add_metric([kind], float(row.get(column) or 0))
            yield gauge

    def _figures(self) -> Iterable[Metric]:
        for name, wanted, label, help_text in GAUGES:
            found = {
                row["label"]: row["value"]
                for row in self._gauges
                if row["gauge"] == wanted
            }
            if label is None:
                yield GaugeMetricFamily(name, help_text, value=found.get(None, 0))
                continue
            if label == "lane":
                zeros = {lane["name"]: 0.0 for lane in self._all_lanes}
                found = {**zeros, **found}
            gauge = GaugeMetricFamily(name, help_text, labels=[label])
            for key, value in found.items():
                gauge.add_metric([key], value)
            yield gauge


def all_lanes(now: Row, counters: Sequence[Row]) -> list[Row]:
    """Return the lanes, and those of which only counters are left.

    The latter are empty, and open unless everything is paused.
    """
    names = {lane["name"] for lane in now["lanes"]}
    left = dict.fromkeys(column for _, column, _ in LANE_GAUGES)
    gone = {row["lane"] for row in counters} - names - {""}
    paused_by = [hold["holder"] for hold in now["paused"] if hold["lane"] is None]
    return [
        *now["lanes"],
        *(
            {**left, "name": name, "enabled": True, "paused_by": paused_by}
            for name in sorted(gone)
        ),
    ]
