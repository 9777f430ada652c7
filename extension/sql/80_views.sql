-- What people see. The views belong to the installer, so they read tables that nobody
-- else may read; the functions inside them run as the reader, who is therefore
-- given _caller, _sees_all and _approves together with them (90_grants.sql).
-- A barrier keeps a reader's own functions from looking at rows before the filter.

CREATE FUNCTION pulse._approves()
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
            AND p.proname = 'approve'
            AND has_function_privilege(pulse._caller(), p.oid, 'EXECUTE')
    )
$$;

COMMENT ON FUNCTION pulse._approves() IS
'Whether the caller may approve jobs, and so sees those that wait for it.';

-- A page of jobs by id reads as many rows as it shows: every place has an index on
-- job, the five are merged in its order, and OFFSET 0 keeps the look into body a look
-- by key for each row (a join by merging would start at the first body). The order
-- is part of the view since nothing outside a barrier reaches into it. The second
-- condition tells the planner which states each place can hold, so that
-- state = 'ready' does not read finished; place is a literal in each branch.
CREATE VIEW pulse.jobs
WITH (security_barrier)
AS
SELECT
    p.job AS job_id,
    p.state,
    p.lane,
    p.kind,
    -p.rank AS priority,
    b.payload,
    p.attempts,
    p.failures,
    b.max_attempts,
    p.run_at,
    b.enqueued_at,
    b.enqueued_by,
    p.ready_at,
    CASE
        WHEN p.state IN ('awaiting_approval', 'ready') OR p.run_at <= clock_timestamp()
            THEN clock_timestamp() - coalesce(p.ready_at, p.asked_at, p.run_at)
    END AS waiting_for,
    p.approval_until,
    p.worker,
    p.started_at,
    p.lease_until,
    p.deadline,
    p.cancel_by,
    (
        SELECT g.fraction
        FROM pulse.job_progress AS g
        WHERE g.job = p.job
    ) AS progress,
    (
        SELECT g.note
        FROM pulse.job_progress AS g
        WHERE g.job = p.job
    ) AS progress_note,
    coalesce(
        p.error,
        (
            SELECT f.error
            FROM pulse.failure AS f
            WHERE f.job = p.job
            ORDER BY f.attempt DESC
            LIMIT 1
        )
    ) AS last_error,
    (
        SELECT
            jsonb_agg(
                jsonb_build_object(
                    'attempt', f.attempt,
                    'error', f.error,
                    'worker', f.worker,
                    'started_at', f.claimed_at,
                    'failed_at', f.failed_at
                )
                ORDER BY f.attempt
            )
        FROM pulse.failure AS f
        WHERE f.job = p.job
    ) AS errors,
    p.result,
    p.finished_at,
    p.ended_by,
    b.max_runtime,
    b.unique_key,
    b.group_key,
    b.tags
