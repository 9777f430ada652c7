"""The statements that only the web app sends; pulse.sql.operator has the rest.

The routes, the hub of the streams and the metrics import them. Ids leave the database
as text, durations as seconds.
"""

from pulse.sql import operator

# -- each transaction -------------------------------------------------------------

# One round trip. A role or a read-only default that the DSN brings stays as it is.
BEGIN = """
    SELECT
        CASE
            WHEN %(role)s::text IS NOT NULL
                THEN pg_catalog.set_config('role', %(role)s::text, true)
        END,
        CASE
            WHEN %(read_only)s::boolean
                THEN pg_catalog.set_config('transaction_read_only', 'on', true)
        END,
        pg_catalog.set_config('statement_timeout', %(timeout)s, true),
        pg_catalog.set_config('idle_in_transaction_session_timeout', %(idle)s, true),
        pg_catalog.set_config('timezone', 'UTC', true),
        pg_catalog.set_config('datestyle', 'ISO', true),
        pg_catalog.set_config('intervalstyle', 'postgres', true),
        pg_catalog.set_config('jit', 'off', true)
"""

# -- roles, workers -----------------------------------------------------------------

VERSION = "SELECT v.version FROM pulse.version() AS v"
BUILD = "SELECT v.version, v.build FROM pulse.version() AS v"
VERBS = "SELECT v.verb, v.arguments, v.access, v.states FROM pulse.verbs() AS v"

ME = """
    SELECT current_user::text AS role, pg_catalog.current_database()::text AS database
"""

# The right that a stream of everything needs; reads nothing.
MAY_SEE_ALL = "SELECT FROM pulse.lanes AS l LIMIT 0"

# -- lanes ------------------------------------------------------------------------

# Settings as pulse.lanes has them, with durations in seconds.
IN_SECONDS = """
                coalesce(
                    pg_catalog.jsonb_object_agg(
                        s.key,
                        CASE pg_catalog.jsonb_typeof(s.value)
                            WHEN 'string' THEN pg_catalog.to_jsonb(
                                extract(EPOCH FROM (s.value #>> '{}')::interval)
                            )
                            ELSE s.value
                        END
                    ),
                    '{}'
                )
"""

# Of many lanes, those that wait longest have a line of what they finished: as the page
# shows them. Within an hour, or all samples of a lane would be read for the last 30.
LANES = f"""
    SELECT
        l.name, l.max_slots, l.used, l.depth, l.depth_estimated, l.delayed,
        extract(EPOCH FROM l.oldest_ready_age)::double precision
            AS oldest_ready_seconds,
        l.throughput::double precision AS throughput, l.enabled, l.drained, l.paused_by,
        l.settings OPERATOR(pg_catalog.?|) ARRAY['fair', 'group_slots', 'group_rate']
            AS grouped,
        (
            SELECT {IN_SECONDS}
            FROM pg_catalog.jsonb_each(l.settings) AS s
        ) AS settings,
        CASE WHEN l.place <= 100 THEN ARRAY(
            SELECT t.per_minute
            FROM (
                SELECT
                    s.at,
                    pg_catalog.round(
                        60 * (s.completed + s.dead + s.cancelled)
                        / extract(EPOCH FROM s.took)::numeric, 1
                    )::double precision AS per_minute
                FROM pulse.samples AS s
                WHERE s.lane = l.name
                    AND s.at > (SELECT pg_catalog.clock_timestamp() - interval '1 hour')
                ORDER BY s.at DESC
                LIMIT 30
            ) AS t
            ORDER BY t.at
        ) END AS recent
    FROM (
        SELECT
            o.*,
            pg_catalog.row_number() OVER (
                ORDER BY o.oldest_ready_age DESC NULLS LAST, o.used DESC, o.name
            ) AS place
        FROM pulse.lanes AS o
        WHERE (%(lane)s::text IS NULL OR o.name = %(lane)s)
    ) AS l
    ORDER BY l.name
"""

