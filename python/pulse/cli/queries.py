"""The statements that only the command line sends; pulse.sql.operator has the rest.

Ids leave the database as text.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import LiteralString

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

KINDS = """
    SELECT
        k.name AS kind, k.ready, k.ready_estimated,
        pg_catalog.clock_timestamp() - k.oldest_ready_at AS oldest_ready_age, k.running,
        k.workers, k.schedules, k.ready_in, k.settings
    FROM pulse.kinds AS k
    ORDER BY k.name
"""


def _counted(source: "LiteralString") -> "LiteralString":
    return f"""
    SELECT
        c.lane, c.kind, c.enqueued, c.started, c.completed, c.failed, c.dead, c.retried,
        c.cancelled, c.reaped, pulse.histogram_quantile(c.wait_counts, 0.5) AS wait_p50,
        pulse.histogram_quantile(c.wait_counts, 0.95) AS wait_p95,
        pulse.histogram_quantile(c.run_counts, 0.5) AS run_p50,
        pulse.histogram_quantile(c.run_counts, 0.95) AS run_p95
    FROM {source} AS c
    WHERE (%(lane)s::text IS NULL OR c.lane = %(lane)s)
        AND (%(kind)s::text IS NULL OR c.kind = %(kind)s)
    ORDER BY c.lane, c.kind
"""


# From the start, or of the last while.
COUNTED = _counted("pulse.counters")
COUNTED_SINCE = _counted("pulse.counters_since(since => %(since)s::interval)")

FLOW = """
    SELECT
        f.name, f.kind, f.jobs, f.blocked, f.awaiting_approval, f.scheduled, f.ready,
        f.running, f.retrying, f.completed, f.dead, f.cancelled, f.after, f.first_at,
        f.last_at
    FROM pulse.flow(flow => %(flow)s) AS f
"""

SIGNAL = """
    SELECT
        pulse.signal(
            signal => %(signal)s, payload => %(payload)s, keep => %(keep)s::interval
        ) AS woke
"""

WORKERS = """
    SELECT
        w.worker, w.lanes, w.kinds, w.seen_at, w.running, w.seen_by::text AS seen_by,
        w.live,
        pg_catalog.clock_timestamp() - w.seen_at AS seen_for
    FROM pulse.workers AS w
    ORDER BY w.seen_at DESC, w.worker
"""

JOBS = """
    SELECT
        j.job_id::text AS job_id, j.state, j.kind, j.lane, j.priority, j.attempts,
        j.failures, j.max_attempts, j.run_at, j.enqueued_at,
        j.enqueued_by::text AS enqueued_by, j.waiting_for, j.approval_until, j.worker,
        j.started_at, j.finished_at, j.ended_by, j.progress, j.progress_note,
        j.last_error, j.unique_key, j.group_key, j.tags, j.payload, j.start_by,
        pg_catalog.clock_timestamp() AS seen_at
    FROM pulse.jobs AS j
    WHERE j.job_id = ANY (%(job_ids)s::bigint [])
    ORDER BY j.job_id DESC
"""

JOB = """
    SELECT j.*, j.job_id::text AS job_id, pg_catalog.clock_timestamp() AS seen_at
    FROM pulse.jobs AS j
    WHERE j.job_id = %(job_id)s
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

# -- producing --------------------------------------------------------------------

ENQUEUE = """
    SELECT e.job_id::text AS job_id, e.created
    FROM pulse.enqueue_one(
        kind => %(kind)s, payload => %(payload)s, lane => %(lane)s,
        priority => %(priority)s, run_at => %(run_at)s, delay => %(delay)s,
        max_attempts => %(max_attempts)s, unique_key => %(unique_key)s,
        unique_for => %(unique_for)s, on_conflict => %(on_conflict)s,
        group_key => %(group_key)s, requires_approval => %(requires_approval)s,
        tags => %(tags)s, max_runtime => %(max_runtime)s,
        after => %(after)s::bigint [], after_failed => %(after_failed)s,
        flow => %(flow)s, name => %(name)s,
        headers => %(headers)s::jsonb, expires_in => %(expires_in)s::interval
    ) AS e
"""

