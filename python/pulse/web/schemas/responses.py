"""The answers, as the OpenAPI document describes them.

FastAPI checks what a route returns against them. Ids and moments are text, durations
seconds.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class ProblemDetails(BaseModel):
    type: str
    title: str
    status: int
    detail: str | None
    sqlstate: str | None
    hint: str | None


class Me(BaseModel):
    user: str
    role: str
    database: str
    rights: list[str]
    version: str | None
    streams: bool = True
    signed_in: bool = False


class Verb(BaseModel):
    """arguments: name, type, required, default, and limits by unit."""

    verb: str
    arguments: list[dict[str, Any]]
    access: list[str]
    states: list[str] | None


class Verbs(BaseModel):
    verbs: list[Verb]


class LaneGlance(BaseModel):
    name: str
    max_slots: int | None = None
    used: int = 0
    depth: int = 0
    depth_estimated: bool = False
    delayed: int = 0
    oldest_ready_seconds: float | None = None
    throughput: float = 0
    enabled: bool = True
    drained: bool = False
    paused_by: list[str] | None = None
    # Whether its jobs stand in groups.
    grouped: bool = False
    recent: list[float] | None = []


class Lane(LaneGlance):
    settings: dict[str, Any] = {}


class Lanes(BaseModel):
    lanes: list[Lane]
    # Of a lane that was never set.
    defaults: dict[str, Any]


class Group(BaseModel):
    """Of the jobs without a key, group_key is empty; 1001 waiting are more."""

    group_key: str
    state: str
    waiting: int
    running: int
    max_slots: int | None
    held_by: str | None
    held_at: Moment | None
    reason: str | None
    rate: int | None
    rate_per: float | None
    free_at: Moment | None


class Groups(BaseModel):
    groups: list[Group]


class Kind(BaseModel):
    name: str
    ready: int = 0
    ready_estimated: bool = False
    running: int = 0
    oldest_ready_at: Moment | None = None
    ready_in: list[str] = []
    workers: int = 0
    schedules: int = 0
    settings: dict[str, Any] = {}


class Kinds(BaseModel):
    kinds: list[Kind]


class FlowNode(BaseModel):
    """The jobs of a flow that have one name, or one kind and no name."""

    name: str
    kind: str
    jobs: int
    blocked: int
    awaiting_approval: int
    scheduled: int
    ready: int
    running: int
    retrying: int
    completed: int
    dead: int
    cancelled: int
    after: list[str]
    first_at: Moment | None
    last_at: Moment | None
    first_job: str


class Flow(BaseModel):
    flow: str
    nodes: list[FlowNode]
    more: bool


class Hold(BaseModel):
    lane: str | None
    holder: str
    reason: str | None
    held_by: str | None
    held_at: Moment | None


class Held(BaseModel):
    changed: bool
    paused: list[Hold]


class Running(BaseModel):
    job_id: str
    lane: str
    kind: str
    priority: int
    worker: str | None
    attempt: int
    failures: int
    started_at: Moment | None
    running_seconds: float | None
    lease_until: Moment | None
    deadline: Moment | None
    cancel_by: Moment | None
    cancel_reason: str | None
    progress: float | None
    progress_note: str | None


class Slots(BaseModel):
    name: str
    used: int
    max_slots: int | None
    depth: int


class Status(BaseModel):
    utilisation: float | None
    used: int
    slots: int | None
    depth: int
    lanes: list[Slots]
    running: list[Running]
    workers: int
    paused: list[Hold]
    at: Moment


class JobState(BaseModel):
    """What is left to see of a job that its caller may no longer see."""

    job_id: str
    state: str


class NewJob(BaseModel):
    job_id: str


class JobSummary(JobState):
    lane: str
    kind: str
    priority: int
    attempts: int
    failures: int
    max_attempts: int
    run_at: Moment | None
    enqueued_at: Moment | None
    enqueued_by: str | None
    ready_at: Moment | None
    waiting_for: float | None
    approval_until: Moment | None
    worker: str | None
    started_at: Moment | None
    lease_until: Moment | None
    deadline: Moment | None
    cancel_by: Moment | None
    progress: float | None
    progress_note: str | None
    finished_at: Moment | None
    ended_by: str | None
    max_runtime: float | None
    unique_key: str | None
    group_key: str | None
    tags: list[str | None] | None
    rerun_of: str | None
    flow: str | None
    name: str | None
    waits_for: str | None
    last_error: str | None
    payload: Any


class Job(JobSummary):
    result: Any
    attempts_log: list[dict[str, Any]]


class WhyNot(BaseModel):
    position: int
    reason: str


class AuditEntry(BaseModel):
    entry: str
    at: Moment | None
    who: str
    verb: str
    job_id: str | None
    lane: str | None
    before: Any
    after: Any
    reason: str | None


class JobPage(Job):
    why: list[WhyNot]
    audit: list[AuditEntry]


class Why(BaseModel):
    why: list[WhyNot]


class Jobs(BaseModel):
    jobs: list[JobSummary]
    next: str | None
    searched_to: str | None


class BulkDone(BaseModel):
    done: int
    remaining: int
    dry_run: bool


class Worker(BaseModel):
    worker: str
    lanes: list[str] | None
    kinds: list[str] | None
    seen_at: Moment | None
    seen_seconds: float | None
    running: int
    seen_by: str | None
    live: bool


class Workers(BaseModel):
    workers: list[Worker]


class Check(BaseModel):
    check_name: str
    status: str
    figure: str | None
    advice: str | None
    # Filters: the jobs that it is about.
    jobs: list[dict[str, Any]] | None


class Health(BaseModel):
    checks: list[Check]


class DeadGroup(BaseModel):
    kind: str
    error: str | None
    # The filter that selects these jobs.
    error_like: str | None
    jobs: int
    lanes: list[str]
    first_at: Moment | None
    last_at: Moment | None
    last_job: str


class DeadGroups(BaseModel):
    groups: list[DeadGroup]


class Count(BaseModel):
    jobs: int
    # There are more than were counted.
    more: bool


class ScheduleProblem(BaseModel):
    name: str
    kind: str
    next_at: Moment | None
    last_error: str | None
    late: bool


class FailingKind(BaseModel):
    kind: str
    failed: int
    started: int
    dead: int


class Step(BaseModel):
    at: Moment
    enqueued: int
    started: int
    completed: int
    failed: int
    dead: int
    retried: int
    cancelled: int
    reaped: int
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p95: float | None
    run_p99: float | None
    ready: int | None
    running: int | None


class History(BaseModel):
    step_seconds: int
    rows: list[Step]


class Summary(BaseModel):
    counts: dict[str, Count]
    problems: list[Check]
    dead: list[DeadGroup]
    schedules: list[ScheduleProblem]
    failing: list[FailingKind]
    at: Moment


class Audit(BaseModel):
    audit: list[AuditEntry]
    next: str | None