FROM (
    SELECT
        'approval'::text AS place,
        'awaiting_approval'::text AS state,
        a.job,
        a.lane,
        a.kind,
        a.rank,
        0 AS attempts,
        0 AS failures,
        a.run_at,
        a.asked_at,
        NULL::timestamptz AS ready_at,
        a.expires_at AS approval_until,
        NULL::text AS worker,
        NULL::timestamptz AS started_at,
        NULL::timestamptz AS lease_until,
        NULL::timestamptz AS deadline,
        NULL::timestamptz AS cancel_by,
        NULL::text AS error,
        NULL::jsonb AS result,
        NULL::timestamptz AS finished_at,
        NULL::text AS ended_by
    FROM pulse.approval AS a
    UNION ALL
    SELECT
        'waiting'::text,
        CASE WHEN w.retrying THEN 'retrying'::text ELSE 'scheduled'::text END,
        w.job,
        w.lane,
        w.kind,
        w.rank,
        w.attempts,
        w.failures,
        w.run_at,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::text,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::text,
        NULL::jsonb,
        NULL::timestamptz,
        NULL::text
    FROM pulse.waiting AS w
    UNION ALL
    SELECT
        'ready'::text,
        'ready'::text,
        r.job,
        r.lane,
        r.kind,
        r.rank,
        r.attempts,
        r.failures,
        NULL::timestamptz,
        NULL::timestamptz,
        r.ready_at,
        NULL::timestamptz,
        NULL::text,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::text,
        NULL::jsonb,
        NULL::timestamptz,
        NULL::text
    FROM pulse.ready AS r
    UNION ALL
    SELECT
        'lease'::text,
        'running'::text,
        l.job,
        l.lane,
        l.kind,
        l.rank,
        l.attempt,
        l.failures,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        l.worker,
        l.claimed_at,
        l.lease_until,
        l.deadline,
        l.cancel_by,
        NULL::text,
        NULL::jsonb,
        NULL::timestamptz,
        NULL::text
    FROM pulse.lease AS l
    UNION ALL
    SELECT
        'finished'::text,
        CASE f.state
            WHEN 'completed' THEN 'completed'::text
            WHEN 'dead' THEN 'dead'::text
            ELSE 'cancelled'::text
        END,
        f.job,
        f.lane,
        f.kind,
        f.rank,
        f.attempts,
        f.failures,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        f.worker,
        f.claimed_at,
        NULL::timestamptz,
        NULL::timestamptz,
        NULL::timestamptz,
        f.error,
        f.result,
        f.finished_at,
        f.ended_by
    FROM pulse.finished AS f
) AS p
CROSS JOIN
    LATERAL (
        SELECT b.*
        FROM pulse.body AS b
        WHERE b.job = p.job
        OFFSET 0
    ) AS b
WHERE (
    (SELECT pulse._sees_all())
    OR b.enqueued_by = (SELECT pulse._caller())
    OR p.state = 'awaiting_approval' AND (SELECT pulse._approves())
)
AND (p.place <> 'waiting' OR p.state IN ('scheduled', 'retrying'))
AND (p.place <> 'finished' OR p.state IN ('completed', 'dead', 'cancelled'))
ORDER BY p.job;

COMMENT ON VIEW pulse.jobs IS
'Every job you may see, one row each, in the order of job_id. Page with WHERE job_id > the last one ORDER BY job_id LIMIT n. Viewers and operators see all jobs, producers their own, approvers also those that await approval.';
COMMENT ON COLUMN pulse.jobs.job_id IS
'The id that enqueue returned. As a string in every JSON.';
COMMENT ON COLUMN pulse.jobs.state IS
'awaiting_approval, scheduled, ready, running, retrying, completed, dead or cancelled.';
COMMENT ON COLUMN pulse.jobs.lane IS
'The lane it is in.';
COMMENT ON COLUMN pulse.jobs.kind IS
'What code runs it.';
COMMENT ON COLUMN pulse.jobs.priority IS
'Higher runs first.';
COMMENT ON COLUMN pulse.jobs.payload IS
'What was handed to enqueue.';
COMMENT ON COLUMN pulse.jobs.attempts IS
'How many runs have begun, the one now running included.';
COMMENT ON COLUMN pulse.jobs.failures IS
'How many runs ended badly since it was enqueued or retried by an operator.';
COMMENT ON COLUMN pulse.jobs.max_attempts IS
'It is dead when failures reach this.';
COMMENT ON COLUMN pulse.jobs.run_at IS
'When it is due; NULL once it is in line.';
COMMENT ON COLUMN pulse.jobs.enqueued_at IS
'When it was enqueued.';
COMMENT ON COLUMN pulse.jobs.enqueued_by IS
'The role that enqueued it.';
COMMENT ON COLUMN pulse.jobs.ready_at IS
'When a ready job joined the line.';
COMMENT ON COLUMN pulse.jobs.waiting_for IS
'How long it has been waiting for a worker, or for approval; NULL when it waits for neither.';
COMMENT ON COLUMN pulse.jobs.approval_until IS
'When a job that nobody approved is cancelled.';
COMMENT ON COLUMN pulse.jobs.worker IS
'Who runs it, or ran it last.';
COMMENT ON COLUMN pulse.jobs.started_at IS
'When the run now running, or the last one, was claimed.';
COMMENT ON COLUMN pulse.jobs.lease_until IS
'Until when the worker of a running job need not be heard of.';
COMMENT ON COLUMN pulse.jobs.deadline IS
'When max_runtime ends the run, heartbeats or not.';
COMMENT ON COLUMN pulse.jobs.cancel_by IS
'When the run is ended by force, after somebody asked to cancel it.';
COMMENT ON COLUMN pulse.jobs.progress IS
'How far the job said it has come, from 0 to 1.';
COMMENT ON COLUMN pulse.jobs.progress_note IS
'What it said with that.';
COMMENT ON COLUMN pulse.jobs.last_error IS
'Why the last run that ended badly did, or why the job was cancelled.';
COMMENT ON COLUMN pulse.jobs.errors IS
'A JSON list, oldest first, of every run that ended badly: attempt, error, worker, started_at, failed_at. Read only when selected.';
COMMENT ON COLUMN pulse.jobs.result IS
'What complete stored.';
COMMENT ON COLUMN pulse.jobs.finished_at IS
'When it was completed, dead or cancelled.';
COMMENT ON COLUMN pulse.jobs.ended_by IS
'The verb that finished it.';
COMMENT ON COLUMN pulse.jobs.max_runtime IS
'The longest a run may take, where enqueue said so.';
COMMENT ON COLUMN pulse.jobs.unique_key IS
'At most one waiting or running job of its lane has this key.';
COMMENT ON COLUMN pulse.jobs.group_key IS
'A label for filters.';
COMMENT ON COLUMN pulse.jobs.tags IS
'Labels for filters.';