SET_LANE = """
    SELECT pulse.set_lane(
        name => %(lane)s, max_slots => %(max_slots)s, max_batch => %(max_batch)s,
        poll_interval => %(poll_interval)s::interval,
        lease_for => %(lease_for)s::interval, max_runtime => %(max_runtime)s::interval,
        retain_completed => %(retain_completed)s::interval,
        retain_cancelled => %(retain_cancelled)s::interval,
        retain_dead => %(retain_dead)s::interval,
        cancel_grace => %(cancel_grace)s::interval, enabled => %(enabled)s,
        reason => %(reason)s, fair => %(fair)s, group_slots => %(group_slots)s,
        in_order => %(in_order)s, rate => %(rate)s,
        rate_per => %(rate_per)s::interval, group_rate => %(group_rate)s,
        group_rate_per => %(group_rate_per)s::interval
    )
"""

LANE_DEFAULTS = f"""
    SELECT {IN_SECONDS} AS defaults
    FROM pg_catalog.jsonb_each(pulse.lane_defaults()) AS s
"""

# -- kinds ------------------------------------------------------------------------

KINDS = """
    SELECT
        k.name, k.ready, k.ready_estimated, k.running, k.oldest_ready_at, k.ready_in,
        k.workers, k.schedules, k.settings
    FROM pulse.kinds AS k
    WHERE (%(kind)s::text IS NULL OR k.name = %(kind)s)
    ORDER BY k.name
    LIMIT 1000
"""

# For Prometheus. A thousand have a series of their own, those that wait most and run
# most first; the others are one together.
KIND_GAUGES = """
    SELECT
        CASE WHEN k.place <= 1000 THEN k.name ELSE '' END AS kind,
        pg_catalog.sum(k.ready)::bigint AS ready,
        pg_catalog.sum(k.running)::bigint AS running,
        pg_catalog.max(k.workers) AS workers,
        pg_catalog.max(
            extract(EPOCH FROM pg_catalog.clock_timestamp() - k.oldest_ready_at)
        )::double precision AS oldest_ready_seconds
    FROM (
        SELECT
            o.*,
            pg_catalog.row_number() OVER (
                ORDER BY o.ready DESC, o.running DESC, o.name
            ) AS place
        FROM pulse.kinds AS o
    ) AS k
    GROUP BY 1
"""

SET_KIND = """
    SELECT pulse.set_kind(
        kind => %(kind)s, lane => %(lane)s, priority => %(priority)s,
        max_attempts => %(max_attempts)s, backoff => %(backoff)s,
        backoff_base => %(backoff_base)s::interval,
        backoff_cap => %(backoff_cap)s::interval,
        backoff_jitter => %(backoff_jitter)s, lease_for => %(lease_for)s::interval,
        max_runtime => %(max_runtime)s::interval,
        requires_approval => %(requires_approval)s,
        approval_expiry => %(approval_expiry)s::interval, reason => %(reason)s,
        max_delay => %(max_delay)s::interval, rate => %(rate)s,
        rate_per => %(rate_per)s::interval
    )
"""

# -- overview ---------------------------------------------------------------------

RUNNING = """
    SELECT
        r.job_id::text AS job_id, r.lane, r.kind, r.priority, r.worker, r.attempt,
        r.failures, r.started_at,
        extract(EPOCH FROM r.running_for)::double precision AS running_seconds,
        r.lease_until, r.deadline, r.cancel_by, r.cancel_reason, r.progress,
        r.progress_note
    FROM pulse.running AS r
    ORDER BY r.started_at, r.job_id
    LIMIT 200
"""

WORKERS = """
    SELECT
        w.worker, w.lanes, w.kinds, w.seen_at,
        extract(EPOCH FROM pg_catalog.clock_timestamp() - w.seen_at)::double precision
            AS seen_seconds,
        w.running, w.seen_by::text AS seen_by, w.live
    FROM pulse.workers AS w
    ORDER BY w.seen_at DESC, w.worker
    LIMIT 1000
"""

# All that the page shows at a glance, in one statement: the hub sends it each second.
OVERVIEW = f"""
    SELECT
        coalesce((SELECT pg_catalog.json_agg(o) FROM ({LANES}) AS o), '[]') AS lanes,
        coalesce(
            (SELECT pg_catalog.json_agg(o) FROM ({RUNNING}) AS o), '[]'
        ) AS running,
        (SELECT pg_catalog.count(*) FROM pulse.workers AS w WHERE w.live) AS workers,
        coalesce(
            (SELECT pg_catalog.json_agg(o) FROM ({operator.HOLDS}) AS o), '[]'
        ) AS paused,
        pg_catalog.clock_timestamp() AS at
"""