ENQUEUE_MANY = """
    SELECT e.job_id::text AS job_id
    FROM pulse.enqueue_many(
        kind => %(kind)s, payloads => %(payloads)s, lane => %(lane)s,
        priority => %(priority)s, run_at => %(run_at)s, delay => %(delay)s,
        max_attempts => %(max_attempts)s, group_key => %(group_key)s,
        requires_approval => %(requires_approval)s, tags => %(tags)s,
        max_runtime => %(max_runtime)s, after => %(after)s::bigint [],
        after_failed => %(after_failed)s, flow => %(flow)s, name => %(name)s,
        headers => %(headers)s::jsonb,
        expires_in => %(expires_in)s::interval
    ) AS e (job_id)
"""

SCHEDULE = """
    SELECT pulse.schedule(
        name => %(name)s, kind => %(kind)s, payload => %(payload)s, cron => %(cron)s,
        every => %(every)s, at => %(at)s, timezone => %(timezone)s, lane => %(lane)s,
        priority => %(priority)s, catch_up => %(catch_up)s,
        unique_key => %(unique_key)s, tags => %(tags)s,
        max_attempts => %(max_attempts)s, max_runtime => %(max_runtime)s::interval,
        expires_in => %(expires_in)s::interval
    ) AS next_at
"""

# -- settings ---------------------------------------------------------------------

SET_LANE = """
    SELECT pulse.set_lane(
        name => %(name)s, max_slots => %(max_slots)s::integer,
        max_batch => %(max_batch)s::integer,
        poll_interval => %(poll_interval)s::interval,
        lease_for => %(lease_for)s::interval, max_runtime => %(max_runtime)s::interval,
        retain_completed => %(retain_completed)s::interval,
        retain_cancelled => %(retain_cancelled)s::interval,
        retain_dead => %(retain_dead)s::interval,
        cancel_grace => %(cancel_grace)s::interval, enabled => %(enabled)s::boolean,
        reason => %(reason)s, fair => %(fair)s::boolean,
        group_slots => %(group_slots)s::integer, in_order => %(in_order)s::boolean,
        rate => %(rate)s::integer, rate_per => %(rate_per)s::interval,
        group_rate => %(group_rate)s::integer,
        group_rate_per => %(group_rate_per)s::interval
    )
"""
SET_KIND = """
    SELECT pulse.set_kind(
        kind => %(name)s, lane => %(lane)s, priority => %(priority)s::integer,
        max_attempts => %(max_attempts)s::integer, backoff => %(backoff)s,
        backoff_base => %(backoff_base)s::interval,
        backoff_cap => %(backoff_cap)s::interval,
        backoff_jitter => %(backoff_jitter)s::double precision,
        lease_for => %(lease_for)s::interval, max_runtime => %(max_runtime)s::interval,
        requires_approval => %(requires_approval)s::boolean,
        approval_expiry => %(approval_expiry)s::interval, reason => %(reason)s,
        max_delay => %(max_delay)s::interval, rate => %(rate)s::integer,
        rate_per => %(rate_per)s::interval
    )
"""
RATES = """
    SELECT
        l.scope, l.lane, l.kind, l.allowed, l.per, l.used, l.free_at,
        l.free_at - clock_timestamp() AS free_in
    FROM pulse.limits AS l
    WHERE l.what = 'rate' AND l.scope <> 'group'
    ORDER BY l.kind
"""
PRUNE = """
    SELECT pulse.prune(dry_run => %(dry_run)s, max_jobs => %(max_jobs)s) AS removed
"""
GRANT = "SELECT pulse.grant_access(role => %(role)s, access => %(access)s)"
REVOKE = "SELECT pulse.revoke_access(role => %(role)s, access => %(access)s)"
AUDIT = """
    SELECT
        a.entry, a.at, a.who::text AS who, a.verb, a.job_id::text AS job_id, a.lane,
        a.before, a.after, a.reason
    FROM pulse.audit AS a
    WHERE (%(job)s::bigint IS NULL OR a.job_id = %(job)s)
        AND (%(lane)s::text IS NULL OR a.lane = %(lane)s)
        AND (%(verb)s::text IS NULL OR a.verb = %(verb)s)
        AND (%(who)s::text IS NULL OR a.who = %(who)s)
        AND (%(before)s::bigint IS NULL OR a.entry < %(before)s)
    ORDER BY a.entry DESC
    LIMIT %(limit)s
"""

# -- maintenance ------------------------------------------------------------------

TICK = "SELECT t.step, t.did, t.error FROM pulse.tick() AS t"
START_WATCHDOG = "SELECT pulse.start_watchdog() AS how"

# A time as people write it, or one from now on.
MOMENT = """
    SELECT
        coalesce(
            %(at)s::timestamptz, pg_catalog.clock_timestamp() + %(delay)s::interval
        ) AS at
"""