CREATE VIEW pulse.running
WITH (security_barrier)
AS
SELECT
    l.job AS job_id,
    l.lane,
    l.kind,
    -l.rank AS priority,
    l.worker,
    l.attempt,
    l.failures,
    l.claimed_at AS started_at,
    clock_timestamp() - l.claimed_at AS running_for,
    l.lease_until,
    l.deadline,
    l.cancel_by,
    l.cancel_reason,
    (
        SELECT g.fraction
        FROM pulse.job_progress AS g
        WHERE g.job = l.job
    ) AS progress,
    (
        SELECT g.note
        FROM pulse.job_progress AS g
        WHERE g.job = l.job
    ) AS progress_note,
    b.payload,
    b.enqueued_by
FROM pulse.lease AS l
INNER JOIN pulse.body AS b ON b.job = l.job
WHERE (SELECT pulse._sees_all()) OR b.enqueued_by = (SELECT pulse._caller());

COMMENT ON VIEW pulse.running IS
'The ps: which worker runs which job since when, until when its lease holds, and who was asked to stop. Producers see their own jobs.';
COMMENT ON COLUMN pulse.running.job_id IS
'The job.';
COMMENT ON COLUMN pulse.running.lane IS
'Its lane.';
COMMENT ON COLUMN pulse.running.kind IS
'What code runs it.';
COMMENT ON COLUMN pulse.running.priority IS
'Higher runs first.';
COMMENT ON COLUMN pulse.running.worker IS
'Who runs it.';
COMMENT ON COLUMN pulse.running.attempt IS
'The number of this run.';
COMMENT ON COLUMN pulse.running.failures IS
'How many runs before it ended badly.';
COMMENT ON COLUMN pulse.running.started_at IS
'When it was claimed.';
COMMENT ON COLUMN pulse.running.running_for IS
'How long ago that was.';
COMMENT ON COLUMN pulse.running.lease_until IS
'Until when its worker need not be heard of.';
COMMENT ON COLUMN pulse.running.deadline IS
'When max_runtime ends the run, heartbeats or not.';
COMMENT ON COLUMN pulse.running.cancel_by IS
'When the run is ended by force; NULL when nobody asked to cancel it.';
COMMENT ON COLUMN pulse.running.cancel_reason IS
'Why it was asked to stop.';
COMMENT ON COLUMN pulse.running.progress IS
'How far it said it has come, from 0 to 1.';
COMMENT ON COLUMN pulse.running.progress_note IS
'What it said with that.';
COMMENT ON COLUMN pulse.running.payload IS
'What was handed to enqueue.';
COMMENT ON COLUMN pulse.running.enqueued_by IS
'The role that enqueued it.';

