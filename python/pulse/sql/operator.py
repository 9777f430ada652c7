"""The statements of operators; the command line and the web app share them.

Ids leave the database as text.
"""

from collections.abc import Collection
from typing import Literal, get_args

State = Literal[
    "blocked",
    "awaiting_approval",
    "scheduled",
    "ready",
    "running",
    "retrying",
    "completed",
    "dead",
    "cancelled",
]
STATES: tuple[State, ...] = get_args(State)

# -- declarations -----------------------------------------------------------------

RECONCILE = """
SELECT r.item, r.name, r.verdict, r.detail
FROM pulse.reconcile(
    application => %(application)s,
    kinds => CAST(%(kinds)s AS jsonb),
    schedules => CAST(%(schedules)s AS jsonb),
    overwrite => %(overwrite)s
) AS r"""

# -- access -----------------------------------------------------------------------

# A role that was given nothing may not ask either: it gets 42501, which is an answer.
MY_ACCESS = "SELECT a.access FROM pulse.my_access() AS a (access)"


def sees_all(rights: Collection[str]) -> bool:
    """Whether these rights show every job, every lane and the audit."""
    return "viewer" in rights


# -- lanes and pauses -------------------------------------------------------------

# A lane is known by its jobs, finished ones included, its settings, a kind that names
# it, a pause, or a worker that takes it.
LANE_IS_KNOWN = """
    SELECT
        EXISTS (SELECT FROM pulse.lanes AS l WHERE l.name = %(lane)s)
        OR EXISTS (SELECT FROM pulse.workers AS w WHERE %(lane)s = ANY (w.lanes))
        OR EXISTS (
            SELECT
            FROM pulse.find_jobs(
                filter => pg_catalog.jsonb_build_object('lane', %(lane)s::text),
                max_jobs => 1
            ) AS f
            WHERE f.job_id IS NOT NULL
        ) AS known
"""

DRAIN = """
    SELECT pulse.drain_lane(
        lane => %(lane)s, reason => %(reason)s, new => %(new)s
    ) AS changed
"""
RESUME_LANE = """
    SELECT pulse.resume_lane(lane => %(lane)s, reason => %(reason)s) AS changed
"""
PAUSE = """
    SELECT pulse.pause(
        holder => %(holder)s, reason => %(reason)s, lane => %(lane)s, new => %(new)s
    ) AS changed
"""
RESUME = "SELECT pulse.resume(holder => %(holder)s, lane => %(lane)s) AS changed"

HOLDS = """
    SELECT h.lane, h.holder, h.reason, h.held_by::text AS held_by, h.held_at
    FROM pulse.pause_status() AS h
"""

# -- seeing -----------------------------------------------------------------------

# An older pulse has no column jobs.
HEALTH = """
    SELECT h.check_name, h.status, h.figure, h.advice, to_jsonb(h) -> 'jobs' AS jobs
    FROM pulse.health() AS h
"""

WHY = "SELECT w.position, w.reason FROM pulse.why(job_id => %(job_id)s) AS w"

FIND = """
    SELECT f.job_id::text AS job_id, f.searched_to::text AS searched_to
    FROM pulse.find_jobs(
        filter => %(filter)s, before => %(before)s, max_jobs => %(limit)s
    ) AS f
"""

# -- figures ----------------------------------------------------------------------

COUNTERS = """
    SELECT
        c.lane, c.kind, c.enqueued, c.started, c.completed, c.failed, c.dead, c.retried,
        c.cancelled, c.reaped, c.wait_seconds, c.wait_counts, c.run_seconds,
        c.run_counts
    FROM pulse.counters AS c
"""
GAUGES = "SELECT g.gauge, g.label, g.value FROM pulse.gauges() AS g"
HISTOGRAM_BOUNDS = "SELECT pulse.histogram_bounds() AS bounds"

# -- schedules --------------------------------------------------------------------

SCHEDULE_RUNS = """
    SELECT r.name, r.occurrence, r.job_id::text AS job_id, r.skipped, r.handled_at
    FROM pulse.schedule_runs AS r
    WHERE (%(name)s::text IS NULL OR r.name = %(name)s)
    ORDER BY r.occurrence DESC
    LIMIT %(limit)s
"""