DEAD_GROUPS = """
    SELECT
        g.kind, g.error, g.error_like, g.jobs, g.lanes, g.first_at, g.last_at,
        g.last_job::text AS last_job
    FROM pulse.dead_groups(filter => %(filter)s, max_groups => %(groups)s) AS g
"""

# Problems and the counts of everything: the hub sends them every 5 seconds.
SUMMARY = f"""
    SELECT
        (
            SELECT
                pg_catalog.json_object_agg(
                    c.state,
                    pg_catalog.json_build_object('jobs', c.jobs, 'more', c.more)
                )
            FROM pulse.counts() AS c
        ) AS counts,
        coalesce(
            (
                SELECT pg_catalog.json_agg(o)
                FROM ({operator.HEALTH}) AS o
                WHERE o.status <> 'ok'
            ), '[]'
        ) AS problems,
        coalesce(
            (SELECT pg_catalog.json_agg(o) FROM ({DEAD_GROUPS}) AS o), '[]'
        ) AS dead,
        coalesce(
            (
                SELECT pg_catalog.json_agg(o)
                FROM (
                    SELECT s.name, s.kind, s.next_at, s.last_error, s.late
                    FROM pulse.schedules AS s
                    WHERE s.late OR s.last_error IS NOT NULL
                    ORDER BY s.next_at, s.name
                    LIMIT 10
                ) AS o
            ), '[]'
        ) AS schedules,
        coalesce(
            (
                SELECT pg_catalog.json_agg(o)
                FROM (
                    SELECT f.kind, f.failed, f.started, f.dead
                    FROM pulse.failing_kinds() AS f
                    ORDER BY f.failed DESC, f.kind
                    LIMIT 5
                ) AS o
            ), '[]'
        ) AS failing,
        pg_catalog.clock_timestamp() AS at
"""

HISTORY = """
    SELECT
        y.at, y.enqueued, y.started, y.completed, y.failed, y.dead, y.retried,
        y.cancelled, y.reaped, y.wait_p50, y.wait_p95, y.wait_p99, y.run_p50,
        y.run_p95, y.run_p99, y.ready, y.running
    FROM pulse.history(
        since => %(since)s::interval, step => %(step)s::interval, lane => %(lane)s,
        kind => %(kind)s
    ) AS y
    ORDER BY y.at
"""

SUMMARY_VALUES = {"filter": "{}", "groups": 5}

AUDIT_COLUMNS = """
        a.entry::text AS entry, a.at, a.who::text AS who, a.verb,
        a.job_id::text AS job_id, a.lane, a.before, a.after, a.reason
    FROM pulse.audit AS a
"""
AUDIT = f"""
    SELECT {AUDIT_COLUMNS}
    WHERE (%(before)s::bigint IS NULL OR a.entry < %(before)s)
    ORDER BY a.entry DESC
    LIMIT %(limit)s
"""
AUDIT_OF_JOB = f"""
    SELECT {AUDIT_COLUMNS}
    WHERE a.job_id = %(job_id)s
    ORDER BY a.entry
    LIMIT 200
"""

# -- schedules --------------------------------------------------------------------

SCHEDULES = """
    SELECT
        s.name, s.kind, s.payload, s.cron,
        extract(EPOCH FROM s.every)::double precision AS every, s.at, s.timezone,
        s.options, s.catch_up,
        extract(EPOCH FROM s.catch_up_window)::double precision AS catch_up_window,
        s.next_at, s.last_occurrence, s.paused_at, s.paused_by::text AS paused_by,
        s.pause_reason, s.last_error, s.created_by::text AS created_by, s.created_at,
        s.late
    FROM pulse.schedules AS s
    WHERE (%(name)s::text IS NULL OR s.name = %(name)s)
    ORDER BY s.next_at NULLS LAST, s.name
    LIMIT 1000
"""