-- The lanes of jobs, read one by one off the indexes that begin with the lane: as
-- many looks as there are lanes, however many jobs. Running and unapproved jobs are
-- few and are simply read. Every name is above '': said here and below, it ends the walk
-- and lets the planner expect few lanes (else it compiles the query, for a second).
CREATE VIEW pulse._known_lanes
WITH (security_barrier)
AS
WITH RECURSIVE ready_lane (lane) AS (
    (
        SELECT r.lane
        FROM pulse.ready AS r
        ORDER BY r.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT r.lane
            FROM pulse.ready AS r
            WHERE r.lane > n.lane
            ORDER BY r.lane
            LIMIT 1
        )
    FROM ready_lane AS n
    WHERE n.lane > ''
),

waiting_lane (lane) AS (
    (
        SELECT w.lane
        FROM pulse.waiting AS w
        ORDER BY w.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT w.lane
            FROM pulse.waiting AS w
            WHERE w.lane > n.lane
            ORDER BY w.lane
            LIMIT 1
        )
    FROM waiting_lane AS n
    WHERE n.lane > ''
),

finished_lane (lane) AS (
    (
        SELECT f.lane
        FROM pulse.finished AS f
        ORDER BY f.lane
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT f.lane
            FROM pulse.finished AS f
            WHERE f.lane > n.lane
            ORDER BY f.lane
            LIMIT 1
        )
    FROM finished_lane AS n
    WHERE n.lane > ''
)

SELECT n.lane FROM ready_lane AS n WHERE n.lane > ''
UNION
SELECT n.lane FROM waiting_lane AS n WHERE n.lane > ''
UNION
SELECT n.lane FROM finished_lane AS n WHERE n.lane > ''
UNION
SELECT l.lane FROM pulse.lease AS l
UNION
SELECT a.lane FROM pulse.approval AS a
UNION
SELECT s.lane FROM pulse.lane AS s
UNION
SELECT k.lane FROM pulse.kind AS k WHERE k.lane IS NOT NULL
UNION
SELECT h.lane FROM pulse.hold AS h WHERE h.lane <> ''
UNION
SELECT 'default'::text COLLATE "C";

COMMENT ON VIEW pulse._known_lanes IS
'Every lane that has jobs, settings, kinds or holds, and default.';
COMMENT ON COLUMN pulse._known_lanes.lane IS
'The lane.';

-- Functions, for settings of their own: the planner, which knows little of a queue, would
-- sort a whole line, and compile the view around it.

-- Places grow with time inside a level, so the oldest job of a lane is the first of
-- one of its levels.
CREATE FUNCTION pulse._oldest_ready_at(lane text)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (
        WITH RECURSIVE level (rank, ready_at) AS (
            (
                SELECT r.rank, r.ready_at
                FROM pulse.ready AS r
                WHERE r.lane = _oldest_ready_at.lane
                ORDER BY r.rank, r.seq
                LIMIT 1
            )
            UNION ALL
            SELECT n.rank, n.ready_at
            FROM level AS v
            CROSS JOIN LATERAL (
                SELECT r.rank, r.ready_at
                FROM pulse.ready AS r
                WHERE r.lane = _oldest_ready_at.lane
                    AND r.rank > v.rank
                ORDER BY r.rank, r.seq
                LIMIT 1
            ) AS n
        )

        SELECT min(v.ready_at) FROM level AS v
    );
END;
$$;

COMMENT ON FUNCTION pulse._oldest_ready_at(text) IS
'When the oldest ready job of a lane joined the line; NULL when none is ready.';

CREATE FUNCTION pulse._counted(lane text)
RETURNS TABLE (ready bigint, delayed bigint)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
ROWS 1
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.ready AS r
                WHERE r.lane = _counted.lane
                ORDER BY r.rank, r.seq
                LIMIT 10001
            ) AS capped
        ),
        (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse.waiting AS w
                WHERE w.lane = _counted.lane
                ORDER BY w.run_at
                LIMIT 10001
            ) AS capped
        );
END;
$$;

COMMENT ON FUNCTION pulse._counted(text) IS
'How many jobs of a lane are ready and how many delayed, each counted up to 10001.';

-- Long lines are not counted but estimated, from the rows on some 400 pages; the same
-- pages each time, so that the figure does not flicker.
CREATE VIEW pulse._ready_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            40000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.ready'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse.ready AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._ready_estimate IS
'About how many jobs of each lane are ready, from a sample of the table.';
COMMENT ON COLUMN pulse._ready_estimate.lane IS
'The lane.';
COMMENT ON COLUMN pulse._ready_estimate.jobs IS
'About how many.';

