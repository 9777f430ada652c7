"""Jobs: find them, look at one, and act on one or on many."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Depends, Query
from psycopg.types.json import Jsonb

from pulse.sql import operator
from pulse.web import queries
from pulse.web.access.caller import CurrentCaller, JobId
from pulse.web.database import Session, first
from pulse.web.problems import Problem
from pulse.web.schemas import requests, responses

if TYPE_CHECKING:
    from typing_extensions import LiteralString

router = APIRouter(tags=["jobs"])

Text = Annotated[str, Query(min_length=1, max_length=500)]
Before = Annotated[
    int,
    Query(ge=1, le=2**63 - 1, description="Go on below: `next` of the page before."),
]
Limit = Annotated[int, Query(ge=1, le=200)]
Since = Annotated[
    str,
    Query(min_length=1, max_length=100, description="An interval, or seconds."),
]
WhyBody = Annotated[requests.WithReason, Body()]


# -- finding ----------------------------------------------------------------------


async def page(
    db: Session, wanted: dict[str, Any], before: int | None, limit: int
) -> Any:
    """At most limit jobs below before, newest first. Reads a bounded number of rows."""
    values = {"filter": Jsonb(wanted), "before": before, "limit": limit}
    found = await db.rows(operator.FIND, **values)
    ids = [row["job_id"] for row in found if row["job_id"] is not None]
    searched_to = next((r["searched_to"] for r in found if r["searched_to"]), None)
    rows = await db.rows(queries.JOBS, job_ids=ids) if ids else []
    full = ids[-1] if len(ids) == limit else None
    return {"jobs": rows, "next": searched_to or full, "searched_to": searched_to}


async def job_filter(
    lane: Text | None = None,
    kind: Text | None = None,
    worker: Text | None = None,
    tag: Text | None = None,
    group_key: Text | None = None,
    flow: Text | None = None,
    enqueued_by: Text | None = None,
    error_like: Text | None = None,
    error_contains: Text | None = None,
    payload: Annotated[
        str | None, Query(max_length=10_000, description="JSON that it contains.")
    ] = None,
    payload_contains: Text | None = None,
    priority_above: requests.Priority | None = None,
    priority_below: requests.Priority | None = None,
    older_than: Since | None = None,
    newer_than: Since | None = None,
) -> dict[str, Any]:
    """As pulse.find_jobs takes it, without the state."""
    wanted = {name: value for name, value in locals().items() if value is not None}
    if payload is not None:
        try:
            wanted["payload"] = json.loads(payload)
        except ValueError as error:
            raise Problem(422, "payload is not JSON", str(error)) from error
    return wanted


Filter = Annotated[dict[str, Any], Depends(job_filter)]


@router.get("/jobs", response_model=responses.Jobs)
async def jobs(
    caller: CurrentCaller,
    wanted: Filter,
    state: Annotated[list[operator.State] | None, Query()] = None,
    limit: Limit = 50,
    before: Before | None = None,
) -> Any:
    """Jobs that match, newest first. `searched_to` says that the search read as much
    as one request may; go on with `next`."""
    if state:
        wanted["state"] = state
    async with caller.reading() as db:
        return await page(db, wanted, before, limit)


@router.get("/dead", response_model=responses.Jobs)
async def dead(
    caller: CurrentCaller,
    wanted: Filter,
    limit: Limit = 50,
    before: Annotated[
        str | None, Query(pattern=r"^[0-9T:.+-]{10,40}~\d{1,19}$")
    ] = None,
) -> Any:
    """Dead letters that match, the last to die first."""
    moment, _, job_id = (before or "").rpartition("~")
    below = {"before": moment or None, "before_job": job_id or None, "limit": limit}
    async with caller.reading() as db:
        found = await db.rows(queries.FIND_DEAD, filter=Jsonb(wanted), **below)
        rows = [row for row in found if row["job_id"] is not None]
        ids = [row["job_id"] for row in rows]
        jobs = await db.rows(queries.JOBS, job_ids=ids) if ids else []
    cut = next((row for row in found if row["searched_to"]), None)
    last = cut or (rows[-1] if len(rows) == limit else None)
    jobs.sort(key=lambda job: ids.index(job["job_id"]))
    return {
        "jobs": jobs,
        "next": last
        and f"{last['finished_at']}~{last['searched_to'] or last['job_id']}",
        "searched_to": cut and cut["searched_to"],
    }


@router.get("/dead/groups", response_model=responses.DeadGroups)
async def dead_groups(
    caller: CurrentCaller,
    wanted: Filter,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Any:
    """The last 5000 dead letters, those that match, by kind and error."""
    values = {"filter": Jsonb(wanted), "groups": limit}
    async with caller.reading() as db:
        return {"groups": await db.rows(queries.DEAD_GROUPS, **values)}


@router.get("/jobs/{job_id}", response_model=responses.JobPage)
async def job(caller: CurrentCaller, job_id: JobId) -> Any:
    """One job with its failed attempts, why it does not run, and who did what to it."""
    async with caller.reading() as db:
        found = await db.one(queries.JOB, job_id=job_id)
        why = await db.rows(operator.WHY, job_id=job_id)
        allowed = operator.sees_all(await db.rights())
        audit = await db.rows(queries.AUDIT_OF_JOB, job_id=job_id) if allowed else []
        if found is None:
            raise no_such_job(job_id)
        return {**found, "why": why, "audit": audit}


@router.get("/jobs/{job_id}/why", response_model=responses.Why)
async def why(caller: CurrentCaller, job_id: JobId) -> Any:
    """In order, every reason why a job is not running now."""
    async with caller.reading() as db:
        return {"why": await db.rows(operator.WHY, job_id=job_id)}


def no_such_job(job_id: int) -> Problem:
    return Problem(404, f"no job {job_id}", "Pruned meanwhile, or not yours.", "PU004")


# -- acting on one ----------------------------------------------------------------

Done = responses.Job | responses.JobState


async def act(
    caller: CurrentCaller, query: LiteralString, job_id: int, **values: object
) -> Any:
    """Do it, and answer with the job as it is then, if the caller still sees it."""
    async with caller.writing() as db:
        state = first(await db.one(query, job_id=job_id, **values))["state"]
        after = await db.one(queries.JOB, job_id=job_id)
        return after or {"job_id": str(job_id), "state": state}


@router.post("/jobs/{job_id}/cancel", response_model=Done)
async def cancel(
    caller: CurrentCaller,
    job_id: JobId,
    how: Annotated[requests.Cancel, Body()] = requests.NO_FORCE,
) -> Any:
    """A running job is asked to stop; with force its lease is taken away at once."""
    return await act(caller, operator.CANCEL, job_id, **how.model_dump())


@router.post("/jobs/{job_id}/approve", response_model=Done)
async def approve(
    caller: CurrentCaller, job_id: JobId, why: WhyBody = requests.NO_REASON
) -> Any:
    return await act(caller, operator.APPROVE, job_id, reason=why.reason)


@router.post("/jobs/{job_id}/reject", response_model=Done)
async def reject(
    caller: CurrentCaller, job_id: JobId, why: WhyBody = requests.NO_REASON
) -> Any:
    return await act(caller, operator.REJECT, job_id, reason=why.reason)


@router.post("/jobs/{job_id}/retry", response_model=Done)
async def retry(
    caller: CurrentCaller, job_id: JobId, why: WhyBody = requests.NO_REASON
) -> Any:
    return await act(caller, operator.RETRY, job_id, reason=why.reason)


@router.post("/jobs/{job_id}/run-now", response_model=Done)
async def run_now(
    caller: CurrentCaller, job_id: JobId, why: WhyBody = requests.NO_REASON
) -> Any:
    """A scheduled or retrying job is put in line now."""
    return await act(caller, operator.RUN_NOW, job_id, reason=why.reason)


@router.post("/jobs/{job_id}/reschedule", response_model=Done)
async def reschedule(
    caller: CurrentCaller, job_id: JobId, when: requests.Reschedule
) -> Any:
    """A job that waits runs at another time."""
    return await act(caller, operator.RESCHEDULE, job_id, **when.model_dump())


@router.post("/jobs/{job_id}/rerun", response_model=Done)
async def rerun(
    caller: CurrentCaller, job_id: JobId, why: WhyBody = requests.NO_REASON
) -> Any:
    """A job that has ended is enqueued once more: the answer is the new one."""
    async with caller.writing() as db:
        row = first(await db.one(operator.RERUN, job_id=job_id, reason=why.reason))
        return first(await db.one(queries.JOB, job_id=row["state"]))


@router.post("/jobs/{job_id}/move", response_model=Done)
async def move(caller: CurrentCaller, job_id: JobId, where: requests.Move) -> Any:
    return await act(caller, operator.MOVE, job_id, **where.model_dump())


@router.patch("/jobs/{job_id}/priority", response_model=Done)
async def reprioritize(
    caller: CurrentCaller, job_id: JobId, to: requests.NewPriority
) -> Any:
    return await act(caller, operator.REPRIORITIZE, job_id, **to.model_dump())


@router.delete("/jobs/{job_id}", status_code=204, response_model=None)
async def delete(
    caller: CurrentCaller,
    job_id: JobId,
    reason: Annotated[requests.Reason | None, Query()] = None,
) -> None:
    """Remove a finished job before its retention ends."""
    async with caller.writing() as db:
        await db.rows(operator.DELETE, job_id=job_id, reason=reason)


# -- acting on many ---------------------------------------------------------------

BULK: dict[str, LiteralString] = {
    "cancel": operator.CANCEL_WHERE,
    "retry": operator.RETRY_WHERE,
    "reprioritize": operator.REPRIORITIZE_WHERE,
    "move": operator.MOVE_WHERE,
    "run_now": operator.RUN_NOW_WHERE,
    "reschedule": operator.RESCHEDULE_WHERE,
    "rerun": operator.RERUN_WHERE,
    "discard": operator.DISCARD_WHERE,
    "approve": operator.APPROVE_WHERE,
    "reject": operator.REJECT_WHERE,
}


@router.post("/jobs/bulk", response_model=responses.BulkDone)
async def bulk(caller: CurrentCaller, wanted: requests.Bulk) -> Any:
    """Act on every job that the filter matches; unless dry_run is false, only count."""
    values = wanted.model_dump(exclude={"verb", "filter"})
    async with caller.writing() as db:
        query = BULK[wanted.verb]
        done = first(await db.one(query, filter=Jsonb(wanted.filter), **values))
        return {**done, "dry_run": wanted.dry_run}
