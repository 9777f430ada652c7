"""The answers about several databases on one page (routes/nodes.py).

responses.py has the answers about one database.
"""

from __future__ import annotations

from pydantic import BaseModel

from pulse.web.schemas.responses import LaneGlance, Running


class LaneOfNode(LaneGlance):
    node: int


class LaneOfAll(BaseModel):
    name: str
    all: LaneGlance
    nodes: list[LaneOfNode]


class NodeGlance(BaseModel):
    """One that did not answer has a problem and no figures."""

    place: str
    node: int | None
    state: str | None
    problem: str | None
    hint: str | None
    used: int | None = None
    depth: int | None = None
    delayed: int | None = None
    throughput: float | None = None
    workers: int | None
    paused: int


class RunningInNode(Running):
    node: int


class Nodes(BaseModel):
    nodes: list[NodeGlance]
    lanes: list[LaneOfAll]
    running: list[RunningInNode]