CREATE VIEW pulse._waiting_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            40000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.waiting'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse.waiting AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._waiting_estimate IS
'About how many jobs of each lane are waiting, from a sample of the table.';
COMMENT ON COLUMN pulse._waiting_estimate.lane IS
'The lane.';
COMMENT ON COLUMN pulse._waiting_estimate.jobs IS
'About how many.';

-- A sample is taken when a lane needs it, and once.
CREATE VIEW pulse.lanes
WITH (security_barrier)
AS
WITH ready_estimate AS MATERIALIZED (
    SELECT e.lane, e.jobs
    FROM pulse._ready_estimate AS e
),

waiting_estimate AS MATERIALIZED (
    SELECT e.lane, e.jobs
    FROM pulse._waiting_estimate AS e
)

SELECT
    o.lane AS name,
    s.max_slots,
    coalesce(u.used, 0) AS used,
    CASE
        WHEN n.ready <= 10000 THEN n.ready
        ELSE
            greatest(
                n.ready,
                (
                    SELECT e.jobs
                    FROM ready_estimate AS e
                    WHERE e.lane = o.lane
                )
            )
    END AS depth,
    n.ready > 10000 AS depth_estimated,
    clock_timestamp() - pulse._oldest_ready_at(o.lane) AS oldest_ready_age,
    CASE
        WHEN n.delayed <= 10000 THEN n.delayed
        ELSE
            greatest(
                n.delayed,
                (
                    SELECT e.jobs
                    FROM waiting_estimate AS e
                    WHERE e.lane = o.lane
                )
            )
    END AS delayed,
    n.delayed > 10000 AS delayed_estimated,
    coalesce(
        (
            SELECT
                round(
                    60 * sum(t.completed + t.dead + t.cancelled)
                    / extract(EPOCH FROM sum(t.took))::numeric, 1
                )
            FROM pulse.stat AS t
            WHERE t.lane = o.lane
                AND t.at > clock_timestamp() - interval '5 minutes'
        ),
        0
    ) AS throughput,
    coalesce(s.enabled, true) AS enabled,
    EXISTS (
        SELECT FROM pulse.hold AS h
        WHERE h.lane = o.lane
            AND h.holder = 'drain'
    ) AS drained,
    (
        SELECT
            array_agg(
                h.holder || coalesce(' (' || nullif(h.reason, '') || ')', '')
                ORDER BY h.lane, h.holder
            )
        FROM pulse.hold AS h
        WHERE h.lane IN (o.lane, '')
    ) AS paused_by,
    coalesce(jsonb_strip_nulls(to_jsonb(s) - 'lane'), '{}') AS settings
FROM pulse._known_lanes AS o
CROSS JOIN LATERAL pulse._counted(o.lane) AS n
LEFT JOIN pulse.lane AS s ON s.lane = o.lane
LEFT JOIN (
    SELECT
        l.lane,
        count(*) AS used
    FROM pulse.lease AS l
    GROUP BY l.lane
) AS u ON u.lane = o.lane
WHERE o.lane > ''
ORDER BY o.lane;

COMMENT ON VIEW pulse.lanes IS
'Every lane that has jobs, settings, kinds or holds, and default: slots, line, speed and who holds it. Who may read this view sees the jobs of everybody in the others.';
COMMENT ON COLUMN pulse.lanes.name IS
'The lane.';
COMMENT ON COLUMN pulse.lanes.max_slots IS
'How many of its jobs may run at once; NULL is no limit.';
COMMENT ON COLUMN pulse.lanes.used IS
'How many of its jobs run.';
COMMENT ON COLUMN pulse.lanes.depth IS
'How many of its jobs are ready: counted up to 10000, estimated beyond.';
COMMENT ON COLUMN pulse.lanes.depth_estimated IS
'Whether depth is an estimate.';
COMMENT ON COLUMN pulse.lanes.oldest_ready_age IS
'How long the oldest ready job has stood in line.';
COMMENT ON COLUMN pulse.lanes.delayed IS
'How many of its jobs are scheduled or retrying: counted up to 10000, estimated beyond.';
COMMENT ON COLUMN pulse.lanes.delayed_estimated IS
'Whether delayed is an estimate.';
COMMENT ON COLUMN pulse.lanes.throughput IS
'How many of its jobs finished a minute, over the last five minutes, as sampled by tick.';
COMMENT ON COLUMN pulse.lanes.enabled IS
'Whether it may be claimed, as set by set_lane.';
COMMENT ON COLUMN pulse.lanes.drained IS
'Whether drain_lane stopped it.';
COMMENT ON COLUMN pulse.lanes.paused_by IS
'Every holder that keeps it, or everything, from being claimed, with its reason; NULL when none does.';
COMMENT ON COLUMN pulse.lanes.settings IS
'What set_lane was told; what is missing is the default.';