SCHEDULE = """
    SELECT pulse.schedule(
        name => %(name)s, kind => %(kind)s, payload => %(payload)s, cron => %(cron)s,
        every => %(every)s::interval, at => %(at)s::text::timestamptz,
        timezone => %(timezone)s, lane => %(lane)s, priority => %(priority)s,
        catch_up => %(catch_up)s, catch_up_window => %(catch_up_window)s::interval,
        max_attempts => %(max_attempts)s, unique_key => %(unique_key)s,
        unique_for => %(unique_for)s::interval, group_key => %(group_key)s,
        requires_approval => %(requires_approval)s, tags => %(tags)s::text [],
        max_runtime => %(max_runtime)s::interval, headers => %(headers)s,
        expires_in => %(expires_in)s::interval
    ) AS next_at
"""

# -- jobs -------------------------------------------------------------------------

FIND_DEAD = """
    SELECT
        d.job_id::text AS job_id, d.finished_at, d.searched_to::text AS searched_to
    FROM pulse.find_dead(
        filter => %(filter)s, before => %(before)s::timestamptz,
        before_job => %(before_job)s, max_jobs => %(limit)s
    ) AS d
"""

JOB_COLUMNS = """
        j.job_id::text AS job_id, j.state, j.lane, j.kind, j.priority, j.attempts,
        j.failures, j.max_attempts, j.run_at, j.enqueued_at,
        j.enqueued_by::text AS enqueued_by, j.ready_at,
        extract(EPOCH FROM j.waiting_for)::double precision AS waiting_for,
        j.approval_until, j.worker, j.started_at, j.lease_until, j.deadline,
        j.cancel_by, j.progress, j.progress_note, j.finished_at, j.ended_by,
        extract(EPOCH FROM j.max_runtime)::double precision AS max_runtime,
        j.unique_key, j.group_key, j.tags, j.rerun_of::text AS rerun_of, j.flow, j.name,
        j.waits_for::text AS waits_for
"""

FLOW = """
    SELECT
        f.name, f.kind, f.jobs, f.blocked, f.awaiting_approval, f.scheduled, f.ready,
        f.running, f.retrying, f.completed, f.dead, f.cancelled, f.after, f.first_at,
        f.last_at, f.first_job::text AS first_job
    FROM pulse.flow(flow => %(flow)s) AS f
    LIMIT %(most)s
"""

# A page of jobs leaves out large values: 200 payloads may be 1.6 GB. The stored size is
# tested first, so that a large value is never read; a small one may be a long text.
JOBS = f"""
    SELECT
        {JOB_COLUMNS},
        pg_catalog.left(j.last_error, 2000) AS last_error,
        CASE
            WHEN pg_catalog.pg_column_size(j.payload) <= 2000
                THEN CASE
                    WHEN pg_catalog.octet_length(j.payload::text) <= 2000
                        THEN j.payload
                END
        END AS payload
    FROM pulse.jobs AS j
    WHERE j.job_id = ANY (%(job_ids)s::bigint [])
    ORDER BY j.job_id DESC
"""

JOB = f"""
    SELECT
        {JOB_COLUMNS},
        j.last_error, j.payload, j.result, coalesce(j.errors, '[]') AS attempts_log
    FROM pulse.jobs AS j
    WHERE j.job_id = %(job_id)s
"""

# The values that the stream of a job sends. No lease_until: each heartbeat moves it.
WATCHED = """
    SELECT
        j.job_id::text AS job_id, j.state, j.lane, j.kind, j.priority,
        j.enqueued_by::text AS enqueued_by, j.attempts AS attempt, j.failures,
        j.max_attempts, j.worker, j.started_at, j.run_at, j.cancel_by, j.progress,
        j.progress_note, pg_catalog.left(j.last_error, 2000) AS last_error,
        j.finished_at, j.ended_by
    FROM pulse.jobs AS j
    WHERE j.job_id = ANY (%(job_ids)s::bigint [])
"""

# -- listening --------------------------------------------------------------------

PROGRESS_CHANNEL = "pulse_progress"
WATCH = "SELECT pulse.watch_progress() AS watching"
