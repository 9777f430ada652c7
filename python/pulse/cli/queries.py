"""Every statement the command line sends. Ids leave the database as text."""

WHO = "SELECT current_user::text AS role, current_database()::text AS database"

# -- seeing -----------------------------------------------------------------------

RUNNING = """
    SELECT
        r.job_id::text AS job_id, r.kind, r.lane, r.priority, r.worker, r.attempt,
        r.failures, r.started_at, r.running_for, r.lease_until, r.deadline,
        r.cancel_by, r.cancel_reason, r.progress, r.progress_note
    FROM pulse.running AS r
    WHERE (%(lane)s::text IS NULL OR r.lane = %(lane)s)
        AND (%(kind)s::text IS NULL OR r.kind = %(kind)s)
        AND (%(worker)s::text IS NULL OR r.worker = %(worker)s)
    ORDER BY r.started_at
    LIMIT %(limit)s
"""

LANES = """
    SELECT
        l.name AS lane, l.max_slots, l.used, l.depth, l.depth_estimated,
        l.oldest_ready_age, l.delayed, l.delayed_estimated, l.throughput,
        l.enabled, l.drained, l.paused_by, l.settings
    FROM pulse.lanes AS l
"""

WORKERS = """
    SELECT
        w.worker, w.lanes, w.kinds, w.seen_at, w.running, w.seen_by::text AS seen_by,
        pg_catalog.clock_timestamp() - w.seen_at AS seen_for
    FROM pulse.workers AS w
    ORDER BY w.seen_at DESC, w.worker
"""

FIND = """
    SELECT f.job_id, f.searched_to
    FROM pulse.find_jobs(
        filter => %(filter)s, before => %(before)s, max_jobs => %(limit)s
    ) AS f
"""

JOBS = """
    SELECT
        j.job_id::text AS job_id, j.state, j.kind, j.lane, j.priority, j.attempts,
        j.failures, j.max_attempts, j.run_at, j.enqueued_at,
        j.enqueued_by::text AS enqueued_by, j.waiting_for, j.approval_until, j.worker,
        j.started_at, j.finished_at, j.ended_by, j.progress, j.progress_note,
        j.last_error, j.unique_key, j.group_key, j.tags, j.payload,
        pg_catalog.clock_timestamp() AS seen_at
    FROM pulse.jobs AS j
    WHERE j.job_id = ANY (%(job_ids)s)
    ORDER BY j.job_id DESC
"""

JOB = """
    SELECT j.*, j.job_id::text AS job_id, pg_catalog.clock_timestamp() AS seen_at
    FROM pulse.jobs AS j
    WHERE j.job_id = %(job_id)s
"""

STATES = "SELECT j.state FROM pulse.jobs AS j WHERE j.job_id = %(job_id)s"

WHY = "SELECT w.position, w.reason FROM pulse.why(job_id => %(job_id)s) AS w"

HEALTH = "SELECT h.check_name, h.status, h.figure, h.advice FROM pulse.health() AS h"

HOLDS = """
    SELECT p.lane, p.holder, p.reason, p.held_by::text AS held_by, p.held_at
    FROM pulse.pause_status() AS p
"""

SCHEDULES = """
    SELECT
        s.name, s.kind, s.cron, s.every, s.at, s.timezone, s.next_at, s.last_occurrence,
        s.paused_at, s.paused_by::text AS paused_by, s.pause_reason, s.last_error,
        s.payload, s.options, s.catch_up,
        pg_catalog.clock_timestamp() AS seen_at
    FROM pulse.schedules AS s
    ORDER BY s.next_at NULLS LAST, s.name
"""

SCHEDULE_RUNS = """
    SELECT r.name, r.occurrence, r.job_id::text AS job_id, r.skipped, r.handled_at
    FROM pulse.schedule_runs AS r
    WHERE (%(name)s::text IS NULL OR r.name = %(name)s)
    ORDER BY r.occurrence DESC
    LIMIT %(limit)s
"""

# -- producing --------------------------------------------------------------------

ENQUEUE = """
    SELECT e.job_id::text AS job_id, e.created
    FROM pulse.enqueue_one(
        kind => %(kind)s, payload => %(payload)s, lane => %(lane)s,
        priority => %(priority)s, run_at => %(run_at)s, delay => %(delay)s,
        max_attempts => %(max_attempts)s, unique_key => %(unique_key)s,
        unique_for => %(unique_for)s, on_conflict => %(on_conflict)s,
        group_key => %(group_key)s, requires_approval => %(requires_approval)s,
        tags => %(tags)s, max_runtime => %(max_runtime)s
    ) AS e
"""