-- A worker that never says hello is known by what it runs. A heartbeat moves
-- lease_until to lease_for from now, so the difference is when it was last seen.
-- Hello comes every thirty seconds: who missed four of them is not counted on.
CREATE VIEW pulse.workers
WITH (security_barrier)
AS
SELECT
    coalesce(w.worker, r.worker) AS worker,
    coalesce(w.lanes, r.lanes) AS lanes,
    w.kinds,
    greatest(w.seen_at, r.seen_at) AS seen_at,
    coalesce(r.running, 0) AS running,
    w.seen_by,
    greatest(w.seen_at, r.seen_at) > clock_timestamp() - interval '2 minutes' AS live
FROM pulse.worker AS w
FULL JOIN (
    SELECT
        l.worker,
        array_agg(DISTINCT l.lane ORDER BY l.lane)::text [] AS lanes,
        max(greatest(l.claimed_at, l.lease_until - l.lease_for)) AS seen_at,
        count(*) AS running
    FROM pulse.lease AS l
    GROUP BY l.worker
) AS r ON r.worker = w.worker;

COMMENT ON VIEW pulse.workers IS
'Workers that said hello or run jobs: their lanes, their kinds (NULL is every kind), when they were last seen, how many jobs they run, as which role, whether they are live.';
COMMENT ON COLUMN pulse.workers.worker IS
'The name it gave.';
COMMENT ON COLUMN pulse.workers.lanes IS
'The lanes it said it takes, or those of the jobs it runs.';
COMMENT ON COLUMN pulse.workers.kinds IS
'The kinds it said it takes; NULL is every kind.';
COMMENT ON COLUMN pulse.workers.seen_at IS
'When it last said hello, claimed or sent a heartbeat.';
COMMENT ON COLUMN pulse.workers.running IS
'How many jobs it runs.';
COMMENT ON COLUMN pulse.workers.seen_by IS
'The role it said hello as.';
COMMENT ON COLUMN pulse.workers.live IS
'Whether it was seen in the last two minutes.';

CREATE VIEW pulse.dead
WITH (security_barrier)
AS
SELECT
    f.job AS job_id,
    f.lane,
    f.kind,
    -f.rank AS priority,
    b.payload,
    f.attempts,
    f.failures,
    b.max_attempts,
    f.error AS last_error,
    (
        SELECT
            jsonb_agg(
                jsonb_build_object(
                    'attempt', e.attempt,
                    'error', e.error,
                    'worker', e.worker,
                    'started_at', e.claimed_at,
                    'failed_at', e.failed_at
                )
                ORDER BY e.attempt
            )
        FROM pulse.failure AS e
        WHERE e.job = f.job
    ) AS errors,
    f.worker,
    f.finished_at,
    b.enqueued_at,
    b.enqueued_by,
    b.unique_key,
    b.group_key,
    b.tags
FROM pulse._known_lanes AS k
INNER JOIN pulse.finished AS f ON f.lane = k.lane AND f.state = 'dead'
INNER JOIN pulse.body AS b ON b.job = f.job
WHERE (SELECT pulse._sees_all()) OR b.enqueued_by = (SELECT pulse._caller());

