"""All nodes at a glance: each by itself, lanes added up, running jobs, and metrics.

Only an app of several databases has these routes (web/fleet.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulse.web import queries
from pulse.web.access.guard import IDENTITY
from pulse.web.database import Session, first
from pulse.web.fleet import Answer, Fleet
from pulse.web.routes.metrics import Metrics, read
from pulse.web.schemas.nodes import Nodes

router = APIRouter(tags=["nodes"])
metrics_router = APIRouter(tags=["metrics"])
ADDED = ("used", "depth", "delayed", "throughput")


async def overview(db: Session) -> Any:
    return first(await db.one(queries.OVERVIEW, lane=None))


async def ask_all(request: Request, question: Any) -> list[Answer]:
    fleet: Fleet = request.app.state.fleet
    return await fleet.ask(request.scope[IDENTITY].role, question)


@router.get("/nodes", response_model=Nodes)
async def nodes(request: Request) -> Any:
    """Every node, or why it did not answer; lanes by node and added up; what runs."""
    answers = await ask_all(request, overview)
    answered = [answer for answer in answers if answer.problem is None]
    lanes: dict[str, list[dict[str, Any]]] = {}
    for answer in answered:
        for lane in answer.found["lanes"]:
            lanes.setdefault(lane["name"], []).append(
                {**lane, "node": answer.node.number}
            )
    running = [
        {**job, "node": answer.node.number}
        for answer in answered
        for job in answer.found["running"]
    ]
    return {
        "nodes": [row(answer) for answer in answers],
        "lanes": [
            {"name": name, "all": added(rows), "nodes": rows}
            for name, rows in sorted(lanes.items())
        ],
        "running": sorted(running, key=lambda job: job["started_at"])[:200],
    }


def row(answer: Answer) -> dict[str, Any]:
    found = answer.found or {"lanes": [], "workers": None, "paused": []}
    sums = {name: sum(lane[name] for lane in found["lanes"]) for name in ADDED}
    return {
        "place": answer.node.place,
        "node": answer.node.number,
        "state": answer.state,
        "problem": answer.problem,
        "hint": answer.hint,
        **({} if answer.problem else sums),
        "workers": found["workers"],
        "paused": len(found["paused"]),
    }


def added(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    slots = [lane["max_slots"] for lane in rows]
    ages = [lane["oldest_ready_seconds"] or 0 for lane in rows]
    return {
        "name": rows[0]["name"],
        "max_slots": None if None in slots else sum(slots),
        **{name: sum(lane[name] for lane in rows) for name in ADDED},
        "depth_estimated": any(lane["depth_estimated"] for lane in rows),
        "oldest_ready_seconds": max(ages) or None,
    }


# -- metrics --------------------------------------------------------------------------


@metrics_router.get("/metrics", response_class=Metrics)
async def metrics(request: Request) -> Metrics:
    """As of one database, every series with the label `node`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Labelled(await ask_all(request, read)))
    return Metrics(await run_in_threadpool(generate_latest, registry))


class Labelled(Collector):
    """The series of all nodes, those of one name together, as the format wants it."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(
            "pulse_node_up",
            "Whether the database of this DSN answered.",
            labels=["place"],
        )
        families: dict[str, Metric] = {}
        for answer in self._answers:
            up.add_metric([answer.node.place], float(answer.problem is None))
            if answer.problem is not None:
                continue
            label = {"node": str(answer.node.number)}
            for metric in answer.found.collect():
                family = families.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type)
                )
                family.samples += [
                    sample._replace(labels={**label, **sample.labels})
                    for sample in metric.samples
                ]
        yield up
        yield from families.values()