ENQUEUE_MANY = """
    SELECT e.job_id::text AS job_id
    FROM pulse.enqueue_many(
        kind => %(kind)s, payloads => %(payloads)s, lane => %(lane)s,
        priority => %(priority)s, run_at => %(run_at)s, delay => %(delay)s,
        max_attempts => %(max_attempts)s, group_key => %(group_key)s,
        requires_approval => %(requires_approval)s, tags => %(tags)s,
        max_runtime => %(max_runtime)s
    ) AS e (job_id)
"""

SCHEDULE = """
    SELECT pulse.schedule(
        name => %(name)s, kind => %(kind)s, payload => %(payload)s, cron => %(cron)s,
        every => %(every)s, at => %(at)s, timezone => %(timezone)s, lane => %(lane)s,
        priority => %(priority)s, catch_up => %(catch_up)s,
        unique_key => %(unique_key)s, tags => %(tags)s
    ) AS next_at
"""

PAUSE_SCHEDULE = """
    SELECT pulse.pause_schedule(name => %(name)s, reason => %(reason)s) AS changed
"""
RESUME_SCHEDULE = "SELECT pulse.resume_schedule(name => %(name)s) AS next_at"
UNSCHEDULE = "SELECT pulse.unschedule(name => %(name)s)"

# -- steering ---------------------------------------------------------------------

CANCEL = """
    SELECT pulse.cancel(
        job_id => %(job_id)s, reason => %(reason)s, force => %(force)s
    ) AS state
"""
RETRY = "SELECT pulse.retry(job_id => %(job_id)s, reason => %(reason)s) AS state"
APPROVE = "SELECT pulse.approve(job_id => %(job_id)s, reason => %(reason)s) AS state"
REJECT = "SELECT pulse.reject(job_id => %(job_id)s, reason => %(reason)s) AS state"
NICE = """
    SELECT pulse.reprioritize(
        job_id => %(job_id)s, priority => %(priority)s, reason => %(reason)s
    ) AS state
"""

CANCEL_WHERE = """
    SELECT w.done, w.remaining
    FROM pulse.cancel_where(
        filter => %(filter)s, force => %(force)s, max_jobs => %(max_jobs)s,
        dry_run => %(dry_run)s, reason => %(reason)s
    ) AS w
"""
RETRY_WHERE = """
    SELECT w.done, w.remaining
    FROM pulse.retry_where(
        filter => %(filter)s, max_jobs => %(max_jobs)s, dry_run => %(dry_run)s,
        reason => %(reason)s
    ) AS w
"""
APPROVE_WHERE = """
    SELECT w.done, w.remaining
    FROM pulse.approve_where(
        filter => %(filter)s, max_jobs => %(max_jobs)s, dry_run => %(dry_run)s,
        reason => %(reason)s
    ) AS w
"""
REJECT_WHERE = """
    SELECT w.done, w.remaining
    FROM pulse.reject_where(
        filter => %(filter)s, max_jobs => %(max_jobs)s, dry_run => %(dry_run)s,
        reason => %(reason)s
    ) AS w
"""
NICE_WHERE = """
    SELECT w.done, w.remaining
    FROM pulse.reprioritize_where(
        filter => %(filter)s, priority => %(priority)s, max_jobs => %(max_jobs)s,
        dry_run => %(dry_run)s, reason => %(reason)s
    ) AS w
"""

DRAIN = "SELECT pulse.drain_lane(lane => %(lane)s, reason => %(reason)s) AS changed"
RESUME_LANE = "SELECT pulse.resume_lane(lane => %(lane)s) AS changed"
PAUSE = """
    SELECT pulse.pause(
        holder => %(holder)s, reason => %(reason)s, lane => %(lane)s
    ) AS changed
"""
RESUME = "SELECT pulse.resume(holder => %(holder)s, lane => %(lane)s) AS changed"

# -- upkeep -----------------------------------------------------------------------

TICK = "SELECT t.step, t.did, t.error FROM pulse.tick() AS t"
BACKEND_PID = "SELECT pg_catalog.pg_backend_pid() AS pid"
NOTIFY = "SELECT pg_catalog.pg_notify(%(channel)s, '')"
START_WATCHDOG = "SELECT pulse.start_watchdog() AS how"