COMMENT ON VIEW pulse.dead IS
'Jobs that failed for good, with the error of every run. pulse.retry(job_id) puts one back in line. Producers see their own jobs.';
COMMENT ON COLUMN pulse.dead.job_id IS
'The job.';
COMMENT ON COLUMN pulse.dead.lane IS
'Its lane.';
COMMENT ON COLUMN pulse.dead.kind IS
'What code ran it.';
COMMENT ON COLUMN pulse.dead.priority IS
'Higher runs first.';
COMMENT ON COLUMN pulse.dead.payload IS
'What was handed to enqueue.';
COMMENT ON COLUMN pulse.dead.attempts IS
'How many runs have begun.';
COMMENT ON COLUMN pulse.dead.failures IS
'How many of them ended badly since it was enqueued or retried.';
COMMENT ON COLUMN pulse.dead.max_attempts IS
'How many failures it was allowed.';
COMMENT ON COLUMN pulse.dead.last_error IS
'Why the last run ended.';
COMMENT ON COLUMN pulse.dead.errors IS
'A JSON list, oldest first, of every run that ended badly: attempt, error, worker, started_at, failed_at.';
COMMENT ON COLUMN pulse.dead.worker IS
'Who ran it last.';
COMMENT ON COLUMN pulse.dead.finished_at IS
'When it was given up.';
COMMENT ON COLUMN pulse.dead.enqueued_at IS
'When it was enqueued.';
COMMENT ON COLUMN pulse.dead.enqueued_by IS
'The role that enqueued it.';
COMMENT ON COLUMN pulse.dead.unique_key IS
'At most one waiting or running job of its lane has this key.';
COMMENT ON COLUMN pulse.dead.group_key IS
'A label for filters.';
COMMENT ON COLUMN pulse.dead.tags IS
'Labels for filters.';

CREATE VIEW pulse.schedules
WITH (security_barrier)
AS
SELECT
    s.name,
    s.kind,
    s.payload,
    s.cron,
    s.every,
    s.at,
    s.timezone,
    s.options,
    s.catch_up,
    s.catch_up_window,
    s.next_at,
    (
        SELECT r.occurrence
        FROM pulse.schedule_run AS r
        WHERE r.name = s.name
        ORDER BY r.occurrence DESC
        LIMIT 1
    ) AS last_occurrence,
    s.paused_at,
    s.paused_by,
    s.pause_reason,
    s.last_error,
    s.created_by,
    s.created_at
FROM pulse.schedule AS s;

COMMENT ON VIEW pulse.schedules IS
'What is enqueued by the clock, when next, and who paused it. options holds the further arguments of enqueue.';
COMMENT ON COLUMN pulse.schedules.name IS
'Its name.';
COMMENT ON COLUMN pulse.schedules.kind IS
'The kind it enqueues.';
COMMENT ON COLUMN pulse.schedules.payload IS
'The payload it enqueues.';
COMMENT ON COLUMN pulse.schedules.cron IS
'Its cron expression, if that is its rhythm.';
COMMENT ON COLUMN pulse.schedules.every IS
'Its interval, if that is its rhythm.';
COMMENT ON COLUMN pulse.schedules.at IS
'Its one moment, if that is its rhythm.';
COMMENT ON COLUMN pulse.schedules.timezone IS
'The time zone of the cron expression.';
COMMENT ON COLUMN pulse.schedules.options IS
'The further arguments of enqueue.';
COMMENT ON COLUMN pulse.schedules.catch_up IS
'What happens to occurrences that were missed: skip, last or all.';
COMMENT ON COLUMN pulse.schedules.catch_up_window IS
'How far back occurrences are caught up.';
COMMENT ON COLUMN pulse.schedules.next_at IS
'When it is due next; NULL when never again.';
COMMENT ON COLUMN pulse.schedules.last_occurrence IS
'The last occurrence that was handled.';
COMMENT ON COLUMN pulse.schedules.paused_at IS
'When it was paused; NULL when it is not.';
COMMENT ON COLUMN pulse.schedules.paused_by IS
'The role that paused it.';
COMMENT ON COLUMN pulse.schedules.pause_reason IS
'Why it was paused.';
COMMENT ON COLUMN pulse.schedules.last_error IS
'Why the last try to enqueue failed; NULL when it did not.';
COMMENT ON COLUMN pulse.schedules.created_by IS
'The role that made it, and that its jobs belong to.';
COMMENT ON COLUMN pulse.schedules.created_at IS
'When it was made.';