SCHEDULE_IS_KNOWN = """
    SELECT
        EXISTS (SELECT FROM pulse.schedules AS s WHERE s.name = %(name)s)
        OR EXISTS (SELECT FROM pulse.schedule_runs AS r WHERE r.name = %(name)s)
            AS known
"""
PAUSE_SCHEDULE = """
    SELECT pulse.pause_schedule(name => %(name)s, reason => %(reason)s) AS changed
"""
UNSCHEDULE = "SELECT pulse.unschedule(name => %(name)s)"
RESUME_SCHEDULE = "SELECT pulse.resume_schedule(name => %(name)s) AS next_at"
RUN_SCHEDULE_NOW = """
    SELECT
        pulse.run_schedule_now(name => %(name)s, reason => %(reason)s)::text AS job_id
"""

# -- one job ----------------------------------------------------------------------

CANCEL = """
    SELECT pulse.cancel(
        job_id => %(job_id)s, reason => %(reason)s, force => %(force)s
    ) AS state
"""
APPROVE = "SELECT pulse.approve(job_id => %(job_id)s, reason => %(reason)s) AS state"
REJECT = "SELECT pulse.reject(job_id => %(job_id)s, reason => %(reason)s) AS state"
RETRY = "SELECT pulse.retry(job_id => %(job_id)s, reason => %(reason)s) AS state"
RUN_NOW = "SELECT pulse.run_now(job_id => %(job_id)s, reason => %(reason)s) AS state"
RESCHEDULE = """
    SELECT pulse.reschedule(
        job_id => %(job_id)s, run_at => %(run_at)s::timestamptz, reason => %(reason)s
    ) AS state
"""
RERUN = """
    SELECT pulse.rerun(job_id => %(job_id)s, reason => %(reason)s)::text AS state
"""
MOVE = """
    SELECT pulse.move(
        job_id => %(job_id)s, lane => %(lane)s, reason => %(reason)s
    ) AS state
"""
REPRIORITIZE = """
    SELECT pulse.reprioritize(
        job_id => %(job_id)s, priority => %(priority)s, reason => %(reason)s
    ) AS state
"""
DELETE = """
    SELECT
        pulse.delete_job(job_id => %(job_id)s, reason => %(reason)s), 'deleted' AS state
"""

# -- many jobs at once ------------------------------------------------------------

LIMITS = "max_jobs => %(max_jobs)s, dry_run => %(dry_run)s, reason => %(reason)s"
CANCEL_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.cancel_where(
        filter => %(filter)s, force => %(force)s, {LIMITS}
    ) AS w
"""
RETRY_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.retry_where(filter => %(filter)s, {LIMITS}) AS w
"""
RUN_NOW_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.run_now_where(filter => %(filter)s, {LIMITS}) AS w
"""
RESCHEDULE_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.reschedule_where(
        filter => %(filter)s, run_at => %(run_at)s::timestamptz, {LIMITS}
    ) AS w
"""
RERUN_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.rerun_where(filter => %(filter)s, {LIMITS}) AS w
"""
DISCARD_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.discard_where(filter => %(filter)s, {LIMITS}) AS w
"""
REPRIORITIZE_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.reprioritize_where(
        filter => %(filter)s, priority => %(priority)s, {LIMITS}
    ) AS w
"""
MOVE_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.move_where(filter => %(filter)s, lane => %(lane)s, {LIMITS}) AS w
"""
APPROVE_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.approve_where(filter => %(filter)s, {LIMITS}) AS w
"""
REJECT_WHERE = f"""
    SELECT w.done, w.remaining
    FROM pulse.reject_where(filter => %(filter)s, {LIMITS}) AS w
"""

# -- groups -----------------------------------------------------------------------

GROUPS = """
    SELECT
        g.group_key, g.state, g.waiting, g.running, g.max_slots,
        g.held_by::text AS held_by, g.held_at, g.reason, g.rate,
        extract(EPOCH FROM g.rate_per)::double precision AS rate_per, g.free_at
    FROM pulse.groups(
        lane => %(lane)s, keys => %(keys)s, max_groups => %(max_groups)s
    ) AS g
"""
SET_GROUP = """
    SELECT pulse.set_group(
        lane => %(lane)s, group_key => %(group_key)s, max_slots => %(max_slots)s,
        rate => %(rate)s, rate_per => %(rate_per)s::interval,
        enabled => %(enabled)s, reason => %(reason)s
    )
"""