CREATE VIEW pulse.schedule_runs
WITH (security_barrier)
AS
SELECT
    r.name,
    r.occurrence,
    r.job AS job_id,
    r.skipped,
    r.handled_at
FROM pulse.schedule_run AS r;

COMMENT ON VIEW pulse.schedule_runs IS
'Every occurrence of every schedule for 90 days: the job it became, or why it was skipped.';
COMMENT ON COLUMN pulse.schedule_runs.name IS
'The schedule.';
COMMENT ON COLUMN pulse.schedule_runs.occurrence IS
'The moment it was due.';
COMMENT ON COLUMN pulse.schedule_runs.job_id IS
'The job it became; NULL when it was skipped.';
COMMENT ON COLUMN pulse.schedule_runs.skipped IS
'Why it was skipped.';
COMMENT ON COLUMN pulse.schedule_runs.handled_at IS
'When tick got to it.';

CREATE VIEW pulse.audit
WITH (security_barrier)
AS
SELECT
    e.entry,
    e.at,
    e.who,
    e.verb,
    e.job AS job_id,
    e.lane,
    e.before,
    e.after,
    e.reason
FROM pulse.audit_entry AS e;

COMMENT ON VIEW pulse.audit IS
'What operators did in the last 90 days: who, when, what, before, after, why.';
COMMENT ON COLUMN pulse.audit.entry IS
'A growing number.';
COMMENT ON COLUMN pulse.audit.at IS
'When it was done.';
COMMENT ON COLUMN pulse.audit.who IS
'The role that did it.';
COMMENT ON COLUMN pulse.audit.verb IS
'The function that was called.';
COMMENT ON COLUMN pulse.audit.job_id IS
'The job it was done to.';
COMMENT ON COLUMN pulse.audit.lane IS
'The lane it was done to.';
COMMENT ON COLUMN pulse.audit.before IS
'What was before.';
COMMENT ON COLUMN pulse.audit.after IS
'What was after.';
COMMENT ON COLUMN pulse.audit.reason IS
'Why, as the caller said.';

CREATE VIEW pulse.stats
WITH (security_barrier)
AS
SELECT
    t.lane,
    t.at,
    t.took,
    t.completed,
    t.dead,
    t.cancelled,
    t.ready,
    t.running
FROM pulse.stat AS t;

COMMENT ON VIEW pulse.stats IS
'A sample of each lane about once a minute, kept 48 hours: what finished in the time it took since the one before, what was ready (counted up to 100000) and running then.';
COMMENT ON COLUMN pulse.stats.lane IS
'The lane.';
COMMENT ON COLUMN pulse.stats.at IS
'When the sample was taken.';
COMMENT ON COLUMN pulse.stats.took IS
'The time since the sample before.';
COMMENT ON COLUMN pulse.stats.completed IS
'How many jobs completed in that time.';
COMMENT ON COLUMN pulse.stats.dead IS
'How many died.';
COMMENT ON COLUMN pulse.stats.cancelled IS
'How many were cancelled.';
COMMENT ON COLUMN pulse.stats.ready IS
'How many stood in line, counted up to 100000.';
COMMENT ON COLUMN pulse.stats.running IS
'How many ran.';

CREATE VIEW pulse.access
WITH (security_barrier)
AS
SELECT
    g.role,
    g.access,
    g.granted_by,
    g.granted_at,
    EXISTS (
        SELECT FROM pg_catalog.pg_roles AS r
        WHERE r.rolname = g.role
    ) AS role_exists
FROM pulse.access_grant AS g;

COMMENT ON VIEW pulse.access IS
'Which role was given which access by grant_access. A role that no longer exists is taken out with revoke_access.';
COMMENT ON COLUMN pulse.access.role IS
'The role.';
COMMENT ON COLUMN pulse.access.access IS
'producer, worker, viewer, approver, operator or admin.';
COMMENT ON COLUMN pulse.access.granted_by IS
'The role that gave it.';
COMMENT ON COLUMN pulse.access.granted_at IS
'When.';
COMMENT ON COLUMN pulse.access.role_exists IS
'Whether the role is still there.';
